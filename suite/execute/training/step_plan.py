"""What each step of a run is for: warm-up, one of three counts, the clock, or the profiler."""

from __future__ import annotations

import enum

from suite.job.events import StepKind
from suite.job.training_job import COUNTED_STEPS, PROFILED_STEPS


class Purpose(enum.Enum):
    """What one step is for."""

    FIRST = "DistributedDataParallel arranges its buckets"
    WARM_UP = "warm-up"
    COLLECTIVES = "count collectives and synchronisations"
    PEAK = "find the peak of memory"
    FLOP = "count flop"
    TIMED = "timed"
    PROFILED = "profiled"

    @property
    def kind(self) -> StepKind:
        """As which the step is reported."""
        return _KINDS[self]

    @property
    def eager(self) -> bool:
        """Whether the step runs without compiled blocks.

        The first does because DistributedDataParallel arranges its buckets in the order in which the first backward
        pass makes gradients ready, and a compiled block makes all of its own ready at once, in the arbitrary order of a
        heap. The others do because a counter sees operators, not compiled regions.
        """
        return self in (Purpose.FIRST, Purpose.PEAK, Purpose.FLOP)


_KINDS = {
    Purpose.FIRST: StepKind.WARM_UP,
    Purpose.WARM_UP: StepKind.WARM_UP,
    Purpose.COLLECTIVES: StepKind.COUNTED,
    Purpose.PEAK: StepKind.COUNTED,
    Purpose.FLOP: StepKind.COUNTED,
    Purpose.TIMED: StepKind.TIMED,
    Purpose.PROFILED: StepKind.PROFILED,
}


class StepPlan:
    """Decides step after step: an overflow skips a step that was to count, exact averaging may last longer than asked.

    The peak of memory has a step of its own because DTensor takes other ways under a counter: up to 8 % less memory on
    two tensor-parallel ranks.
    """

    def __init__(self, *, steps: int, warm_up_steps: int) -> None:
        self._steps = steps
        self._warm_up_steps = warm_up_steps
        self._to_count = [Purpose.COLLECTIVES, Purpose.PEAK, Purpose.FLOP]
        self._timed = 0

    def purpose(self, step: int, *, averages_as_asked: bool) -> Purpose:
        """What `step` is for.

        Args:
            averages_as_asked: whether gradients are averaged as the job says, no longer exactly.
        """
        if step == 0:
            return Purpose.FIRST
        if step < self._warm_up_steps or not averages_as_asked:
            return Purpose.WARM_UP
        if self._to_count:
            return self._to_count[0]
        if self._timed and self._is_profiled and step >= self._steps - PROFILED_STEPS:
            return Purpose.PROFILED
        return Purpose.TIMED

    def done(self, purpose: Purpose, *, skipped: bool) -> None:
        """A step ended; a skipped one counts nothing, and the next step counts in its place."""
        self._timed += purpose is Purpose.TIMED
        if purpose in self._to_count and not skipped:
            self._to_count.remove(purpose)

    @property
    def _is_profiled(self) -> bool:
        """Whether a step is timed before the profiled ones."""
        return self._steps >= self._warm_up_steps + COUNTED_STEPS + 1 + PROFILED_STEPS
