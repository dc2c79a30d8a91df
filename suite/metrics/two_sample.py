"""Two sets of launches of one time: rank test, interval of the ratio of medians, and which of many tests stand."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

FALSE_DISCOVERIES = 0.05  # the share of all differences that are called so, expected to be none
CONFIDENCE = 0.95
RESAMPLES = 9999  # scipy's own default
MOST_EXACT = 10_000  # pairs of launches up to which the test's distribution is counted and not approximated
_SEED = 1


class TwoSampleDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A later set next to an earlier one.

    Args:
        ratio: the later median over the earlier one.
        interval: of the ratio, with 95 %; None where a set has one launch.
        p: two-sided, of the Mann-Whitney test.
    """

    ratio: float
    interval: tuple[float, float] | None
    p: float


def difference(before: Sequence[float], after: Sequence[float]) -> TwoSampleDifference:
    """Ratio of the medians with its interval, and the p of the rank test, of times above 0.

    The order of values does not matter, and swapping the sets inverts ratio and interval: sets are sorted, and the one
    with the smaller median is always resampled first, so that the same draws fall on the same launches.

    Raises:
        ValueError: a set is empty, or a value is not above 0.
    """
    if not before or not after or min(*before, *after) <= 0:
        raise ValueError(f"sets of values above 0 are needed, got {before} and {after}")
    ratio = statistics.median(after) / statistics.median(before)
    interval = None
    if len(before) > 1 < len(after):
        if (ratio, sorted(after)) >= (1.0, sorted(before)):
            interval = _interval(before, after)
        else:
            low, high = _interval(after, before)
            interval = 1 / high, 1 / low
    return TwoSampleDifference(ratio=ratio, interval=interval, p=rank_test_p(before, after))


def _interval(smaller: Sequence[float], larger: Sequence[float]) -> tuple[float, float]:
    """Interval of the larger median over the smaller one, by the bootstrap's percentiles.

    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13. Bias-corrected intervals need
    the jackknife, which is not consistent for medians (section 11.6).
    """
    import numpy
    from scipy import stats

    def ratio(below: Any, above: Any, axis: int) -> Any:
        return numpy.median(above, axis=axis) / numpy.median(below, axis=axis)

    drawn = stats.bootstrap(
        (sorted(smaller), sorted(larger)),
        ratio,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        vectorized=True,
        rng=numpy.random.default_rng(_SEED),
    )
    return float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)


def rank_test_p(before: Sequence[float], after: Sequence[float]) -> float:
    """Two-sided p of the Mann-Whitney test: exact, but normal where values are tied or there are over 10,000 pairs."""
    from scipy import stats

    tied = len({*before, *after}) < len(before) + len(after)
    exact = not tied and len(before) * len(after) <= MOST_EXACT
    return float(stats.mannwhitneyu(before, after, method="exact" if exact else "asymptotic").pvalue)


def adjusted(p: Sequence[float]) -> list[float]:
    """Benjamini and Hochberg's q of every p of a family, in its order: a difference stands where q < 0.05.

    Source: Benjamini and Hochberg 1995, Controlling the false discovery rate. It holds for independent tests, and for
    those that depend on each other positively, as times of one machine do (Benjamini and Yekutieli 2001).
    """
    from scipy import stats

    return [float(q) for q in stats.false_discovery_control(p, method="bh")] if p else []


def least_p(before: int, after: int) -> float:
    """The smallest two-sided p of sets with so many launches: one lies wholly above the other. 2 / C(n + m, n)."""
    return 2 / math.comb(before + after, before)


def largest_family(before: int, after: int) -> int:
    """The most tests of which a single true difference can stand: m p < 0.05 with the smallest p there is.

    With 7 and 7 launches p is 2 / C(14, 7) = 0.000583, so m is 85: one true change among forty is seen. With 5 and 5 it
    is 2 / C(10, 5) = 0.00794 and m is 6; with 4 and 4 m is 1; 3 and 3 never differ.
    """
    return math.ceil(FALSE_DISCOVERIES / least_p(before, after)) - 1


@cache
def critical_pairs(before: int, after: int, family: int = 1, *, level: float = FALSE_DISCOVERIES) -> int:
    """The most pairs of launches in the wrong order with which two sets still differ, alone in a family; -1: never.

    They differ where the two-sided p of the rank test, times the family, is below the level.
    """
    orders, below, pairs = math.comb(before + after, before), 0, -1
    for count in rank_orders(before, after):
        below += count
        if 2 * below * family >= level * orders:
            break
        pairs += 1
    return pairs


def rank_orders(before: int, after: int) -> list[int]:
    """Number of the C(n + m, n) orders of two sets, by their pairs in the wrong order.

    The coefficients of the Gaussian binomial: product over i = 1 ... n of (1 - q^(m + i)) / (1 - q^i).
    """
    counts = [1] + [0] * (before * after)
    for i in range(1, before + 1):
        for power in range(before * after, after + i - 1, -1):
            counts[power] -= counts[power - after - i]
        for power in range(i, before * after + 1):
            counts[power] += counts[power - i]
    return counts
