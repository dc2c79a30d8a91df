"""Purposes of the steps of a run."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from suite.execute.training.step_plan import StepPlan, StepPurpose
from suite.job.events import StepKind
from suite.job.training_job import LEAST_PROFILED, LEAST_STEPS

COUNTS = [StepPurpose.COLLECTIVES, StepPurpose.PEAK, StepPurpose.FLOP]


def purposes(
    steps: int,
    *,
    first: int = 0,
    rehearsed: bool = False,
    warm_up: int = 2,
    skipped: Collection[int] = (),
    exact: Collection[int] = (),
) -> list[StepPurpose]:
    """Purposes of all steps, where those numbered in `skipped` overflow, and those in `exact` average exactly."""
    plan = StepPlan(steps=steps, warm_up_steps=warm_up, first=first, rehearsed=rehearsed)
    planned = []
    for step in plan.numbers:
        planned.append(plan.purpose(step, averages_as_asked=step not in exact))
        plan.done(planned[-1], skipped=step in skipped)
    return planned


def test_a_run_warms_up_counts_three_times_is_timed_and_profiles_its_last_two_steps() -> None:
    warm_up, profiled = [StepPurpose.FIRST, StepPurpose.WARM_UP], [StepPurpose.PROFILED] * 2
    assert purposes(10) == [*warm_up, *COUNTS, *[StepPurpose.TIMED] * 3, *profiled]
    assert purposes(11, warm_up=4)[4:] == [*COUNTS, *[StepPurpose.TIMED] * 2, *profiled]


def test_only_a_run_that_times_a_step_before_them_has_profiled_steps() -> None:
    assert purposes(LEAST_PROFILED)[-3:] == [StepPurpose.TIMED, StepPurpose.PROFILED, StepPurpose.PROFILED]
    assert purposes(LEAST_PROFILED - 1)[-2:] == [StepPurpose.TIMED] * 2
    assert purposes(LEAST_STEPS)[-1] is StepPurpose.TIMED


def test_a_training_that_goes_on_ends_with_the_step_that_was_asked_for() -> None:
    assert purposes(16, first=8) == purposes(8)
    assert purposes(16, first=10) == purposes(6)
    assert purposes(16, first=12) == [StepPurpose.FIRST, *[StepPurpose.WARM_UP] * 3]
    assert purposes(16, first=12, rehearsed=True) == [*COUNTS, StepPurpose.TIMED]
    assert purposes(16, first=13, rehearsed=True) == [StepPurpose.FIRST, *[StepPurpose.WARM_UP] * 2]
    assert purposes(16, first=16) == []


def test_a_step_that_an_overflow_skips_counts_nothing() -> None:
    planned = purposes(10, skipped={3, 4})
    assert planned[2:8] == [StepPurpose.COLLECTIVES, *[StepPurpose.PEAK] * 3, StepPurpose.FLOP, StepPurpose.TIMED]
    assert purposes(8, skipped=range(2, 8))[2:] == [StepPurpose.COLLECTIVES] * 6
    late = purposes(10, skipped=range(2, 6))  # profiled steps wait for a timed one
    assert late[-2:] == [StepPurpose.FLOP, StepPurpose.TIMED]


def test_steps_that_average_exactly_in_a_run_that_mostly_does_not_warm_up() -> None:
    planned = purposes(12, exact={2, 6})
    assert planned[2:8] == [StepPurpose.WARM_UP, *COUNTS, StepPurpose.WARM_UP, StepPurpose.TIMED]


@pytest.mark.parametrize(
    ("purpose", "kind"), [(StepPurpose.FIRST, StepKind.WARM_UP), (StepPurpose.FLOP, StepKind.COUNTED)]
)
def test_every_purpose_is_reported_as_a_kind(purpose: StepPurpose, kind: StepKind) -> None:
    assert purpose.kind is kind
    assert {one.kind for one in StepPurpose} == set(StepKind)
