"""The least change that the rule for regressions finds: all of its conditions, and the re-run, with power 0.9."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from suite.metrics.noise_floor import Floor, band
from suite.metrics.two_sample import CONFIDENCE, critical_pairs

POWER = 0.9
LEAST_EFFECT = 0.02
PAIRS = 1000  # of simulated sets: the power's standard error is 0.01
RESAMPLES = 300
MOST_LAUNCHES = 30  # of a set in the simulation; more would only lower the result
_SEED = 1


def least_detectable(floor: Floor, before: int, after: int, *, family: int, rerun: int) -> float | None:
    """The smallest relative slow-down that ends as a regression in 90 of 100 comparisons; None where none ever does.

    Sets are drawn from the floor's own launches, with replacement: its tails are the machine's. Each comparison first
    draws a floor of as many launches from it (and widens it by sqrt(n / (n - 1)) for that), because the machine's true
    spread is known no better than so many launches tell: with 14 of them and none of this, 84 % of planted changes were
    found instead of 90 % (benchmarks.planted_changes, 2026-11-22). In logarithms a pair of sets x, y that moved by d
    meets the conditions from a d on, which is the largest of

        the (c + 1)-th largest x - y        rank test: at most c pairs in the wrong order, alone in the family
        log(1 + band) - L                   L: lower end of the interval of median y - median x
        log(1.02) - (median y - median x)   an effect of at least 2 %

    and the same of an independent pair of `rerun` launches each, there without a family. The 0.9 quantile of the larger
    of both, over 1000 pairs of pairs, is the result.
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
    machines = chance.choice(deviations, (PAIRS, known)) * math.sqrt(known / (known - 1))
    first = _needed(chance, machines, band(floor, min(before, after)), before, after, pairs)
    second = _needed(chance, machines, band(floor, rerun), rerun, rerun, again)
    moves = numpy.maximum(first, second)
    return math.expm1(float(numpy.quantile(moves, POWER, method="higher")))


def _needed(chance: Any, machines: Any, width: float, before: int, after: int, pairs: int) -> Any:
    """For each simulated pair of sets, of a machine each, by how much the later one must move, as a logarithm."""
    import numpy

    known = machines.shape[1]
    x, y = (
        numpy.take_along_axis(machines, chance.integers(0, known, (PAIRS, size)), axis=1) for size in (before, after)
    )
    apart = numpy.sort((x[:, :, None] - y[:, None, :]).reshape(PAIRS, -1), axis=1)
    drawn = []
    for values in (x, y):
        size = values.shape[1]
        drawn.append(numpy.median(values[:, chance.integers(0, size, (RESAMPLES, size))], axis=2))
    lower = numpy.quantile(drawn[1] - drawn[0], (1 - CONFIDENCE) / 2, axis=1)
    effect = numpy.median(y, axis=1) - numpy.median(x, axis=1)
    beyond = math.log1p(width)
    return numpy.maximum.reduce([apart[:, -1 - pairs], beyond - lower, math.log1p(LEAST_EFFECT) - effect])
