"""Purpose of each step of a run: warm-up, one of three counts, the clock, or the profiler."""

from __future__ import annotations

import enum

from suite.job.events import StepKind
from suite.job.training_job import COUNTED_STEPS, LEAST_STEPS, PROFILED_STEPS, WARM_UP_STEPS


class StepPurpose(enum.Enum):
    """Purpose of one step, and the kind as which it is reported."""

    FIRST = "DistributedDataParallel arranges its buckets", StepKind.WARM_UP
    WARM_UP = "warm-up", StepKind.WARM_UP
    COLLECTIVES = "count collectives and synchronisations", StepKind.COUNTED
    PEAK = "find the peak of memory", StepKind.COUNTED
    FLOP = "count flop", StepKind.COUNTED
    TIMED = "timed", StepKind.TIMED
    PROFILED = "profiled", StepKind.PROFILED

    @property
    def kind(self) -> StepKind:
        return self.value[1]

    @property
    def eager(self) -> bool:
        """Whether the step runs without compiled blocks.

        The first does because DistributedDataParallel arranges its buckets in the order in which gradients become ready
        in the first backward pass; those of a compiled block become ready all at once, in an arbitrary order. The
        others do because a counter sees operators, not compiled regions.
        """
        return self in (StepPurpose.FIRST, StepPurpose.PEAK, StepPurpose.FLOP)


class StepPlan:
    """Decides step by step, because an overflow may skip a counted step, and exact averaging may last longer.

    Of a training that goes on with step `first`, what is left has the same purposes. Where that is too little, nothing
    warms up if a step was `rehearsed` before the first; where that does not suffice, no step is counted or timed.

    The peak of memory has a step of its own: under a counter DTensor takes up to 8 % less on two tensor-parallel ranks.
    """

    def __init__(self, *, steps: int, warm_up_steps: int, first: int = 0, rehearsed: bool = False) -> None:
        self.first = first
        self.numbers = range(first, steps)
        self._steps = len(self.numbers)
        self._warm_up_steps = max(WARM_UP_STEPS, warm_up_steps - first)
        self._to_count = [StepPurpose.COLLECTIVES, StepPurpose.PEAK, StepPurpose.FLOP]
        self._timed = 0
        if first and self._steps < LEAST_STEPS:
            self._warm_up_steps = 0 if rehearsed and self._steps > COUNTED_STEPS else LEAST_STEPS

    def purpose(self, step: int, *, averages_as_asked: bool) -> StepPurpose:
        """Purpose of `step`; `averages_as_asked`: whether gradients are averaged as the job says, not yet exactly."""
        step -= self.first
        if step == 0 and self._warm_up_steps:
            return StepPurpose.FIRST
        if step < self._warm_up_steps or not averages_as_asked:
            return StepPurpose.WARM_UP
        if self._to_count:
            return self._to_count[0]
        # a step must be timed before the profiled ones
        profiles = self._steps >= self._warm_up_steps + COUNTED_STEPS + 1 + PROFILED_STEPS
        if self._timed and profiles and step >= self._steps - PROFILED_STEPS:
            return StepPurpose.PROFILED
        return StepPurpose.TIMED

    def done(self, purpose: StepPurpose, *, skipped: bool) -> None:
        """A step ended. If it was skipped, the next step counts instead."""
        self._timed += purpose is StepPurpose.TIMED
        if purpose in self._to_count and not skipped:
            self._to_count.remove(purpose)
