"""Baselines of a run: the last acceptance, a record's identical launches, a commit, the best stretch."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from reference_runs.errors import InputError
from suite.metrics.noise_floor import own_floor
from suite.regression.accepted_spread import accepted_spread
from suite.regression.baselines import (
    Baseline,
    accept,
    accepted,
    baseline,
    checkout,
    full_commit,
    old_commit,
    resolved,
    software_changes,
)
from suite.regression.comparability import setup_of
from suite.reproduce.other_code import OldCodeError
from tests.support.histories import launch_of, normal_launches

OLD, NEW = "0.1.0 (aaaaaaaaaaaa)", "0.1.0 (bbbbbbbbbbbb)"


def launches_of(count, first=0, **changes):
    return [launch_of(first + n, value, **changes) for n, value in enumerate(normal_launches(first, count))]


HISTORY = [*launches_of(3, suite=OLD), *launches_of(3, 3, suite=NEW), *launches_of(2, 6, suite=OLD)]
SETUP = setup_of(HISTORY[0])


def spread_of(launches):
    return accepted_spread(launches, launches, limit=0.1)


def places(found):
    return None if found is None else [HISTORY.index(launch) for launch in found.launches]


def test_a_record_stands_for_the_launches_identical_with_it_or_of_modified_code_for_itself(tmp_path):
    for place, identical in ((0, [0, 1, 2, 6, 7]), (7, [0, 1, 2, 6, 7]), (4, [3, 4, 5])):
        reference = HISTORY[place].id
        found = baseline(reference, SETUP, HISTORY, tmp_path)
        assert (places(found), found.words) == (identical, f"record {reference}")
    modified = launches_of(3, suite="0.1.0 (aaaaaaaaaaaa, modified)")
    assert baseline(modified[1].id, SETUP, modified, tmp_path).launches == (modified[1],)


def test_a_commit_stands_for_the_launches_of_its_unmodified_checkout(tmp_path):
    found = baseline(12 * "b" + 28 * "c", SETUP, HISTORY, tmp_path)
    assert (places(found), found.words) == ([3, 4, 5], "commit bbbbbbbbbbbb")
    modified = [launch_of(9, 1.0, suite="0.1.0 (bbbbbbbbbbbb, modified)"), launch_of(10, 1.0, suite="0.1.0")]
    assert baseline(40 * "b", SETUP, modified, tmp_path) is None
    early = launches_of(2, suite="0.1.0 (111111111111)")  # sorts before all ids
    assert baseline(40 * "1", setup_of(early[0]), early, tmp_path).words == "commit 111111111111"


def test_another_setup_and_launches_that_failed_are_no_baseline(tmp_path):
    for setup in ("another", "", "zz"):  # the others come before and after all fingerprints
        assert baseline(40 * "a", setup, HISTORY, tmp_path) is None
    alone = launch_of(1, None)
    for failed in (alone, launch_of(1, 1.0, status="oom")):
        for reference in (40 * "a", failed.id):
            assert baseline(reference, SETUP, [failed], tmp_path) is None


def test_the_last_acceptance_counts_and_names_what_it_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr("suite.records.store._RESERVED_BYTES", 0)
    monkeypatch.setattr("suite.metrics.noise_floor.PAIRS", 10)  # what would be found does not matter
    for moment, (first, end) in ((1e9, (0, 3)), (2e9, (3, 6))):
        monkeypatch.setattr("time.time", lambda moment=moment: moment)
        accept(tmp_path, SETUP, now := HISTORY[first:end], baseline(None, SETUP, HISTORY, tmp_path), spread_of(now))
    found = baseline(None, SETUP, HISTORY, tmp_path)
    assert (places(found), found.words) == ([3, 4, 5], "accepted 2033-05-18")
    first, second = accepted(tmp_path)[0]
    assert (first.replaced, second.replaced) == ([], [launch.id for launch in HISTORY[:3]])
    assert (second.run, second.setup, second.suite) == ("bloom-mini", SETUP, NEW)
    assert second.median_seconds == Baseline(launches=tuple(HISTORY[3:6]), words="").median
    assert second.spread == own_floor([launch.measured.of("step_seconds") for launch in HISTORY[3:6]], ()).variation
    for another in ("another", "zz"):  # that sort before and after all digests
        assert baseline(None, another, HISTORY, tmp_path) is None
    other = launches_of(2, 20, run="gpt2-mini")
    monkeypatch.setattr("time.time", lambda: 3e9)
    accept(tmp_path, setup_of(other[0]), other, None, spread_of(other))
    assert places(baseline(None, SETUP, [*HISTORY, *other], tmp_path)) == [3, 4, 5]
    monkeypatch.setattr("time.time", lambda: 4e9)
    accept(tmp_path, SETUP, HISTORY[3:6], None, spread_of(HISTORY[3:6]))
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


def test_a_commit_is_named_in_full_where_a_git_that_answers_has_it(tmp_path, monkeypatch):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), (*identity, "commit", "-q", "--allow-empty", "-m", "one")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    commit = full_commit("HEAD", tmp_path)
    assert re.fullmatch("[0-9a-f]{40}", commit)
    asked = ((commit[:12], tmp_path), ("no-such-branch", tmp_path), ("HEAD", tmp_path / "elsewhere"))
    assert [full_commit(*one) for one in asked] == [commit, None, None]
    for error in (FileNotFoundError("git"), subprocess.TimeoutExpired("git", 30)):
        monkeypatch.setattr("subprocess.run", lambda *_, error=error, **__: (_ for _ in ()).throw(error))
        assert full_commit("HEAD", tmp_path) is None


def test_an_acceptance_is_a_readable_file_and_damaged_ones_end_no_list(tmp_path, monkeypatch):
    monkeypatch.setattr("suite.records.store._RESERVED_BYTES", 0)
    monkeypatch.setattr("suite.metrics.noise_floor.PAIRS", 10)  # what would be found does not matter
    path = accept(tmp_path, SETUP, HISTORY[:3], None, spread_of(HISTORY[:3]))
    text = path.read_text(encoding="utf-8")
    assert text.startswith('{\n "schema": "1.1",\n')
    assert re.fullmatch(rf"\d{{8}}T\d{{6}}Z__{SETUP}__[0-9a-f]{{8}}\.json", path.name)
    damaged = {"0_bytes": b"\xff\xfe{", "1_cut": b"{"}
    for name, schema in (("2_old", "0.9"), ("3_new", "2.0"), ("4_minor", "1.7")):
        damaged[name] = text.replace('"schema": "1.1"', f'"schema": "{schema}"').encode()
    for name, data in damaged.items():
        path.with_name(f"{name}.json").write_bytes(data)
    path.with_name("5_directory.json").mkdir()
    good, bad = accepted(tmp_path)
    assert sorted(acceptance.schema for acceptance in good) == ["1.1", "1.7"]
    names = [Path(error.where).stem for error in bad]
    assert names == ["0_bytes", "1_cut", "2_old", "3_new", "5_directory"]
    assert {str(error).partition(";")[0].rpartition(": ")[2] for error in bad[2:4]} == {"unknown schema version"}


def test_the_same_code_is_launched_again_only_where_it_is_one_commit_on_the_same_software(monkeypatch):
    monkeypatch.setattr("suite.regression.baselines.full_commit", lambda name, _: {12 * "a": 40 * "a"}.get(name))
    good, other = (launch_of(n, 1.0, suite=f"0.1.0 ({12 * letter})") for n, letter in enumerate("ab"))
    assert old_commit([good, good], [other], None) == (40 * "a", "")
    bare = launch_of(3, 1.0, suite="0.1.0 (no checkout)")
    modified = launch_of(4, 1.0, suite=f"0.1.0 ({12 * 'a'}, modified)")
    torch = launch_of(5, 1.0, suite=good.suite, software={"suite": good.suite, "torch": "2.14.0"})
    for before, now, words in (
        ([good, other], good, "the baseline is of several commits"),
        ([bare], good, "the baseline's code is of no commit alone"),
        ([good, modified], good, "the baseline's code is of no commit alone"),
        ([good], torch, "the baseline ran other software (torch 2.13.0 -> 2.14.0)"),
        ([other], good, f"commit {12 * 'b'} is not in this repository"),
    ):
        assert old_commit(before, [now], None) == (None, f"{words}: no re-run in turn")


def test_of_what_git_says_the_last_line_is_reported(monkeypatch):
    said = "Preparing worktree (detached HEAD aaaa)\nfatal: no space left on device\n"
    failed = subprocess.CompletedProcess([], 128, "", said)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: failed)
    words = f"^git cannot check out {12 * 'a'}: fatal: no space left on device$"
    with pytest.raises(OldCodeError, match=words), checkout(40 * "a", Path("/repository")):
        pass


def test_changed_software_is_listed_by_name_with_all_versions_of_each_side():
    def launch(**software):
        return launch_of(1, 1.0, software={"suite": "x", **software})

    before = [launch(torch="2", numpy="1"), launch(torch="3", numpy="1")]
    assert software_changes(before, [launch(torch="3", numpy="1")]) == "torch 2 or 3 -> 3"
    assert software_changes(before, before[::-1]) == ""
    assert software_changes([launch(b="1", a="1")], [launch(b="2")]) == "a 1 -> unknown, b 1 -> 2"
    assert software_changes([launch(b="2")], [launch(b="1")]) == "b 2 -> 1"
