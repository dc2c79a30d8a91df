"""Batteries: found, read by version, their worst finding first, and since when one is bad."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from reference_runs.errors import InputError
from suite.paths import RECORDED
from suite.records.battery import (
    NOT_PASSED,
    BatteryBegin,
    BatteryEnd,
    CheckFinding,
    CheckVerdict,
    battery_directory,
    battery_paths,
    decode,
    encode,
    good_until_and_bad_since,
    read_half,
    stored_batteries,
    worst_first,
    worst_of,
)
from suite.records.record import BEGIN, END, partial

EVERY = {"begin": (BEGIN, BatteryBegin), "end": (END, BatteryEnd)}
NAMED = partial(BatteryEnd, "id", "schema", findings=[partial(CheckFinding, "check", "compared_as")])


def recorded(half: str) -> Path:
    return Path(battery_paths(battery_directory(RECORDED), half)[0])


def test_batteries_of_every_earlier_minor_version_are_read_whole() -> None:
    versions = set()
    for suffix, kind in EVERY.values():
        for path in battery_paths(RECORDED, suffix, everywhere=True):
            half = read_half(path, kind)
            assert decode(encode(half), kind, "again") == half
            versions.add(half.schema)
    assert versions >= {"8.0", "8.1", "8.2", "8.3"}


def test_a_partial_half_says_what_the_whole_one_does() -> None:
    whole, some = (read_half(recorded(END), kind) for kind in (BatteryEnd, NAMED))
    assert (some.id, some.schema) == (whole.id, whole.schema)
    assert [(one.check, one.compared_as) for one in some.findings] == [
        (one.check, one.compared_as) for one in whole.findings
    ]
    assert any(one.compared_as for one in some.findings)


@pytest.mark.parametrize("half", EVERY)
def test_what_is_damaged_or_of_another_version_is_refused_in_a_line(half: str, tmp_path: Path) -> None:
    suffix, kind = EVERY[half]
    data = recorded(suffix).read_bytes()
    facts = json.loads(data)

    def with_schema(schema: object) -> bytes:
        return json.dumps(facts | {"schema": schema}).encode()

    unknown = "unknown schema version of a battery; got {}, allowed: 8.x"
    cases: dict[str, tuple[bytes, str]] = {
        "cut": (data[: len(data) // 2], "damaged record of a battery: "),
        "empty": (b"", "damaged record of a battery: "),
        "no object": (b"[1]", "damaged record of a battery: "),
        "nested": (b"[" * 100_000, "damaged record of a battery: "),
        "no text": (data.replace(b'"node": "', b'"node": "\xe9', 1), "damaged record of a battery: "),
        "field missing": (json.dumps({"schema": "8.0"}).encode(), "damaged record of a battery: "),
        "another type": (data.replace(b'"node": "', b'"node": 1, "x": "', 1), "damaged record of a battery: "),
        "later": (with_schema("9.0"), unknown.format("'9.0'")),
        "earlier": (with_schema("7.2"), unknown.format("'7.2'")),
        "later, and nothing else known": (b'{"schema": "9.0"}', unknown.format("'9.0'")),
        "none": (b"{}", unknown.format("''")),
    }
    wrong = {}
    for name, (damaged, words) in cases.items():
        with pytest.raises(InputError) as refused:
            decode(damaged, kind, "here")
        if not str(refused.value).startswith(f"here: {words}"):
            wrong[name] = str(refused.value)
    assert wrong == {}
    for version in ("8.9", "9.0", "3.0"):
        assert decode(with_schema(version), kind, "here", any_version=True).schema == version
    assert decode(with_schema("8.9"), kind, "here").node == facts["node"]
    with pytest.raises(InputError, match="cannot read the record: No such file"):
        read_half(tmp_path / "gone", kind)


def written(place: Path, name: str, change: Callable[[bytes], bytes] = bytes) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    path = place / name
    path.write_bytes(change(recorded(END if name.endswith(END) else BEGIN).read_bytes()))
    return path


def test_batteries_lie_in_directories_of_one_name_and_where_asked_for_in_others(tmp_path: Path) -> None:
    in_named = [
        written(tmp_path / place / "acceptance", name)
        for place in ("", "deep/er")
        for name in ("1.end.json", "2.end.json")
    ]
    other = written(tmp_path / "copies", "3.end.json")
    written(tmp_path / "records" / "gpt2", "4.end.json")
    written(tmp_path / "acceptance", "5.begin.json")
    assert battery_paths(tmp_path) == [str(path) for path in in_named]
    assert sorted(battery_paths(tmp_path, everywhere=True)) == sorted(map(str, [*in_named, other]))
    assert battery_paths(tmp_path / "none") == []


def test_both_halves_are_read_and_what_is_damaged_is_named(tmp_path: Path) -> None:
    place = battery_directory(tmp_path)
    for name in ("1.begin.json", "1.end.json", "2.begin.json", "4.begin.json"):
        written(place, name)
    damaged = {written(place, "3.begin.json", lambda _: b"{"), written(place, "4.end.json", lambda _: b"{")}
    found = stored_batteries(tmp_path, BatteryBegin, BatteryEnd)
    assert {(one.begin is None, one.end is None, one.problem is None) for one in found} == {
        (False, False, True),
        (False, True, True),
        (True, True, False),
        (False, True, False),
    }
    assert {str(one.problem.where) for one in found if one.problem} == {str(path) for path in damaged}


def test_the_worst_verdict_comes_first_and_of_one_verdict_the_first_check() -> None:
    words = "FAIL HANG INVALID INCONCLUSIVE WARN PASS NOT RUN".replace("NOT RUN", "NOT_RUN").split()
    expected = [(CheckVerdict[word], check) for word in words for check in (2, 5)]
    findings = [CheckFinding(check=check, subject="", verdict=verdict) for verdict, check in expected]
    assert [(one.verdict, one.check) for one in worst_first(reversed(findings))] == expected
    assert worst_of(reversed(findings)) == findings[0]
    assert worst_of(findings[8:]) is None
    assert [one.verdict for one in findings if worst_of([one])] == [verdict for verdict in NOT_PASSED for _ in (2, 5)]


def test_bad_since_is_the_first_bad_moment_after_the_last_good_one() -> None:
    for said in itertools.chain.from_iterable(itertools.product((True, False, None), repeat=n) for n in range(6)):
        good = max((moment for moment, is_good in enumerate(said) if is_good), default=None)
        after = [
            moment
            for moment, is_good in enumerate(said)
            if is_good is False and moment > (-1 if good is None else good)
        ]
        assert good_until_and_bad_since(enumerate(said)) == (good, min(after, default=None)), said


def test_findings_that_are_not_dated_are_read() -> None:
    facts = json.loads(recorded(END).read_bytes())
    for finding in facts["findings"]:
        finding.pop("good_until", None), finding.pop("bad_since", None)
    closed = decode(msgspec.json.encode(facts), BatteryEnd, "old")
    assert {finding.bad_since for finding in closed.findings} == {None}
