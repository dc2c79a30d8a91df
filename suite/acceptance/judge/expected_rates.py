"""What a rate should be: from a data sheet, from this node's past, from its siblings; each with its source."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from suite.acceptance.check_table import Check, Sense
from suite.acceptance.findings import Finding, Verdict
from suite.acceptance.judge.noninferiority import FALSE_REJECTION
from suite.metrics.launch_statistics import t_quantile

SPREAD_FROM = 3  # values from which there is a standard deviation worth the name
DEVIATIONS = 3.0  # of a spread that many values tell: Shewhart, Economic control of quality, 1931
MODIFIED_Z_FROM = 10  # nodes
MODIFIED_Z_LIMIT = 3.5  # Iglewicz and Hoaglin, How to detect and handle outliers, 1993
MODIFIED_Z_FACTOR = 0.6745  # the 0.75 quantile of the normal distribution: MAD to standard deviation
UNKNOWN_MODEL = 0.70  # of a dense peak, or of so few values that their spread is unknown: below it no good node lies


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """One expected value with the thresholds that its source deserves.

    Args:
        warn, fail: of measured / expected; a fail of None never rejects.
    """

    value: float
    source: str
    warn: float
    fail: float | None


def from_peak(peak: float, what: str) -> Expected:
    """A dense peak: of what no good machine is known to reach, 70 % must come."""
    return Expected(value=peak, source=what, warn=UNKNOWN_MODEL, fail=UNKNOWN_MODEL)


def from_values(check: Check, values: Sequence[float], whose: str) -> Expected | None:
    """The median of other batteries' values; None where there are none.

    With k of them, three or more, the thresholds make room for their spread s: one more good value differs from their
    middle by the standard deviation d = s sqrt(1 + 1 / k) / median.
        warn   1 -+ max(the check's, 2 d)
        fail   1 -+ max(the check's, t d)        t = t(0.99, k - 1) or 3, the larger one: 7.0, 4.5, 3.7 for 3, 4, 5
    That is 1 good value in 100, for any k: three deviations of three values are passed by 1 good one in 17. It never is
    more room than fewer values have, unless 3 d is. With fewer the spread is unknown, and only what a good node never
    shows (70 %) is a failure.

    Source: a prediction interval from Student's t distribution.
    """
    if not values or check.warn is None or check.fail is None:
        return None
    middle = statistics.median(values)
    if not middle:
        return None
    source = f"median of {len(values)} {whose}"
    sign = -1.0 if check.sense is Sense.HIGHER_IS_BETTER else 1.0
    worst = UNKNOWN_MODEL if sign < 0 else 1 / UNKNOWN_MODEL
    if len(values) < SPREAD_FROM:
        return Expected(value=middle, source=f"{source}, spread unknown", warn=check.warn, fail=worst)
    spread = statistics.stdev(values) / middle
    another = spread * math.sqrt(1 + 1 / len(values))
    rare = max(DEVIATIONS, t_quantile(1 - FALSE_REJECTION, len(values) - 1))
    room = min(rare * another, max(abs(1 - worst), DEVIATIONS * another))
    return Expected(
        value=middle,
        source=f"{source}, spread {spread:.1%}",
        warn=1 + sign * max(abs(1 - check.warn), 2 * another),
        fail=1 + sign * max(abs(1 - check.fail), room),
    )


def modified_z(value: float, others: Sequence[float]) -> float | None:
    """0.6745 (value - median) / MAD over the other nodes; None below ten, or where they do not differ.

    Source: Iglewicz and Hoaglin, How to detect and handle outliers, 1993: beyond 3.5 a value is an outlier.
    """
    if len(others) < MODIFIED_Z_FROM:
        return None
    middle = statistics.median(others)
    deviation = statistics.median(abs(other - middle) for other in others)
    return MODIFIED_Z_FACTOR * (value - middle) / deviation if deviation else None


def outlier_words(check: Check, value: float, others: Sequence[float]) -> str:
    """A modified z beyond 3.5 on the bad side of ten nodes or more, in words; empty where it is none."""
    z = modified_z(value, others)
    if z is None or not (z < -MODIFIED_Z_LIMIT if check.sense is Sense.HIGHER_IS_BETTER else z > MODIFIED_Z_LIMIT):
        return ""
    return f"modified z {z:+.1f} among {len(others)} nodes"


def rated(
    check: Check,
    subject: str,
    value: float,
    expected: Sequence[Expected],
    *,
    part: str,
    fleet: Sequence[float] = (),
    evidence: str = "",
    siblings: str = "",
) -> Finding:
    """The verdict on a rate beside every expected value: the one that it looks worst against is reported.

    Without any, the check did not run: a number that nobody expects says nothing. A modified z beyond 3.5 on the bad
    side of ten or more siblings is a warning at least.

    Args:
        siblings: see `Finding`; the subject unless it is given.
    """
    siblings = siblings or subject
    if not expected:
        return Finding(
            check=check.number,
            subject=subject,
            verdict=Verdict.NOT_RUN,
            measured=value,
            unit=check.unit,
            evidence=_joined(evidence, "measured, but nothing to expect: no data sheet, no accepted battery, no fleet"),
            siblings=siblings,
        )
    against = [(_verdict(check, value / one.value, one), one) for one in expected]
    order = (Verdict.FAIL, Verdict.WARN, Verdict.PASS)
    # least room left to the threshold first, among equal verdicts
    verdict, worst = min(against, key=lambda pair: (order.index(pair[0]), _room(check, value, pair[1])))
    others = [f"{value / one.value:.3f} of {one.source}" for _, one in against if one is not worst]
    outlier = outlier_words(check, value, fleet)
    verdict = Verdict.WARN if outlier and verdict is Verdict.PASS else verdict
    return Finding(
        check=check.number,
        subject=subject,
        verdict=verdict,
        measured=value,
        expected=worst.value,
        unit=check.unit,
        ratio=value / worst.value,
        warn=worst.warn,
        fail=worst.fail,
        source=worst.source,
        part="" if verdict is Verdict.PASS else part,
        evidence=_joined(evidence, *others, outlier),
        siblings=siblings,
    )


def limited(
    check: Check,
    subject: str,
    figure: float,
    *,
    part: str,
    source: str,
    evidence: str = "",
    measured: float | None = None,
) -> Finding:
    """The verdict on a figure that has thresholds of its own: a share, a ratio of ranks."""
    assert check.warn is not None
    expected = Expected(value=1.0, source=source, warn=check.warn, fail=check.fail)
    verdict = _verdict(check, figure, expected)
    return Finding(
        check=check.number,
        subject=subject,
        verdict=verdict,
        measured=measured,
        unit=check.unit,
        ratio=figure,
        warn=check.warn,
        fail=check.fail,
        source=source,
        part="" if verdict is Verdict.PASS else part,
        evidence=evidence,
    )


def _verdict(check: Check, ratio: float, expected: Expected) -> Verdict:
    if expected.fail is not None and _beyond(check, ratio, expected.fail):
        return Verdict.FAIL
    return Verdict.WARN if _beyond(check, ratio, expected.warn) else Verdict.PASS


def _beyond(check: Check, ratio: float, limit: float) -> bool:
    return ratio < limit if check.sense is Sense.HIGHER_IS_BETTER else ratio > limit


def _room(check: Check, value: float, one: Expected) -> float:
    sign = 1.0 if check.sense is Sense.HIGHER_IS_BETTER else -1.0
    return sign * (value / one.value - one.warn)


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
