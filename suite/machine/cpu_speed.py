"""CPU speed: the seconds of fixed reference kernels now, compared with those in the machine's calibration."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec

from suite.machine.operations import OPERATIONS, OperationKind
from suite.machine.timing_tables import Line, MeasuredTimes, Subject, engine_seconds_of_operator, scaled
from suite.machine.timings import Positive

PRODUCT, ELEMENTWISE, MEMORY = "product", "elementwise", "memory"  # reference kernels of a sample, besides host calls


class SpeedSample(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of each reference kernel on a rank; or ratios of two such samples (see `slowdown`).

    The speed of a processor changes. Its clock changes. A virtual processor also shares a core with the other hardware
    thread, whose load no counter of the system reports ("steal" does not).

    Args:
        host: calls of PyTorch that compute almost nothing.
        product: a matrix product in the caches, with the rank's threads.
        elementwise: an element-wise function in the caches, with the rank's threads.
        memory: an element-wise operator that reads and writes memory, with the rank's threads.
    """

    host: Positive
    product: Positive
    elementwise: Positive
    memory: Positive


_KERNELS = SpeedSample.__struct_fields__


def middle(samples: Sequence[SpeedSample]) -> SpeedSample | None:
    """The median of each reference kernel over samples; None without samples."""
    return _each(samples, statistics.median) if samples else None


def over_ranks(of_ranks: Sequence[SpeedSample]) -> SpeedSample | None:
    """The mean of each reference kernel over ranks; None without samples."""
    return _each(of_ranks, statistics.fmean) if of_ranks else None


def slowdown(now: SpeedSample, calibrated: SpeedSample) -> SpeedSample:
    """Seconds of each reference kernel now, over its seconds in the calibration: 2 is half as fast."""
    return SpeedSample(**{name: getattr(now, name) / getattr(calibrated, name) for name in _KERNELS})


def _each(samples: Sequence[SpeedSample], mean: Callable[[list[float]], float]) -> SpeedSample:
    return SpeedSample(**{name: mean([getattr(sample, name) for sample in samples]) for name in _KERNELS})


def kind(subject: Subject) -> OperationKind:
    """The kind of the subject's operation, which decides the reference kernel that its seconds scale with."""
    return OPERATIONS[subject.operation].kind


class AtCpuSpeed:
    """A machine profile corrected for another CPU speed: the seconds of an operation times the slowdown of its kind.

    The host's own code sends and adds messages between processors, so collectives scale as host calls. So does the
    host's part in the timing of a backward operator (`engine_seconds_of_operator`). Operators bound by memory scale as
    element-wise ones, although memory does not slow down with the processors: predictions came no nearer with the
    memory kernel's slowdown.
    """

    def __init__(self, measured: MeasuredTimes, cpu_slowdown: SpeedSample) -> None:
        self._measured = measured
        self._slowdowns = {
            OperationKind.HOST: cpu_slowdown.host,
            OperationKind.COLLECTIVE: cpu_slowdown.host,
            OperationKind.PRODUCT: cpu_slowdown.product,
            OperationKind.ELEMENTWISE: cpu_slowdown.elementwise,
        }

    def seconds(self, subject: Subject, *sizes: float) -> float:
        """Seconds of one call."""
        seconds = self._measured.seconds(subject, *sizes)
        host_seconds = 0.0
        if subject.variant == "backward":
            host_seconds = min(seconds, engine_seconds_of_operator(self._measured, ranks=subject.ranks))
        return self._slowdowns[OperationKind.HOST] * host_seconds + self._factor(subject) * (seconds - host_seconds)

    def line(self, subject: Subject) -> Line:
        """Latency and bandwidth."""
        return scaled(self._measured.line(subject), self._factor(subject))

    def _factor(self, subject: Subject) -> float:
        return self._slowdowns[kind(subject)]
