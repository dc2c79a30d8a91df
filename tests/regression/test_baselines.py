"""What a run is compared with: the last acceptance, a record's identical launches, a commit, the best stretch."""

from __future__ import annotations

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


def test_a_commit_stands_for_the_launches_of_its_unmodified_checkout(tmp_path):
    found = baseline(12 * "b" + 28 * "c", SETUP, HISTORY, tmp_path)
    assert (places(found), found.words) == ([3, 4, 5], "commit bbbbbbbbbbbb")
    modified = [launch_of(9, 1.0, suite="0.1.0 (bbbbbbbbbbbb, modified)"), launch_of(10, 1.0, suite="0.1.0")]
    assert baseline(40 * "b", SETUP, modified, tmp_path) is None


def test_another_setup_and_launches_that_failed_are_no_baseline(tmp_path):
    assert baseline(40 * "a", "another", HISTORY, tmp_path) is None
    assert baseline(40 * "a", SETUP, [launch_of(1, None)], tmp_path) is None
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
    monkeypatch.setattr("suite.regression.baselines.full_commit", lambda name, _: {"main": 40 * "a"}.get(name))
    known = HISTORY[0].id
    for given, meant in (
        (None, None),
        ("best", "best"),
        (known, known),
        (f"/some/{known}.json", known),
        (f"/some/{known}.begin.json", known),
        (f"{known}.end.json", known),
        ("main", 40 * "a"),
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
