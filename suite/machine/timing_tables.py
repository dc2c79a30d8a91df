"""Measured seconds: tables of points with interpolation between them, and lines of latency plus bandwidth."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import product
from typing import Protocol

import msgspec

from suite.machine.operations import COLLECTIVES
from suite.machine.timings import Timing, median


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A timed operation without its sizes.

    Args:
        operation: of `suite.machine.operations`, for instance "product"; see docs/calibration.md.
        variant: NN, NT or TN of a product; forward or backward of an operation with autograd.
        dtype: of the tensors: fp32, bf16 or fp16.
        ranks: that run it at once; for a collective, the ranks of its group.
        compiled: by torch.compile; otherwise it runs eagerly.
    """

    operation: str
    variant: str = ""
    dtype: str = "fp32"
    ranks: int = 1
    compiled: bool = False

    def __str__(self) -> str:
        words = (self.operation, self.variant, self.dtype, "compiled" if self.compiled else "", f"{self.ranks} ranks")
        return " ".join(word for word in words if word)


class Axis(msgspec.Struct, frozen=True):
    """One size that was varied.

    Args:
        points: increasing.
        power: seconds grow with this power of the size.
    """

    name: str
    points: tuple[float, ...]
    power: float = 1.0


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one subject on a grid of sizes.

    Args:
        timings: the last axis varies fastest.
    """

    subject: Subject
    axes: tuple[Axis, ...]
    timings: tuple[Timing, ...]

    def seconds(self, sizes: Sequence[float]) -> float:
        """Seconds at `sizes`, one per axis.

        The interpolation is multilinear in the sizes, each raised to its axis's power. It is exact at the points, and
        between the corners' extremes inside a cell. It is exact everywhere for a fixed time plus products of different
        sizes: a product's c + M N K / rate + (M K + K N + M N) / bandwidth, a rate that saturates as K / (K + k), or
        latency plus bandwidth. (In logarithms such a law is convex, and interpolation too slow.) Below the first point
        of an axis the time is that point's, because a call has a least time. Beyond the last point it grows with the
        axis's power.
        """
        factor = 1.0
        corners: list[list[tuple[int, float]]] = []
        for axis, size in zip(self.axes, sizes, strict=True):
            if size > axis.points[-1]:
                factor *= (size / axis.points[-1]) ** axis.power
            corners.append(_corners(axis, size))
        seconds = 0.0
        for corner in product(*corners):
            flat_index, weight = 0, 1.0
            for axis, (index, share) in zip(self.axes, corner, strict=True):
                flat_index = flat_index * len(axis.points) + index
                weight *= share
            seconds += weight * self.timings[flat_index].seconds
        return factor * seconds

    def distance(self, sizes: Sequence[float]) -> float:
        """Distance of `sizes` from the grid, as a sum of logarithms; 0 inside."""
        return sum(
            max(0.0, math.log(axis.points[0] / size), math.log(size / axis.points[-1]))
            for axis, size in zip(self.axes, sizes, strict=True)
        )


def _corners(axis: Axis, size: float) -> list[tuple[int, float]]:
    """Indices of the axis's points around `size` and their weights."""
    points = axis.points
    if size <= points[0]:
        return [(0, 1.0)]
    if size >= points[-1]:
        return [(len(points) - 1, 1.0)]
    first = bisect_right(points, size) - 1
    low, high = points[first] ** axis.power, points[first + 1] ** axis.power
    share = (size**axis.power - low) / (high - low)
    return [(first, 1 - share), (first + 1, share)] if share else [(first, 1.0)]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one subject over one size, and the straight line through them.

    Args:
        unit: of the size: byte, tensor or call.
        fixed_seconds: the latency of the line.
        seconds_per_unit: one over the bandwidth of the line.
        residual: median over the points of |line / measured - 1|; `worst` its maximum.
    """

    subject: Subject
    unit: str
    sizes: tuple[float, ...]
    timings: tuple[Timing, ...]
    fixed_seconds: float
    seconds_per_unit: float
    residual: float
    worst: float

    @property
    def units_per_second(self) -> float:
        """The line's bandwidth; infinite if no size took longer than another."""
        return 1 / self.seconds_per_unit if self.seconds_per_unit else math.inf

    def seconds(self, size: float) -> float:
        """Measured seconds, linear between neighbouring points (see `Table.seconds`)."""
        return Table(subject=self.subject, axes=(Axis("size", self.sizes),), timings=self.timings).seconds([size])


def scaled(line: Line, factor: float) -> Line:
    """The line with all seconds multiplied by `factor`."""
    timings = tuple(
        Timing(factor * t.seconds, factor * t.median, factor * t.low, factor * t.high, t.repetitions, t.warm_up)
        for t in line.timings
    )
    return msgspec.structs.replace(
        line,
        timings=timings,
        fixed_seconds=factor * line.fixed_seconds,
        seconds_per_unit=factor * line.seconds_per_unit,
    )


class MeasuredTimes(Protocol):
    """The interface of a machine profile for predictions."""

    def seconds(self, subject: Subject, *sizes: float) -> float:
        """Seconds of one call."""

    def line(self, subject: Subject) -> Line:
        """Latency and bandwidth."""


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


def engine_seconds_of_operator(measured: MeasuredTimes, *, ranks: int) -> float:
    """Seconds of the engine's start and the node that are included in the timing of a backward operator.

    Raises:
        InputError: they were not measured as a line.
    """
    line = measured.line(Subject(operation="engine", variant="backward", ranks=ranks))
    return line.seconds(1)


def fitted(subject: Subject, unit: str, sizes: Sequence[float], timings: Sequence[Timing]) -> Line:
    """The measured points of distinct sizes, with a straight line: the least sum of squared relative errors of all
    lines through the largest size's point.

    The line passes through the largest size, because that size defines the bandwidth and larger sizes are predicted
    from it. A fit with both parameters free follows the short messages, whose seconds vary most.

    With X and Y of the largest point, u = 1 - x / X, v = Y x / X:
        fixed    = (sum of u (y - v) / y^2) / (sum of u^2 / y^2)
        per_unit = (Y - fixed) / X
    A negative fixed part becomes 0. If the fixed part is Y or more, to rounding, the largest size takes no longer than
    the others: then `per_unit` is 0, and the fixed part is fitted to all points.

    Raises:
        ValueError: fewer than two sizes.
    """
    if len(set(sizes)) < 2:
        raise ValueError(f"a line needs two sizes, got {list(sizes)}")
    points = [(size, timing.seconds) for size, timing in zip(sizes, timings, strict=True)]
    largest, longest = max(points)
    shares = [(1 - x / largest, longest * x / largest, y) for x, y in points]
    fixed = sum(u * (y - v) / y**2 for u, v, y in shares) / sum((u / y) ** 2 for u, _, y in shares)
    if fixed < longest * (1 - 1e-12):
        fixed = max(0.0, fixed)
        per_unit = (longest - fixed) / largest
    else:
        fixed, per_unit = sum(1 / y for _, y in points) / sum(1 / y**2 for _, y in points), 0.0
    errors = [abs((fixed + per_unit * x) / y - 1) for x, y in points]
    return Line(
        subject=subject,
        unit=unit,
        sizes=tuple(sizes),
        timings=tuple(timings),
        fixed_seconds=fixed,
        seconds_per_unit=per_unit,
        residual=median(errors),
        worst=max(errors),
    )
