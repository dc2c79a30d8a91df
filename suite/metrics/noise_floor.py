"""The spread of identical launches, the band that a change must lie beyond, and the least change that is found."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec

from suite.metrics.two_sample import CONFIDENCE, critical_pairs

IDENTICAL_LAUNCHES = 10  # of one group, from which a floor is known
LEAST_BAND = 0.01
ERRORS = 3  # standard errors
POWER = 0.9
LEAST_EFFECT = 0.02
PAIRS = 1000  # of simulated sets, 20,000 / n for n > 20 launches: the power's standard error is 0.01 to 0.016
RESAMPLES = 300
_FULL = 20  # launches up to which all pairs are simulated
MOST_LAUNCHES = 60  # of a set in the simulation; more would only lower the result
_SEED = 1


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """Deviations of single launches from the median of launches identical with them.

    Args:
        deviations: logarithms of launch over median of its group, ascending, widened by sqrt(n / (n - 1)) for the
            median that the group's n launches gave themselves.
        calibrated: they are of groups of 10 or more identical launches; otherwise of the compared sets themselves.
    """

    deviations: tuple[float, ...]
    calibrated: bool

    @property
    def variation(self) -> float:
        """Standard deviation of a launch, relative."""
        return math.sqrt(statistics.fmean(deviation * deviation for deviation in self.deviations))


def noise_floor(groups: Iterable[Sequence[float]]) -> Floor | None:
    """Noise floor of all groups with 10 or more identical launches together; None where there is no such group."""
    deviations = [deviation for group in groups if len(group) >= IDENTICAL_LAUNCHES for deviation in _deviations(group)]
    return Floor(deviations=tuple(sorted(deviations)), calibrated=True) if deviations else None


def own_floor(before: Sequence[float], after: Sequence[float]) -> Floor | None:
    """Noise floor of the compared sets themselves, where none is known: it judges nothing. None of single launches."""
    deviations = [deviation for values in (before, after) if len(values) > 1 for deviation in _deviations(values)]
    return Floor(deviations=tuple(sorted(deviations)), calibrated=False) if deviations else None


def _deviations(values: Sequence[float]) -> list[float]:
    middle, wider = statistics.median(values), math.sqrt(len(values) / (len(values) - 1))
    return [wider * math.log(value / middle) for value in values]


def standard_error(floor: Floor, launches: int) -> float:
    """Relative standard error of the median of so many launches: the spread of medians drawn from the floor's.

    s^2 = sum w_k x_k^2 - (sum w_k x_k)^2, over the floor's N deviations x_k in ascending order:
        w_k = I(k / N) - I((k - 1) / N)   the chance that x_k is the median of n draws
        I                                 the regularised incomplete beta function with a = b = (n + 1) / 2

    Source: Maritz and Jarrett 1978, A note on estimating the variance of the sample median, there with n = N.
    Differs from sqrt(pi / 2) sigma / sqrt(n), that of normal launches: 3 % less for 7 of them, and far less where
    single launches lie far out, which move sigma and hardly a median.
    """
    from scipy.special import betainc

    count, shape = len(floor.deviations), (launches + 1) / 2
    edges = [float(betainc(shape, shape, index / count)) for index in range(count + 1)]
    weights = [above - below for below, above in pairwise(edges)]
    mean = math.fsum(w * x for w, x in zip(weights, floor.deviations, strict=True))
    return math.sqrt(math.fsum(w * (x - mean) ** 2 for w, x in zip(weights, floor.deviations, strict=True)))


def band(floor: Floor, launches: int) -> float:
    """Relative change up to which the ratio of two medians is called noise: max(1 %, 3 s).

    s is the standard error of the median of so many launches, the smaller set's: not the spread of single launches. At
    a spread of 1 % and 7 launches s is 0.46 % and the band 1.4 %; three spreads would be 3 %, more than the 2.4 % that
    7 launches can show, and no change could be both seen and believed. At 4.7 % spread the band is 6.5 %.
    """
    return max(LEAST_BAND, ERRORS * standard_error(floor, launches))


def least_detectable(floor: Floor, before: int, after: int, *, family: int, rerun: int) -> float | None:
    """The smallest relative slow-down that ends as a regression in 90 of 100 comparisons; None where none ever does.

    Sets are drawn from the floor's own launches, with replacement: its tails are the machine's. Each comparison first
    draws a floor of as many launches from it (and widens it by sqrt(n / (n - 1)) for that), because the machine's true
    spread is known no better than so many launches show. In logarithms a pair of sets x, y that moved by d meets the
    conditions from a d on, which is the largest of

        the (c + 1)-th largest x - y        rank test: at most c pairs in the wrong order, alone in the family
        log(1 + band) - L                   L: lower end of the interval of median y - median x
        log(1.02) - (median y - median x)   an effect of at least 2 %

    and the same of an independent pair of `rerun` launches each, there without a family. The 0.9 quantile of the larger
    of both, over 1000 pairs of pairs (fewer for more than 20 launches), is the result.
    """
    pairs = critical_pairs(min(before, MOST_LAUNCHES), min(after, MOST_LAUNCHES), family)
    again = critical_pairs(rerun, rerun, 1)
    if pairs < 0 or again < 0 or len({*floor.deviations}) < 2:
        return None
    return _least_detectable(floor, min(before, MOST_LAUNCHES), min(after, MOST_LAUNCHES), pairs, rerun, again)


@cache
def _least_detectable(floor: Floor, before: int, after: int, pairs: int, rerun: int, again: int) -> float:
    import numpy

    chance = numpy.random.default_rng(_SEED)
    deviations = numpy.asarray(floor.deviations)
    known = len(deviations)
    drawn = PAIRS * _FULL // max(_FULL, before, after, rerun)
    machines = chance.choice(deviations, (drawn, known)) * math.sqrt(known / (known - 1))
    first = _needed(chance, machines, band(floor, min(before, after)), before, after, pairs)
    second = _needed(chance, machines, band(floor, rerun), rerun, rerun, again)
    moves = numpy.maximum(first, second)
    return math.expm1(float(numpy.quantile(moves, POWER, method="higher")))


def _needed(chance: Any, machines: Any, width: float, before: int, after: int, pairs: int) -> Any:
    """For each simulated pair of sets, of a machine each, by how much the later one must move, as a logarithm."""
    import numpy

    count, known = machines.shape
    x, y = (
        numpy.take_along_axis(machines, chance.integers(known, size=(count, size)), axis=1) for size in (before, after)
    )
    apart = numpy.sort((x[:, :, None] - y[:, None, :]).reshape(count, -1), axis=1)
    drawn = []
    for values in (x, y):
        size = values.shape[1]
        drawn.append(numpy.median(values[:, chance.integers(size, size=(RESAMPLES, size))], axis=2))
    lower = numpy.quantile(drawn[1] - drawn[0], (1 - CONFIDENCE) / 2, axis=1)
    effect = numpy.median(y, axis=1) - numpy.median(x, axis=1)
    beyond = math.log1p(width)
    return numpy.maximum.reduce([apart[:, -1 - pairs], beyond - lower, math.log1p(LEAST_EFFECT) - effect])
