"""A machine profile for more ranks than cores: CPU oversubscription."""

from __future__ import annotations

import msgspec

from suite.machine.operations import COLLECTIVES
from suite.machine.timing_tables import Line, MeasuredTimes, Subject, scaled


class Oversubscribed:
    """A profile for ranks that share cores: computation takes the time with one rank a core, times ranks over cores.

    Timing oversubscribed ranks would not show this. Most operators take microseconds and end before the scheduler takes
    the core away, so their median is the time of a rank that has the core. Other ranks run between operators, and while
    a rank waits for a message. Messages keep the time that was measured with the same number of ranks.
    """

    def __init__(self, measured: MeasuredTimes, *, cores: int) -> None:
        self._measured = measured
        self._cores = cores

    def seconds(self, subject: Subject, *sizes: float) -> float:
        """Seconds of one call."""
        per_core, ranks_per_core = self._one_rank_per_core(subject)
        return ranks_per_core * self._measured.seconds(per_core, *sizes)

    def line(self, subject: Subject) -> Line:
        """Latency and bandwidth."""
        per_core, ranks_per_core = self._one_rank_per_core(subject)
        return scaled(self._measured.line(per_core), ranks_per_core)

    def _one_rank_per_core(self, subject: Subject) -> tuple[Subject, float]:
        """The subject with one rank per core, and the number of ranks that share a core."""
        if subject.operation in COLLECTIVES or subject.ranks <= self._cores:
            return subject, 1.0
        return msgspec.structs.replace(subject, ranks=self._cores), subject.ranks / self._cores
