"""CPU speed: how long a machine's processors take for fixed work now, against when the machine was calibrated."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec

from suite.machine.operations import OPERATIONS, OperationKind
from suite.machine.timing_tables import Line, MeasuredTimes, Subject, engine_seconds_of_operator, scaled
from suite.machine.timings import Positive

PRODUCT, ELEMENTWISE, MEMORY = "product", "elementwise", "memory"  # reference kernels of a sample


class SpeedSample(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that a rank takes for fixed pieces of work; or each over what it took before, in `slowdown`.

    Processors differ from themselves: by their clocks, and where they are virtual by whose work runs on the other
    hardware thread of the same core, which no counter of the system tells ("steal" does not). On a virtual machine of 2
    cores a loop of Python took 57 us or 105 us, changing several times a second (AMD EPYC, 2026-11-22).

    Args:
        host: of calls of PyTorch that compute almost nothing.
        product: of a matrix product in the caches, with the rank's threads.
        elementwise: of an element-wise function in the caches, likewise.
        memory: of an element-wise operator that reads and writes memory, likewise.
    """

    host: Positive
    product: Positive
    elementwise: Positive
    memory: Positive


def middle(laps: Sequence[SpeedSample]) -> SpeedSample | None:
    """The median of each piece over laps; None without any."""
    return _each(laps, statistics.median) if laps else None


def over_ranks(paces: Sequence[SpeedSample]) -> SpeedSample | None:
    """The mean of each piece over ranks; None without any."""
    return _each(paces, statistics.fmean) if paces else None


def slowdown(now: SpeedSample, calibrated: SpeedSample) -> SpeedSample:
    """How many times as long each piece takes now as when the machine was calibrated."""
    return SpeedSample(
        host=now.host / calibrated.host,
        product=now.product / calibrated.product,
        elementwise=now.elementwise / calibrated.elementwise,
        memory=now.memory / calibrated.memory,
    )


def _each(paces: Sequence[SpeedSample], mean: Callable[[list[float]], float]) -> SpeedSample:
    return SpeedSample(
        host=mean([pace.host for pace in paces]),
        product=mean([pace.product for pace in paces]),
        elementwise=mean([pace.elementwise for pace in paces]),
        memory=mean([pace.memory for pace in paces]),
    )


def kind(subject: Subject) -> OperationKind:
    """What the seconds of a subject go with."""
    return OPERATIONS[subject.operation].kind


class AtCpuSpeed:
    """A machine profile as it would be, had the processors had another pace: all seconds of a kind times its slowdown.

    Messages between processors are sent, and added, by the host's own code: they count as host, and so does what the
    timing of a backward operator has of it (`engine_seconds_of_operator`). Operators bound by memory count as
    element-wise ones, although memory does not slow down with the processors: by memory's own pace 28 steps came out
    9.9 % off in the median and 31.4 % at most, by the element-wise one 9.9 and 30.0 %, unscaled 14.0 and 35.4 %
    (2026-11-23).
    """

    def __init__(self, measured: MeasuredTimes, slower: SpeedSample) -> None:
        self._measured = measured
        self._times = {
            OperationKind.HOST: slower.host,
            OperationKind.COLLECTIVE: slower.host,
            OperationKind.PRODUCT: slower.product,
            OperationKind.ELEMENTWISE: slower.elementwise,
        }

    def seconds(self, subject: Subject, *sizes: float) -> float:
        """Seconds of one call."""
        seconds = self._measured.seconds(subject, *sizes)
        of_host = 0.0
        if subject.variant == "backward":
            of_host = min(seconds, engine_seconds_of_operator(self._measured, ranks=subject.ranks))
        return self._times[OperationKind.HOST] * of_host + self._factor(subject) * (seconds - of_host)

    def line(self, subject: Subject) -> Line:
        """Latency and bandwidth."""
        return scaled(self._measured.line(subject), self._factor(subject))

    def _factor(self, subject: Subject) -> float:
        return self._times[kind(subject)]
