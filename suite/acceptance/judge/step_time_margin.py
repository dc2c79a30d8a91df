"""How much later than expected a step may come: what slowness matters, and what good batteries differ by."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import msgspec

from suite.acceptance.judge.expected_rates import DEVIATIONS

MARGIN = 0.05  # beyond what accepted batteries measured; an operator's choice: what slowness matters
# Without one, twice that, and the prediction's own error on known-good machines beside it: at most 17 % with one thread
# a rank (14 setups, 2 cores of an AMD EPYC, 2026-11-21; up to 25 % longer than predicted on 2026-11-22, not taken over:
# a margin is not widened by what failed it).
MARGIN_WITHOUT_HISTORY = 0.10
PREDICTION_ERROR = 0.17
WIDEST = MARGIN_WITHOUT_HISTORY + PREDICTION_ERROR
OF_LAUNCHES = 2  # degrees of freedom with which the launches' own spread counts: as much as three batteries


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """What a step time is held to.

    Args:
        bias: measured / predicted seconds of a good battery.
        margin: share beyond it from which a node is bad.
        source: where both come from, in words.
        usual: what each term of the step usually takes beyond its prediction, as share of the predicted step.
    """

    bias: float
    margin: float
    source: str
    usual: dict[str, float] = {}


WITHOUT_HISTORY = Reference(
    bias=1.0,
    margin=WIDEST,
    source="prediction from the micro-measurements; margin "
    f"{MARGIN_WITHOUT_HISTORY:.0%} + {PREDICTION_ERROR:.0%} of its error",
)


def spread_of_batteries(ratios: Sequence[float], spreads: Sequence[float]) -> float | None:
    """Standard deviation of the logarithm of what good batteries measure; None where nothing tells it.

    k batteries measured ratios y_j, each from launches whose logarithms have the standard deviation w_j:
        s^2 = (2 w^2 + (k - 1) b^2) / (2 + k - 1)        w^2 = mean of w_j^2, b^2 = variance of ln y_j
    A battery's launches rest on the same micro-measurements, so that batteries differ by more than launches / sqrt(n):
    until there are enough of them, one battery is taken to be as uncertain as one launch. Without w, b needs 3.

    Source: the moderated variance of Smyth, Linear models and empirical Bayes methods, 2004, section 3, with a prior
    of 2 degrees of freedom, which is our choice.
    """
    of_batteries = max(0, len(ratios) - 1)
    of_launches = OF_LAUNCHES if spreads else 0
    if of_batteries + of_launches < OF_LAUNCHES:
        return None
    between = statistics.variance([math.log(ratio) for ratio in ratios]) if of_batteries else 0.0
    within = statistics.fmean(spread**2 for spread in spreads) if spreads else 0.0
    return math.sqrt((of_launches * within + of_batteries * between) / (of_launches + of_batteries))


def reference(
    ratios: Sequence[float], spreads: Sequence[float], whose: str, terms: Sequence[Mapping[str, float]] = ()
) -> Reference:
    """What a step time is held to behind k good batteries that measured these ratios to the prediction.

        bias = their geometric mean        margin = 5 %, or 3 s sqrt(1 + 1 / k) where that is more, 27 % at most
    s sqrt(1 + 1 / k) is the standard deviation of the difference of one more good battery from the mean of k: the bias
    is itself measured. A node of steady launches is held to 5 % from its first battery on; one whose batteries differ
    by 6 % is not called bad by chance. The margin is never wider than that of a node without a past.

    Source: a prediction interval; a margin that grows with the reference's spread up to a cap is how bioequivalence of
    highly variable drugs is judged (Haidar et al., Bioequivalence approaches for highly variable drugs, 2008).

    Args:
        terms: of those batteries that tell, what each term took beyond its prediction; the median is the usual one.
    """
    if not ratios:
        return WITHOUT_HISTORY
    bias = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
    count = f"{len(ratios)} {whose}"
    spread = spread_of_batteries(ratios, spreads)
    if spread is None:
        margin, why = WIDEST, "their spread is unknown"
    else:
        room = math.expm1(DEVIATIONS * spread * math.sqrt(1 + 1 / len(ratios)))
        margin, why = min(WIDEST, max(MARGIN, room)), f"they spread by {spread:.1%}"
    names = sorted({name for one in terms for name in one})
    usual = {name: statistics.median(one[name] for one in terms if name in one) for name in names}
    return Reference(
        bias=bias,
        margin=margin,
        source=f"prediction x {bias:.3f} of {count}; margin {margin:.0%}: {why}",
        usual=usual,
    )
