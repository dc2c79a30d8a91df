"""A gain that failed is measured again, as long as there is time for it."""

from __future__ import annotations

import pytest

from suite.commands import exit_codes
from suite.commands.ladder import EXIT_CODES
from suite.job.training_job import LEAST_STEPS
from suite.ladder import runner as runner
from suite.ladder.judge import Mark
from suite.ladder.result import LadderResult, failures, verdict
from suite.ladder.run import LADDER_SECONDS
from suite.ladder.rung import RUNGS, STEPS
from tests.support.ladder_machine import Machine, ladder_of, results_of


def test_a_gain_that_failed_in_a_slow_phase_is_measured_again_in_turn_and_kept(machine: Machine) -> None:
    machine.phases = {"speed/compile": [3.0]}
    outcome = ladder_of(["compile"])
    run_once = ["speed/speed-baseline", "speed/no-sync", "speed/compile"]
    assert machine.launched == [*run_once, "speed/no-sync", "speed/compile", "speed/compile", "speed/no-sync"]
    assert failures(outcome) == []
    found = [results_of(outcome)[name].measured for name in ("no-sync", "compile")]
    assert [one.launches for one in found if one is not None] == [3, 3]


def test_a_gain_that_is_not_there_fails_again_and_is_measured_again_once(machine: Machine) -> None:
    machine.phases = {"speed/compile": [3.0] * 9}
    outcome = ladder_of(["compile"])
    assert len(machine.launched) == 3 + 4
    assert [line.split(":")[0] for line in failures(outcome)] == ["compile"]


def test_a_gain_that_another_one_s_launches_make_fail_is_measured_again_too(machine: Machine) -> None:
    machine.phases = {"speed/compile": [3.0], "speed/no-sync": [1.0, 10.0, 10.0]}
    outcome = ladder_of(["no-sync", "compile"])
    assert machine.launched.count("speed/no-sync") == 1 + 2 + 2
    assert failures(outcome) == []


def unconfirmed(outcome: LadderResult) -> dict[str, Mark]:
    """Marks of the gains that no time was left to measure again."""
    words = "; no time was left to measure it again"
    return {h.rung.name: c.mark for h in outcome.rungs for c in h.checks if c.says.endswith(words)}


def test_no_gain_is_measured_again_after_three_minutes_of_that(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "CONFIRMING_SECONDS", 0.0)
    machine.phases = {"speed/compile": [3.0]}
    assert unconfirmed(ladder_of(["compile"])) == {"compile": Mark.INCONCLUSIVE}
    assert len(machine.launched) == 3


def test_a_gain_is_measured_again_where_that_ends_in_15_minutes_behind_all_that_came_before(machine: Machine) -> None:
    """Three launches of 10 s and the four of a confirmation are 70 s; the limit holds for each launch of a rung."""
    machine.launch_seconds = 10.0
    for before, repeat, again in (
        (LADDER_SECONDS - 70.1, 1, True),
        (LADDER_SECONDS - 69.9, 1, False),
        (2 * LADDER_SECONDS - 100.1, 2, True),
        (2 * LADDER_SECONDS - 99.9, 2, False),
    ):
        machine.launched.clear()
        machine.phases = {"speed/compile": [3.0] * repeat}
        outcome = ladder_of(["compile"], began=machine.now - before, repeat=repeat)
        assert len(machine.launched) == (3 * repeat + 4 if again else 3 * repeat)
        seen = {} if again else {"compile": Mark.INCONCLUSIVE if repeat == 1 else Mark.FAIL}
        assert unconfirmed(outcome) == seen
        once = exit_codes.PASS if again else exit_codes.INCONCLUSIVE
        assert EXIT_CODES[verdict(outcome)] == (once if repeat == 1 else exit_codes.FAIL)  # of four two are slow


def test_a_gain_that_takes_too_long_to_measure_again_leaves_a_shorter_one_its_turn(machine: Machine) -> None:
    machine.launch_seconds, machine.longer = 10.0, {"speed/speed-baseline": 90.0}
    begun = machine.now
    ladder_of(["batch", "compile"])
    rungs, first = len(machine.launched), machine.now - begun
    machine.launched.clear()
    machine.phases = {"speed/batch": [30.0], "speed/compile": [3.0]}
    outcome = ladder_of(["batch", "compile"], began=machine.now - (LADDER_SECONDS - first - 100.0))
    assert machine.launched[rungs:].count("speed/compile") == 2
    assert "speed/batch" not in machine.launched[rungs:]
    assert unconfirmed(outcome) == {"batch": Mark.INCONCLUSIVE}
    assert failures(outcome) == []


def test_leave_one_out_runs_have_their_time_before_a_gain_is_measured_again(machine: Machine) -> None:
    """One takes as long as the top of its track, less the steps that one of memory does not do."""
    names = [rung.name for rung in RUNGS if not rung.needs]
    top = results_of(ladder_of(names, leave_one_out=True))["fsdp-4"].measured
    assert top is not None
    rungs, runs, fewer = (sum(part in label for label in machine.launched) for part in ("/", "without", "memory/top"))
    assert 0 < fewer < runs < rungs == len(machine.launched)
    machine.launch_seconds = 10.0
    needed = 10.0 * rungs - fewer * (STEPS - LEAST_STEPS) * top.step_seconds
    for spare, again in ((40.1, 4), (39.9, 0)):
        machine.launched.clear()
        machine.phases = {"speed/compile": [3.0]}
        ladder_of(names, leave_one_out=True, began=machine.now - (LADDER_SECONDS - needed - spare))
        assert len(machine.launched) == rungs + again


def test_a_launch_that_crashes_while_a_gain_is_measured_again_is_named_and_counts_for_nothing(machine: Machine) -> None:
    machine.phases = {"speed/compile": [3.0]}
    machine.crashes_at = 6
    outcome = ladder_of(["compile"])
    assert len(machine.launched) == 6
    one = results_of(outcome)["compile"]
    assert one.failed == "measured again: crashed: made up; record record"
    assert one.measured is not None
    assert one.measured.launches == 1


def test_an_interrupt_while_a_gain_is_measured_again_ends_the_run(machine: Machine) -> None:
    machine.phases = {"speed/compile": [3.0] * 9}
    machine.interrupts_at = 4
    outcome = ladder_of(["compile"])
    assert outcome.interrupted
    assert len(machine.launched) == 4
