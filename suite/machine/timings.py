"""Combines the repetitions of a call over rounds, and over the ranks that measured at once."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]
MOST_MEDIANS = 2.0  # a sample counts as so many medians of its point at most


class Repetitions(msgspec.Struct, frozen=True, array_like=True):
    """One point, timed by one rank in one round.

    Args:
        seconds: of every call after the warm-up.
        warm_up: number of calls before.
    """

    seconds: tuple[Positive, ...]
    warm_up: int


class Timing(msgspec.Struct, frozen=True, array_like=True):
    """One timed point, over all rounds.

    Args:
        seconds: for one rank, `usual` of its repetitions; for several ranks, see `over_ranks`.
        median, low, high: 50 %, 20 % and 80 % quantiles of the repetitions. For several ranks the median is combined as
            `seconds` are; low is the lowest and high the highest.
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
    """The mean of samples, each limited to twice their median; of an even number of samples the lower median.

    It is a mean because a machine has slow phases that are longer than a call. A step is a sum of thousands of calls,
    some of them in slow phases, but a median of few samples shows one phase only. Samples are limited because a
    competing process makes single samples hundreds of times as long.
    """
    most = MOST_MEDIANS * statistics.median_low(samples)
    return math.fsum(min(sample, most) for sample in samples) / len(samples)


def over_rounds(rounds: Sequence[Repetitions]) -> Timing:
    """One rank's repetitions of one point in all rounds, with equal weights, rounded to 4 digits."""
    samples = [seconds for repetitions in rounds for seconds in repetitions.seconds]
    values = usual(samples), *(quantile(samples, share) for share in (0.5, 0.2, 0.8))
    seconds, middle, low, high = (float(f"{value:.4g}") for value in values)
    return Timing(seconds, middle, low, high, len(samples), rounds[0].warm_up)


def over_ranks(tasks: Sequence[Sequence[Sequence[Timing]]]) -> list[tuple[Timing, ...]]:
    """The timings of tasks that ranks ran at once; each task is a sequence of ranks, each rank a sequence of points.

    The time of a point is the mean over ranks, times a factor: the slowest rank's median, over all points, of its time
    over that mean. The slowest rank of every single point would overestimate all of them: the slowest rank of one point
    is by chance another than that of the next, and ranks wait for each other only after many operators. The factor is
    at least 1: where a rank waited long in each point, another one each time, all medians are below their means, and
    less than 1 would make the other points faster than any rank was.

    Args:
        tasks: of one kind, for which one rank is consistently slower or faster than another.
    """
    points = [list(zip(*task, strict=True)) for task in tasks]  # of each task: of each point, the ranks' timings
    means = [[statistics.fmean(timing.seconds for timing in point) for point in task] for task in points]
    shares = [
        [timing.seconds / mean for timing in point]
        for task, task_means in zip(points, means, strict=True)
        for point, mean in zip(task, task_means, strict=True)
    ]
    slowest = max(1.0, *map(median, zip(*shares, strict=True)))

    def combined(point: Sequence[Timing], mean: float) -> Timing:
        middle = slowest * statistics.fmean(timing.median for timing in point)
        low, high = min(timing.low for timing in point), max(timing.high for timing in point)
        seconds, middle = float(f"{slowest * mean:.4g}"), float(f"{middle:.4g}")
        return Timing(seconds, middle, low, high, point[0].repetitions, point[0].warm_up)

    return [tuple(map(combined, task, task_means)) for task, task_means in zip(points, means, strict=True)]


def middle_over_ranks(ranks: Sequence[Sequence[float]], *, warm_up: int) -> Timing:
    """Seconds of steps that ranks ran together: the mean over ranks of their medians, rounded to 4 digits.

    Args:
        ranks: for each rank, the seconds of the same steps.
        warm_up: number of steps that were not timed.
    """
    values = [statistics.fmean(quantile(seconds, share) for seconds in ranks) for share in (0.5, 0.2, 0.8)]
    middle, low, high = (float(f"{value:.4g}") for value in values)
    return Timing(middle, middle, low, high, len(ranks[0]), warm_up)


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which `share` of the values lie, linear between neighbours."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two middle values."""
    return quantile(values, 0.5)
