"""One node's figures beside those of its siblings: their median, its modified z, and what no good node has."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from suite.acceptance.battery_record import BatteryEnd
from suite.acceptance.check_table import CHECKS, MATRIX, AcceptanceCheck
from suite.acceptance.judge.expected_rates import DEVIATIONS, MODIFIED_Z_FACTOR, SPREAD_FROM, UNKNOWN_MODEL
from suite.acceptance.judge.noninferiority import FALSE_REJECTION
from suite.fleet.fleet_record import FleetValue
from suite.metrics.launch_statistics import t_quantile

Values = Mapping[str, float]
Z_FROM = 3  # siblings, from which a z is shown; it judges nothing


class SiblingLimit(NamedTuple):
    """What no good node has of a figure: the siblings' median, and the share of it beyond which a value fails."""

    median: float
    share: float
    siblings: int


class SiblingFailure(NamedTuple):
    """A figure that no good node has: its name, and its value over the siblings' median."""

    figure: str
    check: int
    ratio: float
    source: str


def battery_values(battery: BatteryEnd) -> dict[str, float]:
    """The values of a battery that batteries of other nodes are compared with, by check and name."""
    return {
        f"{finding.check} {finding.compared_as}": finding.measured
        for finding in battery.findings
        if finding.compared_as and finding.measured is not None
    }


def steady_values(battery: BatteryEnd) -> dict[str, float]:
    """Those that may reject a node: not products of a virtual machine's CPU, as in `accept`."""
    return {
        name: value
        for name, value in battery_values(battery).items()
        if not (battery.shares_cores and check_of(name).number == MATRIX)
    }


def check_of(figure: str) -> AcceptanceCheck:
    """The check of a figure, by its name."""
    return CHECKS[int(figure.split()[0])]


def beside_siblings(node: str, values: Mapping[str, Values], units: Mapping[str, str]) -> dict[str, FleetValue]:
    """Each of a node's figures, with the median of the other nodes and its modified z among them.

    z = 0.6745 (value - median) / MAD, from three siblings on that differ.
    """
    figures = {}
    for name, value in values.get(node, {}).items():
        others = [own[name] for other, own in values.items() if other != node and name in own]
        median = statistics.median(others) if others else None
        z = None
        if median is not None and len(others) >= Z_FROM:
            deviation = statistics.median(abs(other - median) for other in others)
            z = MODIFIED_Z_FACTOR * (value - median) / deviation if deviation else None
        figures[name] = FleetValue(value=value, unit=units.get(name, ""), median=median, z=z)
    return figures


def least_failing(check: AcceptanceCheck, siblings: int, *, spread: float, comparisons: int) -> float:
    """By what share of the siblings' median a value fails: that of the check, or more where they spread more.

    With k siblings whose standard deviation is the share s of their median, one more good value differs from it by
    d = s sqrt(1 + 1/k):
        max(the check's, min(t d, max(0.30, 3 d)))      t = t(1 - 0.01 / comparisons, k - 1), 3 at least
    So in 1 of 100 fleets some good value fails, however many are compared (Bonferroni). As in `accept`, the limit is
    not beyond the 30 % of values too few for a spread, unless 3 d is.
    """
    deviation = spread * math.sqrt(1 + 1 / siblings)
    rare = max(DEVIATIONS, t_quantile(1 - FALSE_REJECTION / comparisons, siblings - 1)) * deviation
    widest = max(1 - UNKNOWN_MODEL, DEVIATIONS * deviation)
    return max(abs(1 - (check.fail or 1.0)), min(rare, widest))


def sibling_limits(siblings: Collection[Values], *, nodes: int) -> dict[str, SiblingLimit]:
    """By figure that three siblings have and of which a value can fail: what no good one of so many nodes has.

    Few siblings may agree by chance: the spread of three normal values is below a quarter of the true one in 1 of 16
    cases, and below a tenth in 1 of 100. Several figures of the same nodes rarely do so together. So the variance s^2
    of a figure that spreads less than usual among k siblings is moderated by the usual one s0^2 of these nodes, which
    counts as much as that of three siblings, and ever less among more of them:
        s^2 -> max(s^2, (2 s0^2 + (k - 1) s^2) / (2 + k - 1))
    s0 is the median of all figures' s; of an even number of figures the lower of both, so that a node whose link or
    memory spoils two of four figures does not hide others. Figures need not spread alike: t keeps k - 1 degrees of
    freedom, and a figure that spreads more than usual its own s.

    Source: the moderated variance of Smyth, Linear models and empirical Bayes methods, 2004, section 3.
    """
    figures = dict(_compared(siblings))
    spreads = {name: statistics.stdev(values) / statistics.median(values) for name, values in figures.items()}
    usual = statistics.median_low(spreads.values()) if spreads else 0.0
    limits = {}
    for name, values in figures.items():
        seen, prior = len(values) - 1, SPREAD_FROM - 1
        moderated = math.sqrt((prior * usual**2 + seen * spreads[name] ** 2) / (prior + seen))
        spread = max(spreads[name], moderated)
        share = least_failing(check_of(name), len(values), spread=spread, comparisons=len(figures) * nodes)
        limits[name] = SiblingLimit(statistics.median(values), share, len(values))
    return limits


def _compared(siblings: Collection[Values]) -> Iterator[tuple[str, Sequence[float]]]:
    for name in dict.fromkeys(name for own in siblings for name in own):
        values = [own[name] for own in siblings if name in own]
        if len(values) >= SPREAD_FROM and check_of(name).fail is not None and statistics.median(values):
            yield name, values


def sibling_failures(own: Values, others: Collection[Values]) -> list[SiblingFailure]:
    """The node's figures that fail against its siblings, three at least, on the bad side of their check.

    A node is rejected only where a second battery fails in the same figure.
    """
    failures = []
    for name, limit in sibling_limits(others, nodes=len(others) + 1).items():
        if name not in own:
            continue
        check, ratio = check_of(name), own[name] / limit.median
        if (ratio - 1) * check.bad_side > limit.share:
            source = f"median of {limit.siblings} siblings, fails beyond {limit.share:.0%}"
            failures.append(SiblingFailure(name, check.number, ratio, source))
    return failures
