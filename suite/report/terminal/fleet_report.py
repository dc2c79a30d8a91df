"""Last verdicts of nodes, the history of one, and outliers, for people."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console

from suite.fleet.battery_queries import NodeVerdict, Outlier
from suite.fleet.distinctions import Distinction
from suite.fleet.verdicts import ACCEPTED
from suite.report.terminal.tables import print_table

_MOST = 20  # lines of a table, beyond which --json has the rest


def print_nodes(out: Console, nodes: Sequence[NodeVerdict], batteries: int) -> None:
    """How many nodes are what, then those that are not accepted."""
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node.verdict] = counts.get(node.verdict, 0) + 1
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
    """The verdicts of a node, newest first."""
    first = history[0]
    where = f", rack {first.rack}" if first.rack else ""
    out.print(f"{first.name or first.node} ({first.node}{where}): {len(history):,} verdicts", markup=False)
    rows = [(moment_words(said.time), said.verdict, said.part, said.evidence) for said in history[:_MOST]]
    print_table(out, rows, ("time", "verdict", "part", "evidence"))
    _print_rest(out, len(history))


def print_outliers(out: Console, outliers: Sequence[Outlier]) -> None:
    """Figures that stand out, furthest first."""
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
    """What distinguishes the nodes with such figures from the others."""
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
