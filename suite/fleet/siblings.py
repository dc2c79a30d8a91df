"""One node's figures beside those of its siblings: their median, its modified z, and what no good node has."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from suite.acceptance.check_table import CHECKS, MATRIX, AcceptanceCheck
from suite.acceptance.judge.expected_rates import DEVIATIONS, SPREAD_FROM, SPREAD_UNKNOWN
from suite.acceptance.judge.noninferiority import FALSE_REJECTION
from suite.fleet.fleet_record import FleetValue
from suite.metrics.launch_statistics import t_quantile
from suite.metrics.modified_z import SHOWN_FROM, modified_z
from suite.records.battery import BatteryEnd, compared_values

Values = Mapping[str, float]


class SiblingLimit(NamedTuple):
    """Limit of a figure for good nodes: the siblings' median, and the share of it beyond which a value fails."""

    median: float
    share: float
    siblings: int


class SiblingSpread(NamedTuple):
    """Spread of a figure among siblings: how many have it, their median, and their deviation as a share of it."""

    siblings: int
    median: float
    variation: float


class SiblingFailure(NamedTuple):
    """A figure that no good node has: its name, and its value over the siblings' median."""

    figure: str
    check: int
    ratio: float
    source: str


def battery_values(battery: BatteryEnd) -> dict[str, float]:
    """The values of a battery that batteries of other nodes are compared with, by check and name."""
    return {f"{one.check} {one.compared_as}": value for one, value in compared_values(battery.findings)}


def steady_values(battery: BatteryEnd) -> dict[str, float]:
    """Values that may reject a node: not products of a virtual machine's CPU, as in `accept`."""
    return {
        name: value
        for name, value in battery_values(battery).items()
        if not (battery.shares_cores and check_of(name).number == MATRIX)
    }


def check_of(figure: str) -> AcceptanceCheck:
    """The check of a figure, by its name."""
    return CHECKS[int(figure.split()[0])]


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
    widest = max(1 - SPREAD_UNKNOWN, DEVIATIONS * deviation)
    return max(abs(1 - (check.fail or 1.0)), min(rare, widest))


class SiblingFigure:
    """A figure of several nodes, and its statistics without one of them: each node is compared with all others.

    Args:
        values: one of each node.
    """

    def __init__(self, values: Sequence[float]) -> None:
        self._ordered = sorted(values)
        self._mean = statistics.fmean(values)
        self._squares = math.fsum((value - self._mean) * (value - self._mean) for value in values)
        self._deviations: dict[float, list[float]] = {}

    def count(self, without: float | None) -> int:
        """The number of values, but for the one that is left out."""
        return len(self._ordered) - (without is not None)

    def median(self, without: float | None) -> float:
        """The median of the values, but for the one that is left out, if any."""
        return _median(self._ordered, without)

    def median_deviation(self, without: float | None) -> float:
        """The median distance from the median; both of the values but for the one that is left out."""
        median = self.median(without)
        if median not in self._deviations:  # there are three medians at most, whatever is left out
            self._deviations[median] = sorted(abs(value - median) for value in self._ordered)
        return _median(self._deviations[median], None if without is None else abs(without - median))

    def variation(self, without: float | None) -> float:
        """The standard deviation (n - 1) as a share of the median, of the values but for the one that is left out."""
        squares, count = self._squares, len(self._ordered)
        if without is not None:
            squares -= (without - self._mean) * (without - self._mean) * count / (count - 1)
            count -= 1
        return math.sqrt(max(0.0, squares) / (count - 1)) / self.median(without)


def _median(ordered: Sequence[float], without: float | None) -> float:
    """The median of sorted values, of which one may be left out."""
    gone = len(ordered) if without is None else bisect_left(ordered, without)
    count = len(ordered) - (without is not None)
    lower, upper = ((count - 1) // 2, count // 2)
    return (ordered[lower + (lower >= gone)] + ordered[upper + (upper >= gone)]) / 2


class Siblings:
    """Nodes of one kind, each of which is compared with all others.

    Args:
        values: their figures, by node.
    """

    def __init__(self, values: Mapping[str, Values]) -> None:
        self._values = values
        by_figure: dict[str, list[float]] = {}
        for own in values.values():
            for name, value in own.items():
                by_figure.setdefault(name, []).append(value)
        self._figures = {name: SiblingFigure(own) for name, own in by_figure.items()}

    def beside(self, node: str, units: Mapping[str, str]) -> dict[str, FleetValue]:
        """Each of a node's figures, with the median of the other nodes and its modified z among them.

        z as `suite.metrics.modified_z` defines it, from three siblings on that differ.
        """
        figures = {}
        for name, value in self._values.get(node, {}).items():
            of_all = self._figures[name]
            others = of_all.count(value)
            median = of_all.median(value) if others else None
            z = None
            if median is not None and others >= SHOWN_FROM:
                z = modified_z(value, median=median, deviation=of_all.median_deviation(value))
            figures[name] = FleetValue(value=value, unit=units.get(name, ""), median=median, z=z)
        return figures

    def limits(self, *, without: str | None = None) -> dict[str, SiblingLimit]:
        """By figure that three nodes have and of which a value can fail: what no good node of their kind has.

        Few siblings may agree by chance: the spread of three normal values is below a quarter of the true one in 1 of
        16 cases, and below a tenth in 1 of 100. Several figures of the same nodes rarely do so together. So the
        variance s^2 of a figure that spreads less than usual among k siblings is moderated by the usual one s0^2 of
        these nodes, which counts as much as that of three siblings, and ever less among more of them:
            s^2 -> max(s^2, (2 s0^2 + (k - 1) s^2) / (2 + k - 1))
        s0 is the median of all figures' s; of an even number of figures the lower of both, so that a node whose link or
        memory spoils two of four figures does not hide others. Figures need not spread alike: t keeps k - 1 degrees of
        freedom, and a figure that spreads more than usual its own s.

        Args:
            without: a node that is not among the siblings, but compared with them.

        Source: the moderated variance of Smyth, Linear models and empirical Bayes methods, 2004, section 3.
        """
        compared = self._spreads({} if without is None else self._values.get(without, {}))
        usual = statistics.median_low(one.variation for one in compared.values()) if compared else 0.0
        nodes = len(self._values) + (without is not None and without not in self._values)
        prior = SPREAD_FROM - 1
        limits = {}
        for name, (count, median, own_spread) in compared.items():
            seen = count - 1
            moderated = math.sqrt((prior * usual**2 + seen * own_spread**2) / (prior + seen))
            spread = max(own_spread, moderated)
            share = least_failing(check_of(name), count, spread=spread, comparisons=len(compared) * nodes)
            limits[name] = SiblingLimit(median, share, count)
        return limits

    def _spreads(self, left_out: Values) -> dict[str, SiblingSpread]:
        """Spreads of figures that three nodes have, without the node whose values are left out."""
        spreads = {}
        for name, figure in self._figures.items():
            own = left_out.get(name)
            if check_of(name).fail is not None and figure.count(own) >= SPREAD_FROM and (median := figure.median(own)):
                spreads[name] = SiblingSpread(figure.count(own), median, figure.variation(own))
        return spreads

    def failures(self, node: str, own: Values) -> list[SiblingFailure]:
        """Figures of a battery of a node that fail against the others, three at least, on the bad side of their check.

        A node is rejected only where a second battery fails in the same figure.
        """
        failures = []
        for name, limit in self.limits(without=node).items():
            if name not in own:
                continue
            check, ratio = check_of(name), own[name] / limit.median
            if (ratio - 1) * check.bad_side > limit.share:
                source = f"median of {limit.siblings} siblings, fails beyond {limit.share:.0%}"
                failures.append(SiblingFailure(name, check.number, ratio, source))
        return failures


class FirstBatteries:
    """The first batteries of a fleet's nodes; nodes with the same hardware and options are siblings.

    Args:
        batteries: by node.
    """

    def __init__(self, batteries: Mapping[str, BatteryEnd]) -> None:
        kinds: dict[_NodeKind, dict[str, BatteryEnd]] = {}
        for node, battery in batteries.items():
            kinds.setdefault(_kind(battery), {})[node] = battery
        self._all = {kind: _siblings(alike, battery_values) for kind, alike in kinds.items()}
        self._steady = {kind: _siblings(alike, steady_values) for kind, alike in kinds.items()}

    def failures(self, node: str, battery: BatteryEnd) -> dict[str, str]:
        """Figures of a node's battery that no good sibling has, in words."""
        siblings = self._steady.get(_kind(battery), Siblings({}))
        return {failed.figure: _words(failed) for failed in siblings.failures(node, steady_values(battery))}

    def remarks(self, node: str, battery: BatteryEnd) -> list[str]:
        """Figures that no good sibling has, though nothing follows from them: products on shared cores."""
        if not battery.shares_cores:
            return []
        steady = steady_values(battery)
        siblings = self._all.get(_kind(battery), Siblings({}))
        failures = siblings.failures(node, battery_values(battery))
        why = "of a virtual machine, whose processors other guests may share"
        return [f"remark: check {f.figure}: {_words(f)}: {why}" for f in failures if f.figure not in steady]


_NodeKind = tuple[str | None, frozenset[tuple[str, str]]]


def _kind(battery: BatteryEnd) -> _NodeKind:
    return battery.hashes.get("hardware"), frozenset(battery.options.items())


def _siblings(batteries: Mapping[str, BatteryEnd], values: Callable[[BatteryEnd], dict[str, float]]) -> Siblings:
    return Siblings({node: values(battery) for node, battery in batteries.items()})


def _words(failed: SiblingFailure) -> str:
    return f"{failed.ratio:.2f} of the {failed.source}"
