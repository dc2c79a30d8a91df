"""What repetitions of a call come to: over rounds, and over the ranks that measured at once."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]
MOST_MEDIANS = 2.0  # of its point, that a sample counts as


class Repetitions(msgspec.Struct, frozen=True, array_like=True):
    """One point, timed by one rank in one round.

    Args:
        seconds: of every call behind the warm-up.
        warm_up: calls before.
    """

    seconds: tuple[Positive, ...]
    warm_up: int


class Timing(msgspec.Struct, frozen=True, array_like=True):
    """One timed point, over all rounds.

    Args:
        seconds: of one rank `usual` of its repetitions; of several see `over_ranks`.
        median, low, high: 50 %, 20 % and 80 % quantiles of the repetitions; of several ranks as `seconds`, the lowest
            and the highest.
        repetitions: of the first rank.
        warm_up: calls before them, in the first round.
    """

    seconds: Positive
    median: Positive
    low: Positive
    high: Positive
    repetitions: int
    warm_up: int


def usual(samples: Sequence[float]) -> float:
    """The mean of samples, each counted at most as twice their median; of an even number the lower median.

    A mean, because a machine has phases that are longer than a call: on a virtual machine of 2 cores whose host ran
    others on the same physical cores, element-wise operators took twice as long, and products 1.2 times, in a third of
    the time, for 0.2 to 2 s at a time (AMD EPYC, 2026-11-21). A step is a sum of thousands of calls, of which the slow
    phases have their share; a median of few samples has one phase or the other. Bounded, because one competing process
    made single samples 500 times as long.
    """
    most = MOST_MEDIANS * statistics.median_low(samples)
    return math.fsum(min(sample, most) for sample in samples) / len(samples)


def over_rounds(rounds: Sequence[Repetitions]) -> Timing:
    """One rank's repetitions of one point in all rounds, as one, to 4 digits; each counts as much as any other."""
    samples = [seconds for repetitions in rounds for seconds in repetitions.seconds]
    values = usual(samples), *(quantile(samples, share) for share in (0.5, 0.2, 0.8))
    seconds, middle, low, high = (float(f"{value:.4g}") for value in values)
    return Timing(seconds, middle, low, high, len(samples), rounds[0].warm_up)


def over_ranks(tasks: Sequence[Sequence[Sequence[Timing]]]) -> list[tuple[Timing, ...]]:
    """The timings of tasks that ranks took at once, each task a sequence of ranks, each rank one of points.

    Of every point the mean over the ranks, times what the slowest rank takes of that mean in the median over all
    points. The slowest rank of every single point would be too slow for all: what is chance at one point is the other
    rank's chance at the next, and ranks wait for each other behind many operators.

    Args:
        tasks: of one kind, in which a rank that is slower is slower throughout.
    """
    means = [
        [statistics.fmean(timing.seconds for timing in point) for point in zip(*task, strict=True)] for task in tasks
    ]
    shares = zip(
        *(
            [timing.seconds / mean for timing in point]
            for task, own in zip(tasks, means, strict=True)
            for point, mean in zip(zip(*task, strict=True), own, strict=True)
        ),
        strict=True,
    )
    slowest = max(map(median, shares))
    return [
        tuple(
            Timing(
                float(f"{slowest * mean:.4g}"),
                float(f"{slowest * statistics.fmean(timing.median for timing in point):.4g}"),
                min(timing.low for timing in point),
                max(timing.high for timing in point),
                point[0].repetitions,
                point[0].warm_up,
            )
            for point, mean in zip(zip(*task, strict=True), own, strict=True)
        )
        for task, own in zip(tasks, means, strict=True)
    ]


def middle_over_ranks(ranks: Sequence[Sequence[float]], *, warm_up: int) -> Timing:
    """What steps took that ranks made together, to 4 digits: the mean over the ranks of each one's median.

    Args:
        ranks: of each the seconds of the same steps.
        warm_up: steps that were not timed.
    """
    values = [statistics.fmean(quantile(own, share) for own in ranks) for share in (0.5, 0.2, 0.8)]
    middle, low, high = (float(f"{value:.4g}") for value in values)
    return Timing(middle, middle, low, high, len(ranks[0]), warm_up)


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which `share` of the values lie, linear between neighbours."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def median(values: Iterable[float]) -> float:
    """The middle value; the mean of both where there are two."""
    return quantile(values, 0.5)
