"""A battery ends at its limit whatever the machine does, and says what it left unmeasured."""

from __future__ import annotations

import time

import pytest

from suite.acceptance import measurements
from suite.acceptance.battery_record import PhaseEvidence
from suite.acceptance.evidence import MiniatureLaunch
from suite.acceptance.presets import EFFORTS
from suite.job.events import Phase, Status
from suite.job.probe_job import Exchanged, Replayed
from suite.launch.interruption import OutOfTimeError, check_interrupted, time_limit
from suite.records.battery import read_half
from tests.support.node import LAUNCH_SECONDS, MICRO_SECONDS, Node, accept

QUICK = EFFORTS["quick"].miniatures


def test_no_phase_begins_that_the_limit_leaves_no_time_for(tmp_path, capsys, node: Node) -> None:
    minutes = str(1.5 * LAUNCH_SECONDS / 60)
    code, report, found = accept(capsys, tmp_path, "--only", "7", "--minutes", minutes)
    assert node.asked == list(QUICK[:2])
    assert code == 3
    left = {name: found[7, name] for name in QUICK[2:]}
    assert {one["verdict"] for one in left.values()} == {"INCONCLUSIVE"}
    assert {one["part"] for one in left.values()} == {"time limit"}
    assert left["gpt2-mini"]["evidence"].startswith("gpt2-mini exact not begun: the limit of 38 s, ")
    assert {found[7, name]["verdict"] for name in QUICK[:2]} == {"PASS"}
    assert report["decision"] == "not decidable"


def test_a_slow_machine_decides_without_the_miniatures_that_it_has_no_time_for(tmp_path, capsys, node: Node) -> None:
    timed, *others = QUICK
    minutes = str((MICRO_SECONDS + 5 * LAUNCH_SECONDS + 40.0) / 60)  # one launch is stated to take 17 s
    code, report, found = accept(capsys, tmp_path, "--only", "7,8", "--minutes", minutes)
    assert node.asked == ["micro", *[timed] * 5, others[0]]
    assert {name: found[7, name]["verdict"] for name in QUICK} == {
        timed: "PASS",
        others[0]: "PASS",
        **dict.fromkeys(others[1:], "NOT RUN"),
    }
    assert found[7, others[1]]["evidence"] == f"{others[1]} exact left out: the limit of 255 s, 17 s needed"
    assert (code, report["decision"]) == (0, "accepted")


def test_other_miniatures_leave_what_failed_the_time_of_its_re_run(tmp_path, capsys, node: Node) -> None:
    timed, *others = QUICK
    node.slow = {timed: [1.6]}
    minutes = str((MICRO_SECONDS + 8 * LAUNCH_SECONDS + 10.0) / 60)
    _, _, found = accept(capsys, tmp_path, "--only", "7,8", "--minutes", minutes)
    assert node.asked == ["micro", *[timed] * 8]
    assert found[8, timed]["verdict"] == "FAIL"
    assert {found[7, name]["verdict"] for name in others} == {"NOT RUN"}


def test_what_was_left_out_is_launched_when_nothing_else_counts_figures(tmp_path, capsys, node: Node) -> None:
    minutes = str((len(QUICK) * LAUNCH_SECONDS - 5.0) / 60)
    _, _, found = accept(capsys, tmp_path, "--only", "7", "--minutes", minutes)
    assert node.asked == list(QUICK)
    assert {found[7, name]["verdict"] for name in QUICK} == {"PASS"}


def test_a_phase_that_the_limit_ends_keeps_what_it_measured_and_is_run_anew_when_resumed(
    tmp_path, capsys, monkeypatch
) -> None:
    """A launch that waits, as the launcher does, until the limit of 1.2 s: the battery is over soon after."""
    made = []

    def launched(name, purpose, **_options):
        made.append(name)
        if len(made) == 3:
            while True:
                time.sleep(0.01)
                check_interrupted()
        return MiniatureLaunch(
            run=name, purpose=purpose, status=Status.OK, message="", ranks_at_fault=[], record="", seconds=0.1, exact=9
        )

    monkeypatch.setattr(measurements, "miniature_launch", launched)
    monkeypatch.setattr("suite.acceptance.phases.competitors", lambda: ([], 0.0))
    monkeypatch.setattr("suite.acceptance.context.BEGINS", 0.0)
    begun = time.monotonic()
    arguments = ("--only", "7,11", "--miniatures", "gpt2-mini")
    code, _, found = accept(capsys, tmp_path, *arguments, "--minutes", "0.02")
    assert time.monotonic() - begun < 30
    assert (code, made) == (3, ["gpt2-mini"] * 3)
    assert found[7, "gpt2-mini"]["verdict"] == "PASS"  # of the two launches before
    straggler = found[11, "gpt2-mini"]
    assert (straggler["verdict"], straggler["part"]) == ("NOT RUN", "") or straggler["part"] == "time limit"
    assert not list((tmp_path / "acceptance").glob("*.gpt2-mini_times.phase.json"))
    (path,) = (tmp_path / "acceptance").glob("*.gpt2-mini_times_ended_by_the_limit.phase.json")
    kept = read_half(path, PhaseEvidence).evidence
    assert [one.outcome for one in kept if hasattr(one, "outcome")] == ["ended by the limit"]
    assert len(kept) == 3


@pytest.mark.parametrize(("over", "wrong"), [("the limit", 0), ("the limit", 1), ("the budget", 0)])
def test_a_probe_that_its_time_ends_keeps_its_whole_parts_and_leaves_the_others_open(
    tmp_path, capsys, monkeypatch, over, wrong
) -> None:
    """Two ranks report all replays and messages; then sums go on for ever, or the phase is over its budget."""
    effort = EFFORTS["quick"]
    hashes = {"loss": "a", "gradients": "b", "parameters": "c"}

    def launch(job, _identity, on_event):
        for rank in range(job.ranks):
            for number in range(effort.replays * effort.replay_steps):
                replay, step = divmod(number, effort.replay_steps)
                on_event(rank, Replayed(replay=replay, step=step, **hashes, time=0.0))
            message = {"bytes": 64, "seconds": 1.0, "wrong": wrong, "first": "word 3" if wrong else ""}
            on_event(rank, Exchanged(peer=1 - rank, **message, time=0.0))
        while True:
            time.sleep(0.01)
            check_interrupted()
            if over == "the budget":
                monkeypatch.setattr(time, "monotonic", lambda clock=time.monotonic: clock() + 1000.0)
                on_event(0, Phase("all-reduce", 0.0))

    monkeypatch.setattr(measurements, "launch", launch)
    monkeypatch.setattr("suite.acceptance.phases.competitors", lambda: ([], 0.0))
    monkeypatch.setattr("suite.acceptance.context.BEGINS", 0.0)
    minutes = "0.02" if over == "the limit" else "60"
    code, _, found = accept(capsys, tmp_path, "--only", "5,6,14,15", "--minutes", minutes)
    assert code == (1 if wrong else 3)
    assert found[14, "replays"]["verdict"] == "PASS"
    assert found[5, "messages to the bit"]["verdict"] == ("FAIL" if wrong else "PASS")
    for check in (6, 15):
        assert [(one["verdict"], one["part"]) for (number, _), one in found.items() if number == check] == [
            ("INCONCLUSIVE", "time limit")
        ]


def test_a_loop_that_waits_ends_at_the_limit_and_not_after_it() -> None:
    with time_limit(60):
        check_interrupted()
    with pytest.raises(OutOfTimeError), time_limit(-1):
        check_interrupted()
    check_interrupted()
