"""What a run is compared with: the last acceptance, a record's identical launches, a commit, the best stretch."""

from __future__ import annotations

import re
import subprocess

import pytest

from reference_runs.errors import InputError
from suite.regression.baselines import Baseline, accept, accepted, baseline, full_commit, resolved
from suite.regression.comparability import setup_of
from tests.support.histories import launch_of, normal_launches

OLD, NEW = "0.1.0 (aaaaaaaaaaaa)", "0.1.0 (bbbbbbbbbbbb)"


def launches_of(count, first=0, **changes):
    return [launch_of(first + n, value, **changes) for n, value in enumerate(normal_launches(first, count))]


HISTORY = [*launches_of(3, suite=OLD), *launches_of(3, 3, suite=NEW), *launches_of(2, 6, suite=OLD)]
SETUP = setup_of(HISTORY[0])


def places(found):
    return None if found is None else [HISTORY.index(launch) for launch in found.launches]


@pytest.mark.parametrize(("place", "identical"), [(0, [0, 1, 2, 6, 7]), (7, [0, 1, 2, 6, 7]), (4, [3, 4, 5])])
def test_a_record_stands_for_the_launches_identical_with_it(place, identical, tmp_path):
    reference = HISTORY[place].id
    found = baseline(reference, SETUP, HISTORY, tmp_path)
    assert (places(found), found.words) == (identical, f"record {reference}")


def test_a_record_of_a_modified_checkout_stands_for_itself_alone(tmp_path):
    modified = launches_of(3, suite="0.1.0 (aaaaaaaaaaaa, modified)")
    found = baseline(modified[1].id, SETUP, modified, tmp_path)
    assert found.launches == (modified[1],)


def test_a_commit_stands_for_the_launches_of_its_unmodified_checkout(tmp_path):
    found = baseline(12 * "b" + 28 * "c", SETUP, HISTORY, tmp_path)
    assert (places(found), found.words) == ([3, 4, 5], "commit bbbbbbbbbbbb")
    modified = [launch_of(9, 1.0, suite="0.1.0 (bbbbbbbbbbbb, modified)"), launch_of(10, 1.0, suite="0.1.0")]
    assert baseline(40 * "b", SETUP, modified, tmp_path) is None


def test_another_setup_and_launches_that_failed_are_no_baseline(tmp_path):
    assert baseline(40 * "a", "another", HISTORY, tmp_path) is None
    for setup in ("", "zz"):  # that come before and after all fingerprints
        assert baseline(40 * "a", setup, HISTORY, tmp_path) is None
    for failed in (launch_of(1, None), launch_of(1, 1.0, status="oom")):
        assert baseline(40 * "a", SETUP, [failed], tmp_path) is None
    alone = launch_of(1, None)
    assert baseline(alone.id, SETUP, [alone], tmp_path) is None


def test_the_last_acceptance_counts_and_names_what_it_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr("suite.records.store._RESERVED_BYTES", 0)
    for moment, (first, end) in ((1e9, (0, 3)), (2e9, (3, 6))):
        monkeypatch.setattr("time.time", lambda moment=moment: moment)
        accept(tmp_path, SETUP, HISTORY[first:end], baseline(None, SETUP, HISTORY, tmp_path))
    found = baseline(None, SETUP, HISTORY, tmp_path)
    assert (places(found), found.words) == ([3, 4, 5], "accepted 2033-05-18")
    first, second = accepted(tmp_path)[0]
    assert (first.replaced, second.replaced) == ([], [launch.id for launch in HISTORY[:3]])
    assert (second.run, second.setup, second.suite) == ("bloom-mini", SETUP, NEW)
    assert second.median_seconds == Baseline(launches=tuple(HISTORY[3:6]), words="").median
    for another in ("another", "zz"):  # that sort before and after all digests
        assert baseline(None, another, HISTORY, tmp_path) is None
    other = launches_of(2, 20, run="gpt2-mini")
    monkeypatch.setattr("time.time", lambda: 3e9)
    accept(tmp_path, setup_of(other[0]), other, None)
    assert places(baseline(None, SETUP, [*HISTORY, *other], tmp_path)) == [3, 4, 5]
    monkeypatch.setattr("time.time", lambda: 4e9)
    accept(tmp_path, SETUP, HISTORY[3:6], None)
    assert baseline(None, setup_of(other[0]), [*HISTORY, *other], tmp_path).launches == tuple(other)


def test_the_median_is_of_the_launches_that_have_seconds():
    made = [launch_of(n, value) for n, value in enumerate((3.0, None, 1.0, 2.0))]
    assert Baseline(launches=tuple(made), words="").median == 2.0
    assert Baseline(launches=(made[1],), words="").median is None


def test_the_best_stretch_is_the_one_with_the_lowest_median(tmp_path):
    slow = launches_of(20)
    fast = [launch_of(20 + n, value) for n, value in enumerate(normal_launches(8, 20, median=0.8))]
    found = baseline("best", SETUP, [*slow, *fast], tmp_path)
    assert ([launch.started for launch in found.launches], found.words) == (
        [launch.started for launch in fast],
        "best stretch of the history",
    )
    assert baseline("best", SETUP, [], tmp_path) is None


def test_a_reference_is_best_a_record_by_id_or_path_or_a_commit(tmp_path, monkeypatch):
    commits = dict.fromkeys(("main", "0f", "aaaa"), 40 * "a")  # before and after all ids, and before "best"
    monkeypatch.setattr("suite.regression.baselines.full_commit", lambda name, _: commits.get(name))
    known = HISTORY[0].id
    for given, meant in (
        (None, None),
        ("best", "best"),
        (known, known),
        (f"/some/{known}.json", known),
        (f"/some/{known}.begin.json", known),
        (f"{known}.end.json", known),
        *commits.items(),
    ):
        assert resolved(given, HISTORY, tmp_path, tmp_path) == meant
    with pytest.raises(InputError, match="unknown baseline: 'nothing'|unknown baseline"):
        resolved("nothing", HISTORY, tmp_path, tmp_path)


def test_a_commit_whose_hash_sorts_before_all_ids_is_a_commit(tmp_path):
    early = launches_of(2, suite="0.1.0 (111111111111)")
    found = baseline(40 * "1", setup_of(early[0]), early, tmp_path)
    assert (len(found.launches), found.words) == (2, "commit 111111111111")


def test_a_commit_is_named_in_full_where_the_repository_has_it(tmp_path):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), (*identity, "commit", "-q", "--allow-empty", "-m", "one")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    commit = full_commit("HEAD", tmp_path)
    assert commit is not None
    assert len(commit) == 40
    assert full_commit(commit[:12], tmp_path) == commit
    assert full_commit("no-such-branch", tmp_path) is None
    assert full_commit("HEAD", tmp_path / "elsewhere") is None


@pytest.mark.parametrize("error", [FileNotFoundError("git"), subprocess.TimeoutExpired("git", 30)], ids=str)
def test_without_a_git_that_answers_no_commit_is_known(error, tmp_path, monkeypatch):
    def run(*_, **__):
        raise error

    monkeypatch.setattr("subprocess.run", run)
    assert full_commit("HEAD", tmp_path) is None


def test_an_acceptance_is_a_readable_file_and_damaged_ones_end_no_list(tmp_path, monkeypatch):
    monkeypatch.setattr("suite.records.store._RESERVED_BYTES", 0)
    path = accept(tmp_path, SETUP, HISTORY[:3], None)
    text = path.read_text(encoding="utf-8")
    assert text.startswith('{\n "schema": "1.0",\n')
    assert re.fullmatch(rf"\d{{8}}T\d{{6}}Z__{SETUP}__[0-9a-f]{{8}}\.json", path.name)
    places = {name: path.with_name(f"{name}.json") for name in ("0_bytes", "1_cut", "2_old", "3_new", "4_minor")}
    places["0_bytes"].write_bytes(b"\xff\xfe{")
    places["1_cut"].write_text("{")
    for name, schema in (("2_old", "0.9"), ("3_new", "2.0"), ("4_minor", "1.7")):
        places[name].write_text(text.replace('"schema": "1.0"', f'"schema": "{schema}"'))
    path.with_name("5_directory.json").mkdir()
    good, bad = accepted(tmp_path)
    assert sorted(acceptance.schema for acceptance in good) == ["1.0", "1.7"]
    assert [error.where.rpartition("/")[2] for error in bad] == [
        "0_bytes.json",
        "1_cut.json",
        "2_old.json",
        "3_new.json",
        "5_directory.json",
    ]
    assert {str(error).partition(";")[0].rpartition(": ")[2] for error in bad[2:4]} == {"unknown schema version"}
