"""Change points: where the level of a history of measurements changes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

LEAST_STRETCH = 5  # launches: fewer never differ by the rank test at 0.01
FALSE_CHANGES = 0.01  # the share of histories of identical launches that show a change point
PERMUTATIONS = 2000
_AT_ONCE = 50  # orders: those of 1000 launches are 0.4 MB
_SEED = 1


def change_points(values: Sequence[float]) -> list[int]:
    """Indices where a history's level changes: each is the first launch of a new level; stretches have 5 or more.

    The ranks of the values are split where that lowers the sum of squares about the stretches' means by more than the
    penalty a split: ranks, because launches have long tails, and one that lies far out is no new level. What was split
    is searched again stretch by stretch, with ranks of its own: those of all launches say little of two levels that lie
    close where a third lies far.

    Source: Killick, Fearnhead and Eckley 2012, Optimal detection of changepoints with a linear computational cost, as
    in ruptures (KernelCPD with a linear kernel); of ranks Lung-Yut-Fong, Levy-Leduc and Cappe 2015.
    """
    edges = [0, *_splits(values), len(values)]
    if len(edges) == 2:
        return []
    inner = [first + index for first, end in pairwise(edges) for index in change_points(values[first:end])]
    return sorted([*edges[1:-1], *inner])


def _splits(values: Sequence[float]) -> list[int]:
    if len(values) < 2 * LEAST_STRETCH or len({*values}) == 1:
        return []
    import numpy
    import ruptures
    from scipy import stats

    ranks = stats.rankdata(values)
    scaled = ((ranks - ranks.mean()) / ranks.std()).reshape(-1, 1)
    search = ruptures.KernelCPD(kernel="linear", min_size=LEAST_STRETCH).fit(numpy.ascontiguousarray(scaled))
    return [int(index) for index in search.predict(pen=penalty(len(values)))[:-1]]


@cache
def penalty(launches: int) -> float:
    """Gain that a split needs, so that 1 % of the histories of so many identical launches show a change point.

    Identical launches come in any order with the same chance, whatever they are distributed as. So it is the 0.99
    quantile, over 2000 orders of the ranks 1 ... n with mean 0 and variance 1, of the largest gain of one split:

        max over k of  S(k)^2 (1 / k + 1 / (n - k)),    S(k) the sum of the first k, 5 <= k <= n - 5

    11 for 50 launches, 13 for 1000. More than one split at a time adds nothing measurable to the 1 %.
    """
    import numpy

    chance = numpy.random.default_rng(_SEED)
    ranks = numpy.arange(1, launches + 1) - (launches + 1) / 2
    ranks /= ranks.std()
    indices = numpy.arange(LEAST_STRETCH, launches - LEAST_STRETCH + 1)
    weights = 1 / indices + 1 / (launches - indices)
    rows = numpy.tile(ranks, (_AT_ONCE, 1))
    gains = []
    for _ in range(PERMUTATIONS // _AT_ONCE):
        sums = numpy.cumsum(chance.permuted(rows, axis=1), axis=1)[:, indices - 1]
        gains.append((sums * sums * weights).max(axis=1))
    return float(numpy.quantile(numpy.concatenate(gains), 1 - FALSE_CHANGES))
