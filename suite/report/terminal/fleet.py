"""The fleet's table for people."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from reference_runs.units import printed
from suite.fleet.fleet_record import FleetEnd, FleetRow, FleetValue
from suite.fleet.verdicts import ACCEPTED, BAD, NOT_RUN
from suite.report.terminal.tables import print_folded

_COLOURS = {ACCEPTED: "bold green", NOT_RUN: "dim"}


def print_fleet(out: Console, end: FleetEnd) -> None:
    """How many nodes are what, then every node that is not accepted with its part and evidence, links and groups."""
    counts: dict[str, int] = {}
    for row in end.rows:
        counts[row.verdict] = counts.get(row.verdict, 0) + 1
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
        details.append(f"bad since {time.strftime('%Y-%m-%d %H:%M', time.gmtime(row.since))} UTC")
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
