"""Which launches may be compared: one setup, one code, one machine's identical launches."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from suite.regression.baseline_checkout import OldCodeError, checkout, old_commit, software_changes
from suite.regression.comparability import commit_of, comparable_hardware, floor_of, is_modified, setup, setup_of
from tests.support.histories import HARDWARE, launch_of, normal_launches


@pytest.mark.parametrize(
    ("memory", "rounded"),
    [
        ("8388608 kB", "8 GiB"),
        (f"{8 * 2**20 + 2**19 + 1} kB", "9 GiB"),
        (f"{8 * 2**20 - 2**19 + 1} kB", "8 GiB"),
        ("8 GB", "8 GB"),
        ("some kB", "some kB"),
        ("8388608 zB", "8388608 zB"),
    ],
)
def test_memory_counts_in_gib_and_what_is_no_number_of_kb_stays(memory, rounded):
    assert comparable_hardware({"cpu": "x", "memory": memory}) == {"cpu": "x", "memory": rounded}
    assert comparable_hardware({"cpu": "x"}) == {"cpu": "x"}


def test_a_setup_is_run_hardware_policy_steps_and_seed_and_nothing_else():
    usual = {"run": "r", "hardware": HARDWARE, "policy": {"p": "1"}, "steps": 30, "seed": 1}
    first = setup(**usual)
    assert len(first) == 16
    assert int(first, 16) >= 0
    other_boot = HARDWARE | {"memory": "8000100 kB"}
    assert setup(**usual | {"hardware": other_boot}) == first
    others = [
        setup(**usual | change)
        for change in ({"run": "s"}, {"hardware": {}}, {"policy": {"p": "2"}}, {"steps": 31}, {"seed": 2})
    ]
    assert len({first, *others}) == 6


@pytest.mark.parametrize(
    ("suite", "commit", "modified"),
    [
        ("0.1.0 (aaaaaaaaaaaa)", "aaaaaaaaaaaa", False),
        ("0.1.0 (aaaaaaaaaaaa, modified)", "aaaaaaaaaaaa", True),
        ("0.1.0 (no checkout)", "", False),
        ("0.1.0", "", False),
    ],
)
def test_a_launch_knows_its_commit(suite, commit, modified):
    launch = launch_of(1, 1.0, suite=suite)
    assert (commit_of(launch), is_modified(launch)) == (commit, modified)


def test_a_floor_needs_ten_identical_launches_and_says_how_many_there_are():
    def launches(count, **changes):
        return [launch_of(n, value, **changes) for n, value in enumerate(normal_launches(1, count))]

    of = setup_of(launch_of(0, 1.0))
    floor, words = floor_of(of, "00000001", [*launches(9), *launches(7, suite="0.1.0 (bbbbbbbbbbbb)")])
    assert (floor, words) == (None, "9 identical launches are recorded, 10 are needed")
    assert floor_of(of, "00000001", [])[1] == "0 identical launches are recorded, 10 are needed"
    for node, where in (("00000001", "this machine"), ("00000002", "other machines of the same hardware")):
        floor, words = floor_of(of, node, launches(10))
        assert floor is not None
        assert words == f"10 identical launches on {where}"
    for another in ("", "another setup", "zz"):  # that come before and after all fingerprints
        assert floor_of(another, "00000001", launches(10)) == (None, "0 identical launches are recorded, 10 are needed")


def test_the_same_code_is_launched_again_only_where_it_is_one_commit_on_the_same_software(monkeypatch):
    monkeypatch.setattr(
        "suite.regression.baseline_checkout.full_commit", lambda name, _: {12 * "a": 40 * "a"}.get(name)
    )
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
