"""A rank's step as terms, from seconds of its phases and their shares in a profile."""

from __future__ import annotations

import pytest

from suite.execute.measure.phases import Part
from suite.execute.measure.timeline import Shares, term_seconds
from suite.metrics.figures import StepTerm

SECOND = 10**9
NOTHING = {part: Shares() for part in Part}


def terms(
    step: float, phases: dict[Part, float], shares: dict[Part, Shares], *, profiled_steps: int = 1
) -> dict[str, float]:
    """Of one timed step: the terms that are not 0."""
    told = term_seconds([step], [dict.fromkeys(Part, 0.0) | phases], NOTHING | shares, profiled_steps=profiled_steps)
    assert list(told) == [term.value for term in StepTerm]
    assert sum(told.values()) == pytest.approx(step, rel=1e-12)
    return {term: value for term, value in told.items() if abs(value) > 1e-12}


def test_loading_and_copying_are_terms_as_they_are_and_what_lies_between_phases_is_unexplained() -> None:
    phases = {Part.DATA_LOADING: 0.5, Part.HOST_DEVICE_COPY: 0.25}
    assert terms(1.0, phases, {}) == {"data loading": 0.5, "host-device copy": 0.25, "unexplained": 0.25}


def test_profiling_costs_overhead_and_no_compute() -> None:
    share = Shares(compute=2 * SECOND, communication=SECOND, overhead=4 * SECOND)  # two seconds longer than timed
    told = terms(5.0, {Part.FORWARD: 5.0}, {Part.FORWARD: share})
    assert told == {"forward": 2.0, "exposed communication": 1.0, "launch and host overhead": 2.0}


def test_overhead_is_not_below_zero_and_the_parts_are_scaled_to_the_phase() -> None:
    share = Shares(compute=6 * SECOND, communication=2 * SECOND, overhead=SECOND)
    told = terms(4.0, {Part.BACKWARD: 4.0}, {Part.BACKWARD: share})
    assert told == {"backward": 3.0, "exposed communication": 1.0}


def test_a_phase_that_was_faster_under_the_profiler_is_scaled_up() -> None:
    told = terms(4.0, {Part.UPDATE: 4.0}, {Part.UPDATE: Shares(compute=SECOND, copy=SECOND)})
    assert told == {"host-device copy": 2.0, "optimizer": 2.0}


def test_shares_are_of_all_profiled_steps() -> None:
    share = Shares(compute=4 * SECOND, overhead=2 * SECOND)
    told = terms(3.0, {Part.FORWARD: 3.0}, {Part.FORWARD: share}, profiled_steps=2)
    assert told == {"forward": 2.0, "launch and host overhead": 1.0}


def test_a_phase_that_the_profile_does_not_show_is_overhead() -> None:
    assert terms(1.0, {Part.FORWARD: 1.0}, {}) == {"launch and host overhead": 1.0}


def test_what_a_stage_waits_is_the_bubble() -> None:
    phases = {Part.PIPELINE: 8.0, Part.FORWARD: 2.0, Part.BACKWARD: 3.0}
    shares = {Part.FORWARD: Shares(compute=SECOND), Part.BACKWARD: Shares(compute=SECOND)}
    assert terms(8.0, phases, shares) == {"forward": 2.0, "backward": 3.0, "bubble": 3.0}


def test_phases_of_a_median_step_are_their_mean_shares_of_it() -> None:
    steps = [1.0, 2.0, 4.0]
    phases = [dict.fromkeys(Part, 0.0) | {Part.DATA_LOADING: seconds} for seconds in (0.1, 0.4, 1.2)]
    told = term_seconds(steps, phases, NOTHING, profiled_steps=1)
    assert told["data loading"] == pytest.approx(2.0 * (0.1 + 0.2 + 0.3) / 3)
    assert told["unexplained"] == pytest.approx(2.0 - 0.4)
