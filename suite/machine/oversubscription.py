"""A machine profile for more ranks than cores: CPU oversubscription."""

from __future__ import annotations

import msgspec

from suite.machine.operations import COLLECTIVES
from suite.machine.timing_tables import Line, MeasuredTimes, Subject, scaled


class Oversubscribed:
    """What ranks that share cores take to compute: as long as one for each core, times ranks over cores.

    Timed, it would not be seen: of operators that take microseconds, most are over before the scheduler takes the core
    away, and their median is that of a rank that has it. Other ranks run between operators, and where a rank waits for
    another's message. Messages are taken as they were measured, with as many ranks.
    """

    def __init__(self, measured: MeasuredTimes, *, cores: int) -> None:
        self._measured = measured
        self._cores = cores

    def seconds(self, subject: Subject, *sizes: float) -> float:
        """Seconds of one call."""
        alone, ranks = self._one_a_core(subject)
        return ranks * self._measured.seconds(alone, *sizes)

    def line(self, subject: Subject) -> Line:
        """Latency and bandwidth."""
        alone, ranks = self._one_a_core(subject)
        return scaled(self._measured.line(alone), ranks)

    def _one_a_core(self, subject: Subject) -> tuple[Subject, float]:
        """The subject with one rank a core, and how many ranks share each core."""
        if subject.operation in COLLECTIVES or subject.ranks <= self._cores:
            return subject, 1.0
        return msgspec.structs.replace(subject, ranks=self._cores), subject.ranks / self._cores
