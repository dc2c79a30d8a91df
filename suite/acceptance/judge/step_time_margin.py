"""The margin of a step time: the slowdown that matters, and how much good batteries differ."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import msgspec

from suite.acceptance.judge.expected_rates import DEVIATIONS
from suite.acceptance.past_batteries import counted
from suite.metrics.launch_statistics import moderated_deviation

MARGIN = 0.05  # beyond what accepted batteries measured; an operator's choice: what slowness matters
# Without one, twice that plus the prediction's own error on good machines: at most 17 % with one thread a rank (14
# setups, 2 cores of an AMD EPYC, 2026-11-21). Steps up to 25 % longer than predicted (2026-11-22) did not widen the
# margin that they failed.
MARGIN_WITHOUT_HISTORY = 0.10
PREDICTION_ERROR = 0.17
WIDEST = MARGIN_WITHOUT_HISTORY + PREDICTION_ERROR
LAUNCH_DEGREES = 2  # degrees of freedom of the launches' own spread: as many as those of three batteries


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """A reference that a step time is compared with.

    Args:
        bias: measured / predicted seconds of a good battery.
        margin: share beyond it from which a node is bad.
        source: where both come from.
        usual: by term, what it usually takes beyond its prediction, as share of the predicted step.
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
    """Standard deviation of the logarithm of what good batteries measure; None where it is unknown.

    Of k batteries with these ratios of measured to predicted seconds, each from launches whose logarithms have one of
    the `spreads` as standard deviation. The launches of a battery share its micro-measurements, so that batteries
    differ by more than launches / sqrt(n). With few batteries, a battery is assumed to be as uncertain as one launch:
    the prior variance is the mean of the spreads' squares, with 2 degrees of freedom, which is our choice. Without
    spreads, 3 batteries are needed.
    """
    if not spreads and len(ratios) < 3:
        return None
    within = statistics.fmean(spread**2 for spread in spreads) if spreads else 0.0
    return moderated_deviation(ratios, prior_variance=within, degrees=LAUNCH_DEGREES if spreads else 0)


def reference(
    ratios: Sequence[float], spreads: Sequence[float], whose: str, terms: Sequence[Mapping[str, float]] = ()
) -> Reference:
    """The reference after k good batteries that measured these ratios to the prediction.

        bias = their geometric mean        margin = max(5 %, 3 s sqrt(1 + 1 / k)), at most 27 %
    s sqrt(1 + 1 / k) is the standard deviation of the difference of one more good battery from the mean of k, because
    the bias is itself measured. A node with steady launches has a margin of 5 % from its first battery on; a node whose
    batteries differ by 6 % is not rejected by chance. The margin is never wider than that of a node without a past.

    Source: a prediction interval; a margin that grows with the reference's spread up to a cap is how bioequivalence of
    highly variable drugs is judged (Haidar et al., Bioequivalence approaches for highly variable drugs, 2008).

    Args:
        terms: of batteries that have them, what each term took beyond its prediction; `usual` is the median.
    """
    if not ratios:
        return WITHOUT_HISTORY
    bias = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
    count = counted(len(ratios), whose)
    spread = spread_of_batteries(ratios, spreads)
    if spread is None:
        margin, why = WIDEST, "their spread is unknown"
    else:
        deviations = math.expm1(DEVIATIONS * spread * math.sqrt(1 + 1 / len(ratios)))
        margin, why = min(WIDEST, max(MARGIN, deviations)), f"they spread by {spread:.1%}"
    names = sorted({name for shares in terms for name in shares})
    usual = {name: statistics.median(shares[name] for shares in terms if name in shares) for name in names}
    return Reference(
        bias=bias, margin=margin, source=f"prediction x {bias:.3f} of {count}; margin {margin:.0%}: {why}", usual=usual
    )
