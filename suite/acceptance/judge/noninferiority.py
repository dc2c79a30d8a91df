"""Whether a node's step time is no worse than expected by a margin, looked at up to three times with one error."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from suite.acceptance.findings import Verdict
from suite.metrics.launch_statistics import t_quantile

LOOKS = (5, 10, 15)
FALSE_ACCEPTANCE = 0.05  # of a node exactly at the margin, over all looks
FALSE_REJECTION = 0.01  # likewise; a good node lies a margin away and is rejected far more rarely
POWER = 0.9
FEWEST = 3  # launches that have a bound worth the name: one of two is 12.7 standard errors away


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What the launches so far say.

    Args:
        ratio: geometric mean of measured / expected.
        low, high: one-sided bounds: below `low` with the level of rejection, above `high` with that of acceptance.
        least_detectable: the slowdown, relative to the expected time, that so many launches with this spread would
            reject with power 0.9; the margin is part of it.
    """

    verdict: Verdict
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
                                                          INCONCLUSIVE  otherwise; more launches where a look is left
    A = 0.05 and R = 0.01 are the error probabilities of the whole procedure, K the number of looks declared before.
    Each look spends an equal part of them. If the node is exactly at the margin, look k is wrong with probability
    A / K, whatever the others said, and P(wrong at any look) <= sum over k of A / K = A (Boole's inequality): for looks
    that share their data too. A node beyond the margin is accepted, and one inside it rejected, more rarely still.

    Source: Wellek, Testing statistical hypotheses of equivalence and noninferiority, 2010, section 2; the equal split
    is the linear spending function of Lan and DeMets 1983 without the gain that the looks' correlation would allow.
    Differs from three looks at the full level: those would reject 2.4 times as often as promised (tests).

    A look that was not declared (fewer launches than the first, or between two) may not pass or fail: it is
    inconclusive.

    Raises:
        ValueError: fewer than 3 ratios.
    """
    n = len(ratios)
    if n < FEWEST:
        raise ValueError(f"a bound needs {FEWEST} launches, got {n}")
    logs = [math.log(ratio) for ratio in ratios]
    middle, spread = statistics.fmean(logs), statistics.stdev(logs)
    error = spread / math.sqrt(n)
    accept = t_quantile(1 - FALSE_ACCEPTANCE / len(looks), n - 1)
    reject = t_quantile(1 - FALSE_REJECTION / len(looks), n - 1)
    high, low, limit = middle + accept * error, middle - reject * error, math.log1p(margin)
    verdict = Verdict.INCONCLUSIVE
    if n in looks:
        verdict = Verdict.PASS if high <= limit else Verdict.FAIL if low > limit else Verdict.INCONCLUSIVE
    return Look(
        verdict=verdict,
        launches=n,
        ratio=math.exp(middle),
        low=math.exp(low),
        high=math.exp(high),
        spread=spread,
        least_detectable=math.expm1(limit + (reject + t_quantile(POWER, n - 1)) * error),
    )


def launches_missing(ratios: Sequence[float], *, margin: float, looks: Sequence[int] = LOOKS) -> int:
    """Launches up to the next look; 0 where the last one decided or none is left."""
    n = len(ratios)
    if n in looks and look(ratios, margin=margin, looks=looks).verdict is not Verdict.INCONCLUSIVE:
        return 0
    return next((other - n for other in looks if other > n), 0)
