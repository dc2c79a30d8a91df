"""Rows of a stored benchmark: median seconds, share of the copy's bandwidth, and ratios with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy

from benchmarks.kernels.case import OURS, PLAIN
from suite.machine.timings import median

RESAMPLES = 2000
CONFIDENCE = 0.95
SEED = 1


class Ratio(NamedTuple):
    """Seconds of another function over ours: above 1 ours is faster."""

    ratio: float
    low: float
    high: float


class KernelTiming(msgspec.Struct, frozen=True):
    """One function in one pass of one case.

    Args:
        which: the pass.
        over: name of the size that the plot is over, and `size` its value.
        share: of the copy's bandwidth in the same turns: least bytes / seconds / that.
        host_seconds: until the host has handed the call over; None on a CPU.
        ours: whether it is the kernel, or on a CPU the plain reference in its place.
        ratio: to ours; None where ours was not timed, or is this one.
    """

    kernel: str
    variant: str
    which: str = msgspec.field(name="pass")
    dtype: str
    sizes: Mapping[str, int]
    over: str
    form: str
    seconds: float
    rounds: int
    share: float
    copy_bytes_per_second: float
    host_seconds: float | None
    ratio: Ratio | None

    @property
    def ours(self) -> bool:
        return self.form in (OURS, PLAIN)

    @property
    def size(self) -> int:
        return self.sizes[self.over]

    @property
    def point(self) -> tuple[object, ...]:
        """What the rows of all functions of one pass of one case share."""
        return (self.kernel, self.variant, self.which, self.dtype, *self.sizes.items())


def rows(record: Mapping[str, Any]) -> list[KernelTiming]:
    """All rows of a stored benchmark, in its order."""
    base = {
        stored["group"]: stored["stats"]["data"]
        for stored in record["benchmarks"]
        if stored["extra_info"]["form"] in (OURS, PLAIN)
    }
    return [_row(stored, base.get(stored["group"])) for stored in record["benchmarks"]]


def _row(stored: Mapping[str, Any], ours: Sequence[float] | None) -> KernelTiming:
    facts, samples = stored["extra_info"], stored["stats"]["data"]
    seconds = median(samples)
    computed = {
        "seconds": seconds,
        "rounds": len(samples),
        "share": facts["least_bytes"] / seconds / facts["copy_bytes_per_second"],
        "ratio": None if ours is None or facts["form"] in (OURS, PLAIN) else ratio(samples, ours),
    }
    return msgspec.convert(facts | computed, KernelTiming)


def ratio(others: Sequence[float], ours: Sequence[float]) -> Ratio:
    """Median of others' samples over that of ours, and its 95 % interval by the bootstrap.

    Samples of one round belong together, so rounds are drawn, with replacement and as many as there are; the interval
    is between the 2.5 % and 97.5 % quantiles of the ratios of 2000 such draws.

    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13 (percentile interval). It is of the
    rounds of one process: another launch may lie outside.
    """
    pairs = numpy.array([others, ours])
    drawn = numpy.random.default_rng(SEED).integers(0, pairs.shape[1], (RESAMPLES, pairs.shape[1]))
    other, own = numpy.median(pairs[:, drawn], axis=2)
    low, high = numpy.quantile(other / own, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Ratio(median(others) / median(ours), float(low), float(high))
