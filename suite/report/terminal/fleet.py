"""Nodes for people: a fleet's table, last verdicts, the history of a node, and outliers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from reference_runs.units import printed
from suite.fleet.verdicts import ACCEPTED, BAD, NOT_RUN
from suite.report.terminal.tables import print_folded, print_table

if TYPE_CHECKING:
    from suite.fleet.battery_queries import NodeVerdict, Outlier
    from suite.fleet.distinctions import Distinction
    from suite.fleet.fleet_record import FleetEnd, FleetRow, FleetValue

_COLOURS = {ACCEPTED: "bold green", NOT_RUN: "dim"}


def print_fleet(out: Console, end: FleetEnd) -> None:
    """Print the number of nodes by verdict, every node that is not accepted with its evidence, links and groups."""
    counts = Counter(row.verdict for row in end.rows)
    out.print(f"{len(end.rows)} nodes: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    width = max((len(row.node) for row in end.rows), default=0)
    for row in sorted(end.rows, key=lambda row: (row.verdict == ACCEPTED, row.verdict == NOT_RUN)):
        out.print(_line(row, width), soft_wrap=True)
        for words in _details(row):
            print_folded(out, f"  {words}")
    for link in end.links:
        print_folded(out, f"link {link}", "bold red")
    for group in end.groups:
        how = "exact figures agree" if group.exit_code == 0 else f"exit code {group.exit_code} {group.message}"
        print_folded(out, f"{group.run} over {len(group.nodes)} nodes: {how}")
    if end.drained:
        out.print(f"drained: {', '.join(end.drained)}")


def _line(row: FleetRow, width: int) -> str:
    colour = "bold red" if row.verdict in BAD else _COLOURS.get(row.verdict, "bold magenta")
    where = f"  {row.switch}" if row.switch else ""
    part = f": {row.part}" if row.part else ""
    return f"{escape(row.node.ljust(width))}{where}  [{colour}]{row.verdict}[/]{escape(part)}"


def _details(row: FleetRow) -> Sequence[str]:
    details = [row.evidence] if row.evidence else []
    if row.since is not None:
        details.append(f"bad since {moment_words(row.since)}")
    figures = [f"{name} {_value(value)}" for name, value in row.figures.items() if row.verdict != ACCEPTED]
    return [*details, *(["; ".join(figures)] if figures else [])]


def _value(value: FleetValue) -> str:
    text = _number(value.value, value.unit)
    if value.median is not None:
        text += f" (siblings {_number(value.median, value.unit)}"
        text += f", modified z {value.z:+.1f})" if value.z is not None else ")"
    return text


def _number(value: float, unit: str) -> str:
    return printed(value, unit) if unit in ("flop/s", "byte/s") else f"{value:.3g} {unit}".strip()


_MOST = 20  # lines of a table, beyond which --json has the rest


def print_nodes(out: Console, nodes: Sequence[NodeVerdict], batteries: int) -> None:
    """Print the number of nodes by verdict, then those that are not accepted."""
    counts = Counter(node.verdict for node in nodes)
    said = ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(counts.items()))
    out.print(f"{len(nodes):,} nodes, {batteries:,} batteries: {said}")
    bad = [node for node in nodes if node.verdict != ACCEPTED]
    rows = [
        (node.name or node.node, node.rack, node.verdict, node.part, moment_words(node.since or node.time))
        for node in bad[:_MOST]
    ]
    if rows:
        print_table(out, rows, ("node", "rack", "verdict", "part", "since"))
    _print_rest(out, len(bad))


def print_history(out: Console, history: Sequence[NodeVerdict]) -> None:
    """Print the verdicts of a node, newest first."""
    first = history[0]
    where = f", rack {first.rack}" if first.rack else ""
    out.print(f"{first.name or first.node} ({first.node}{where}): {len(history):,} verdicts", markup=False)
    rows = [(moment_words(said.time), said.verdict, said.part, said.evidence) for said in history[:_MOST]]
    print_table(out, rows, ("time", "verdict", "part", "evidence"))
    _print_rest(out, len(history))


def print_outliers(out: Console, outliers: Sequence[Outlier]) -> None:
    """Print figures that stand out, the furthest first."""
    if not outliers:
        return
    out.print(f"{len(outliers):,} figures stand out from their siblings; they judge nothing:")
    rows = [
        (
            outlier.name or outlier.node,
            outlier.figure,
            f"{outlier.value:.4g} {outlier.unit}".strip(),
            f"{outlier.median:.4g}",
            f"{outlier.z:+.1f}",
            f"{outlier.group} {outlier.of}",
            outlier.siblings,
        )
        for outlier in outliers[:_MOST]
    ]
    print_table(out, rows, ("node", "figure", "value", "median", "modified z", "among", "nodes"))
    _print_rest(out, len(outliers))


def print_common(out: Console, common: Sequence[Distinction]) -> None:
    """Print the attributes that nodes with such figures share more often than chance explains."""
    for one in common[:_MOST]:
        others = f"{one.others_standing_out:,} of {one.others:,} others"
        out.print(
            f"of {one.attribute} {one.value}, {one.standing_out:,} of {one.nodes:,} nodes stand out, and {others}; by "
            f"chance {one.p:.1g}",
            markup=False,
            soft_wrap=True,
        )
    _print_rest(out, len(common))


def _print_rest(out: Console, count: int) -> None:
    if count > _MOST:
        out.print(f"{count - _MOST:,} more: --json has all")


def moment_words(seconds: float) -> str:
    """A time for people."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
