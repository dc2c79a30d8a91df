"""Non-inferiority of step times: no longer than expected by a margin, tested after 5, 10 and 15 launches."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from suite.metrics.launch_statistics import t_quantile
from suite.records.battery import CheckVerdict

LOOKS = (5, 10, 15)
FALSE_ACCEPTANCE = 0.05  # of a node exactly at the margin, over all looks
FALSE_REJECTION = 0.01  # likewise; a good node is a margin away and is rejected far more rarely
POWER = 0.9
FEWEST = 3  # launches with a useful bound: with two it is 12.7 standard errors away


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the launches so far.

    Args:
        ratio: geometric mean of measured / expected.
        low, high: one-sided bounds: below `low` with the level of rejection, above `high` with that of acceptance.
        least_detectable: the slowdown, relative to the expected time, that so many launches with this spread would
            reject with power 0.9; it includes the margin.
    """

    verdict: CheckVerdict
    launches: int
    ratio: float
    low: float
    high: float
    spread: float
    least_detectable: float


def look(ratios: Sequence[float], *, margin: float, looks: Sequence[int] = LOOKS) -> Look:
    """The verdict after as many launches as there are ratios.

    x_i = ln(measured_i / expected), one of each launch, mean m and standard deviation s of n of them:
        high = m + t(1 - A / K, n - 1) s / sqrt(n)        PASS          high <= ln(1 + margin)
        low  = m - t(1 - R / K, n - 1) s / sqrt(n)        FAIL          low  >  ln(1 + margin)
                                                          INCONCLUSIVE  otherwise; more launches if a look is left
    A = 0.05 and R = 0.01 are the error probabilities of the whole procedure, K the number of looks declared beforehand.
    Each look has an equal share. For a node exactly at the margin, look k is wrong with probability A / K, so that
    P(wrong at any look) <= sum over k of A / K = A (Boole's inequality), also for looks that share data. A node beyond
    the margin is accepted more rarely still, and a node within it rejected more rarely.

    Source: Wellek, Testing statistical hypotheses of equivalence and noninferiority, 2010, section 2; the equal split
    is the linear spending function of Lan and DeMets 1983 without the gain that the looks' correlation would allow.
    Differs from three looks at the full level: those would reject 2.4 times as often (tests).

    A number of launches that is no declared look is inconclusive.

    Raises:
        ValueError: fewer than 3 ratios.
    """
    n = len(ratios)
    if n < FEWEST:
        raise ValueError(f"a bound needs {FEWEST} launches, got {n}")
    logs = [math.log(ratio) for ratio in ratios]
    mean, spread = statistics.fmean(logs), statistics.stdev(logs)
    error = spread / math.sqrt(n)
    accept = t_quantile(1 - FALSE_ACCEPTANCE / len(looks), n - 1)
    reject = t_quantile(1 - FALSE_REJECTION / len(looks), n - 1)
    high, low, limit = mean + accept * error, mean - reject * error, math.log1p(margin)
    verdict = CheckVerdict.INCONCLUSIVE
    if n in looks:
        verdict = (
            CheckVerdict.PASS if high <= limit else CheckVerdict.FAIL if low > limit else CheckVerdict.INCONCLUSIVE
        )
    return Look(
        verdict=verdict,
        launches=n,
        ratio=math.exp(mean),
        low=math.exp(low),
        high=math.exp(high),
        spread=spread,
        least_detectable=math.expm1(limit + (reject + t_quantile(POWER, n - 1)) * error),
    )


def launches_missing(ratios: Sequence[float], *, margin: float, looks: Sequence[int] = LOOKS) -> int:
    """Launches up to the next look; 0 where the last look decided, or no look is left."""
    n = len(ratios)
    if n in looks and look(ratios, margin=margin, looks=looks).verdict is not CheckVerdict.INCONCLUSIVE:
        return 0
    return next((other - n for other in looks if other > n), 0)
