"""One node's figures beside those of its siblings: their median, its modified z, and what no good node has."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from suite.acceptance.battery_record import BatteryEnd
from suite.acceptance.check_table import CHECKS, AcceptanceCheck
from suite.acceptance.judge.expected_rates import DEVIATIONS, MODIFIED_Z_FACTOR, SPREAD_FROM, UNKNOWN_MODEL
from suite.acceptance.judge.noninferiority import FALSE_REJECTION
from suite.fleet.fleet_record import FleetValue
from suite.metrics.launch_statistics import t_quantile

Values = Mapping[str, float]
Z_FROM = 3  # siblings, from which a z is shown; it judges nothing


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


def least_failing(check: AcceptanceCheck, siblings: Sequence[float], *, comparisons: int) -> float:
    """By what share of the siblings' median a value fails: that of the check, or more where they spread more.

    With k siblings whose standard deviation is s, one more good value differs from their median by d = s sqrt(1 + 1/k):
        max(the check's, min(t d, max(0.30, 3 d)))      t = t(1 - 0.01 / comparisons, k - 1), 3 at least
    So in 1 of 100 fleets some good value fails, however many are compared (Bonferroni). As in `accept`, the limit is
    not beyond the 30 % of values too few for a spread, unless 3 d is.
    """
    spread = statistics.stdev(siblings) / statistics.median(siblings)
    deviation = spread * math.sqrt(1 + 1 / len(siblings))
    rare = max(DEVIATIONS, t_quantile(1 - FALSE_REJECTION / comparisons, len(siblings) - 1)) * deviation
    widest = max(1 - UNKNOWN_MODEL, DEVIATIONS * deviation)
    return max(abs(1 - (check.fail or 1.0)), min(rare, widest))


def sibling_failures(own: Values, others: Mapping[str, Values]) -> list[SiblingFailure]:
    """The node's figures that fail against its siblings, three at least, on the bad side of their check.

    A node is rejected only where a second battery fails in the same figure.
    """
    failures = []
    for name, value in own.items():
        check = CHECKS[int(name.split()[0])]
        siblings = [values[name] for values in others.values() if name in values]
        if len(siblings) < SPREAD_FROM or check.fail is None or not statistics.median(siblings):
            continue
        ratio = value / statistics.median(siblings)
        limit = least_failing(check, siblings, comparisons=len(own) * (len(others) + 1))
        if (ratio - 1) * check.bad_side > limit:
            source = f"median of {len(siblings)} siblings, fails beyond {limit:.0%}"
            failures.append(SiblingFailure(name, check.number, ratio, source))
    return failures
