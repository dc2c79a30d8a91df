"""Which launches are meant: by facts, by time, by an id or a part of it."""

from __future__ import annotations

import time

import pytest

from reference_runs.errors import InputError
from suite.records.query import STATUSES, Selection, moment, record_path, statuses
from tests.support.histories import launch_of

LAUNCH = launch_of(100, 1.0)


def test_a_launch_is_taken_that_has_all_that_is_asked_for():
    taken = [
        {},
        {"run": "bloom-mini"},
        {"machine": "0000"},  # the beginning of the node's hash
        {"machine": "amd EPYC"},
        {"statuses": ("hang", "ok")},
        {"since": 100.0},
        {"before": 100.5},
    ]
    left = [
        {"run": "bloom"},
        {"machine": "0001"},
        {"machine": "intel"},
        {"statuses": ("hang",)},
        {"since": 100.5},
        {"before": 100.0},
        {"run": "bloom-mini", "since": 100.5},
    ]
    assert [wanted for wanted in taken + left if Selection(**wanted).takes(LAUNCH)] == taken


def test_a_moment_is_a_date_in_utc_or_so_long_ago(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 0.0)
    expected = {
        "1970-01-02": 86400,
        "1970-01-01T01:00": 3600,
        "1970-01-01T01:00+01:00": 0,
        "2h": -2 * 3600,
        "1.5d": -1.5 * 86400,
        "3w": -21 * 86400,
    }
    assert {text: moment(text, where="--since") for text in expected} == expected
    for text in ("", "yesterday", "2m", "-2h", "2.h", "99999-01-01"):
        with pytest.raises(InputError, match="not a time"):
            moment(text, where="--since")


def test_statuses_are_those_of_launches_and_of_records_without_an_end():
    assert statuses(["ok", "unknown"]) == ("ok", "unknown")
    assert {"running", "crashed"} < {*STATUSES}
    with pytest.raises(InputError, match="unknown status"):
        statuses(["ok", "good"])


IDS = [f"2026112{day}T00000{day}Z__node__0000000{day}" for day in range(1, 8)]


@pytest.fixture
def results(tmp_path):
    """Seven records of two runs, with files that are none."""
    for place, identity in enumerate(IDS):
        run = tmp_path / "records" / ("a", "b")[place % 2]
        run.mkdir(parents=True, exist_ok=True)
        (run / f"{identity}.begin.json").touch()
        (run / f"{identity}.end.json").touch()
    (tmp_path / "records" / "a" / ".29990101T000000Z__node__00000000.begin.json").touch()
    (tmp_path / "records" / "file").touch()
    return tmp_path


def test_a_record_is_meant_by_latest_a_beginning_the_last_digits_or_a_path(results):
    def meant(text):
        return record_path(results, text).name.removesuffix(".begin.json")

    assert meant("latest") == IDS[6]
    assert [meant(IDS[3]), meant(IDS[3][:8]), meant("00000004")] == [IDS[3]] * 3
    for half in ("begin", "end"):
        assert str(record_path(results, f"/x/y.{half}.json")) == "/x/y.begin.json"


def test_what_means_no_record_says_what_could(results, tmp_path):
    for text in ("", "0000004", "node", "20270101"):
        with pytest.raises(InputError, match="no such record"):
            record_path(results, text)
    with pytest.raises(InputError, match="no such record"):
        record_path(tmp_path / "empty", "latest")


def test_of_several_records_five_are_named_and_the_others_counted(results, tmp_path, monkeypatch):
    with pytest.raises(InputError) as error:
        record_path(results, "2026")
    assert [identity in str(error.value) for identity in IDS] == [True, True, True, False, True, False, True]  # by path
    assert str(error.value).endswith(" and 2 more")
    with pytest.raises(InputError) as few:
        record_path(results, IDS[0][:7])
    assert "more" in str(few.value)
    monkeypatch.setattr("suite.records.query._NAMED", len(IDS))
    with pytest.raises(InputError) as all_named:
        record_path(results, "2026")
    assert " and " not in str(all_named.value)
