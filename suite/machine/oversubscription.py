"""A machine profile for more ranks than processors, which take turns on them."""

from __future__ import annotations

import msgspec

from suite.machine.operations import COLLECTIVES
from suite.machine.timing_tables import Line, Measured, Subject, scaled


class Oversubscribed:
    """What ranks that share cores take to compute: as long as one for each core, times ranks over cores.

    Timed, it would not be seen: of operators that take microseconds, most are over before the scheduler takes the core
    away, and their median is that of a rank that has it. The turns of the others come between operators, and where one
    rank waits for another's message. Messages are taken as they were measured, with as many ranks.
    """

    def __init__(self, measured: Measured, *, cores: int) -> None:
        self._measured = measured
        self._cores = cores

    def seconds(self, subject: Subject, *sizes: float) -> float:
        """Seconds of one call."""
        own, turns = self._one_a_core(subject)
        return turns * self._measured.seconds(own, *sizes)

    def line(self, subject: Subject) -> Line:
        """Latency and bandwidth."""
        own, turns = self._one_a_core(subject)
        return scaled(self._measured.line(own), turns)

    def _one_a_core(self, subject: Subject) -> tuple[Subject, float]:
        """With as many ranks as cores, and how many of them take turns on each."""
        if subject.operation in COLLECTIVES or subject.ranks <= self._cores:
            return subject, 1.0
        return msgspec.structs.replace(subject, ranks=self._cores), subject.ranks / self._cores
