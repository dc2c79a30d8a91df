"""What a machine's identical launches differ by, and the band that a change must lie beyond."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

IDENTICAL_LAUNCHES = 10  # of one group, from which a floor is known
LEAST_BAND = 0.01
ERRORS = 3  # standard errors


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """How far single launches lie from the median of launches identical with them.

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
        return math.sqrt(statistics.fmean(one * one for one in self.deviations))


def noise_floor(groups: Iterable[Sequence[float]]) -> Floor | None:
    """Of all groups with 10 or more identical launches together; None where there is no such group."""
    deviations = [one for group in groups if len(group) >= IDENTICAL_LAUNCHES for one in _deviations(group)]
    return Floor(deviations=tuple(sorted(deviations)), calibrated=True) if deviations else None


def own_floor(before: Sequence[float], after: Sequence[float]) -> Floor | None:
    """What the compared sets themselves tell, where no floor is known: it judges nothing. None of single launches."""
    deviations = [one for values in (before, after) if len(values) > 1 for one in _deviations(values)]
    return Floor(deviations=tuple(sorted(deviations)), calibrated=False) if deviations else None


def _deviations(values: Sequence[float]) -> list[float]:
    middle, wider = statistics.median(values), math.sqrt(len(values) / (len(values) - 1))
    return [wider * math.log(value / middle) for value in values]


def standard_error(floor: Floor, launches: int) -> float:
    """Of the median of so many launches, relative: the spread of medians of launches drawn from the floor's.

    s^2 = sum w_k x_k^2 - (sum w_k x_k)^2, over the floor's N deviations x_k in ascending order:
        w_k = I(k / N) - I((k - 1) / N)   the chance that x_k is the median of n draws
        I                                 the regularised incomplete beta function with a = b = (n + 1) / 2

    Source: Maritz and Jarrett 1978, A note on estimating the variance of the sample median, there with n = N.
    Differs from sqrt(pi / 2) sigma / sqrt(n), that of normal launches: 3 % less for 7 of them, and far less where
    single launches lie far out, which move sigma and hardly a median.
    """
    from scipy.special import betainc

    count, shape = len(floor.deviations), (launches + 1) / 2
    edges = [float(betainc(shape, shape, place / count)) for place in range(count + 1)]
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
