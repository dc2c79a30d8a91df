"""Expected rates: from floors, this node's past, or other nodes of the fleet; each with its source."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from suite.acceptance.check_table import AcceptanceCheck
from suite.acceptance.findings import joined_evidence
from suite.acceptance.judge.noninferiority import FALSE_REJECTION
from suite.acceptance.past_batteries import NODE_PAST, OTHER_NODES, History, counted, measured_values
from suite.metrics.launch_statistics import t_quantile
from suite.metrics.modified_z import LIMIT, WARNS_FROM, modified_z_among
from suite.records.battery import WORST_FIRST, CheckFinding, CheckVerdict

SPREAD_FROM = 3  # values, from which a standard deviation is meaningful
SPREAD_FROM_OF_VIRTUAL = 10  # of a virtual machine, whose rates have a ceiling: see `from_values`
DEVIATIONS = 3.0  # standard deviations, where many values give them: Shewhart, Economic control of quality, 1931
OF_CPU_PEAK = 0.70  # good CPUs reach more of it, if its vector units are as assumed
NOTHING_EXPECTED = "measured, but no expected value: no data sheet, no accepted battery, no fleet"
IMPOSSIBLE = "measurement: faster than such a device can be"
SPREAD_UNKNOWN = 0.70  # of the median of values too few for a spread: no good node is below


class ExpectedRate(msgspec.Struct, frozen=True, kw_only=True):
    """One expected value, with thresholds that fit its source.

    Args:
        warn, fail: of measured / expected; a fail of None never rejects.
    """

    value: float
    source: str
    warn: float
    fail: float | None


class UpperLimit(NamedTuple):
    """A rate that no such device exceeds, and where it comes from: beyond it the measurement is wrong."""

    value: float
    source: str


def from_peak(peak: float, what: str) -> ExpectedRate:
    """A CPU's peak by its clock and vector width: below 70 % warns, and nothing rejects, as nobody measured it."""
    return ExpectedRate(value=peak, source=what, warn=OF_CPU_PEAK, fail=None)


def from_values(
    check: AcceptanceCheck, values: Sequence[float], whose: str, *, virtual: bool = False
) -> ExpectedRate | None:
    """The median of the values of other batteries; None without any.

    With k >= 3 values, the thresholds allow for their spread s: the difference of one more good value from their median
    has the standard deviation d = s sqrt(1 + 1 / k) / median.
        warn   1 -+ max(the check's, 2 d)
        fail   1 -+ max(the check's, t d)        t = max(t(0.99, k - 1), 3): 7.0, 4.5, 3.7 for k = 3, 4, 5
    So 1 good value in 100 fails, for any k; with t = 3 for k = 3 it would be 1 in 17. The failure threshold is never
    wider than that of fewer values, unless 3 d is. With fewer than 3 values the spread is unknown, and only a rate
    below 70 % fails.

    Student's t is right for values around a mean. The rates of a virtual machine lie at a ceiling instead, or below it
    while other guests are busy. If half of them lie at the ceiling, three values do so together in 1 of 8 histories:
    the spread is then next to nothing, and every busy hour fails. Ten values do so in 1 of 1000.

    Source: a prediction interval from Student's t distribution.

    Args:
        virtual: whether they are of a virtual machine; their spread is unknown before there are 10.
    """
    if not values or check.warn is None or check.fail is None:
        return None
    median = statistics.median(values)
    if not median:
        return None
    source = f"median of {counted(len(values), whose)}"
    sign = check.bad_side
    widest = SPREAD_UNKNOWN if sign < 0 else 1 / SPREAD_UNKNOWN
    if len(values) < (SPREAD_FROM_OF_VIRTUAL if virtual else SPREAD_FROM):
        return ExpectedRate(value=median, source=f"{source}, spread unknown", warn=check.warn, fail=widest)
    spread = statistics.stdev(values) / median
    deviation = spread * math.sqrt(1 + 1 / len(values))
    rare = max(DEVIATIONS, t_quantile(1 - FALSE_REJECTION, len(values) - 1)) * deviation
    limit = min(rare, max(abs(1 - widest), DEVIATIONS * deviation))
    return ExpectedRate(
        value=median,
        source=f"{source}, spread {spread:.1%}",
        warn=1 + sign * max(abs(1 - check.warn), 2 * deviation),
        fail=1 + sign * max(abs(1 - check.fail), limit),
    )


def outlier_words(check: AcceptanceCheck, value: float, others: Sequence[float]) -> str:
    """Words that say that a value is an outlier on the bad side of ten nodes or more; empty where it is none."""
    z = modified_z_among(value, others) if len(others) >= WARNS_FROM else None
    if z is None or check.bad_side * z <= LIMIT:
        return ""
    return f"modified z {z:+.1f} among {len(others)} nodes"


def _impossible(check: AcceptanceCheck, subject: str, value: float, most: UpperLimit, evidence: str) -> CheckFinding:
    return CheckFinding(
        check=check.number,
        subject=subject,
        verdict=CheckVerdict.INVALID,
        measured=value,
        expected=most.value,
        unit=check.unit,
        ratio=value / most.value,
        source=most.source,
        part=IMPOSSIBLE,
        evidence=joined_evidence(evidence, "the work was not done, or the clock is wrong: nothing is known of it"),
    )


def rated(
    check: AcceptanceCheck,
    subject: str,
    value: float,
    expected: Sequence[ExpectedRate],
    *,
    part: str,
    fleet: Sequence[float] = (),
    evidence: str = "",
    compared_as: str = "",
    most: UpperLimit | None = None,
    without: str = "",
) -> CheckFinding:
    """The verdict on a rate against every expected value; the worst of them is reported.

    Without any expected value the check did not run, or warns where `without` says that a floor is missing. An outlier
    among ten or more other nodes is at least a warning. More than `most` is invalid, whatever is expected.

    Args:
        compared_as: see `CheckFinding`; the subject unless it is given.
        without: words for a rate of a GPU that nothing is expected of.
    """
    compared_as = compared_as or subject
    if most is not None and not value <= most.value:  # also where it is not a number
        return _impossible(check, subject, value, most, evidence)
    if not expected:
        return CheckFinding(
            check=check.number,
            subject=subject,
            verdict=CheckVerdict.WARN if without else CheckVerdict.NOT_RUN,
            measured=value,
            unit=check.unit,
            evidence=joined_evidence(without, evidence, "" if without else NOTHING_EXPECTED),
            compared_as=compared_as,
        )
    verdicts = [(_verdict(check, value / rate.value, rate), rate) for rate in expected]
    # among equal verdicts that with the least distance to its threshold
    verdict, worst = min(
        verdicts, key=lambda pair: (WORST_FIRST.index(pair[0]), check.bad_side * (pair[1].warn - value / pair[1].value))
    )
    others = [f"{value / rate.value:.3f} of {rate.source}" for rate in expected if rate is not worst]
    outlier = outlier_words(check, value, fleet)
    verdict = CheckVerdict.WARN if outlier and verdict is CheckVerdict.PASS else verdict
    return CheckFinding(
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
        part="" if verdict is CheckVerdict.PASS else part,
        evidence=joined_evidence(evidence, *others, outlier),
        compared_as=compared_as,
    )


def rate_finding(
    check: AcceptanceCheck,
    subject: str,
    value: float,
    history: History,
    part: str,
    known: Sequence[ExpectedRate],
    evidence: str = "",
    compared_as: str = "",
    most: UpperLimit | None = None,
    without: str = "",
) -> CheckFinding:
    """The verdict on a rate against `known` rates, this node's past, and other nodes of the fleet.

    Args:
        compared_as: name of what other batteries measured in the same way, where the subject alone does not say it.
        most: that such a device can reach.
        without: see `rated`.
    """
    past, fleet = (measured_values(findings) for findings in history.of(check.number, compared_as or subject))
    measured = (
        from_values(check, values, whose, virtual=history.virtual)
        for values, whose in ((past, NODE_PAST), (fleet, OTHER_NODES))
    )
    expected = [*known, *(rate for rate in measured if rate)]
    return rated(
        check,
        subject,
        value,
        expected,
        part=part,
        fleet=fleet,
        evidence=evidence,
        compared_as=compared_as,
        most=most,
        without=without,
    )


def limited(
    check: AcceptanceCheck, subject: str, figure: float, *, part: str, source: str, evidence: str = ""
) -> CheckFinding:
    """The verdict on a figure with thresholds of its own: a share, or a ratio of ranks."""
    assert check.warn is not None
    expected = ExpectedRate(value=1.0, source=source, warn=check.warn, fail=check.fail)
    verdict = _verdict(check, figure, expected)
    return CheckFinding(
        check=check.number,
        subject=subject,
        verdict=verdict,
        unit=check.unit,
        ratio=figure,
        warn=check.warn,
        fail=check.fail,
        source=source,
        part="" if verdict is CheckVerdict.PASS else part,
        evidence=evidence,
    )


def _verdict(check: AcceptanceCheck, ratio: float, expected: ExpectedRate) -> CheckVerdict:
    if expected.fail is not None and check.bad_side * (ratio - expected.fail) > 0:
        return CheckVerdict.FAIL
    return CheckVerdict.WARN if check.bad_side * (ratio - expected.warn) > 0 else CheckVerdict.PASS
