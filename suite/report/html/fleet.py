"""The fleet on the page: a map of nodes, the history of those that are bad or stand out, what these have in common."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from reference_runs.errors import InputError
from suite.fleet.battery_queries import FigureOverTime, FleetSelection, FleetStore, NodeVerdict, Outlier
from suite.fleet.battery_store import BATTERIES, FLEETS, STORE, parts
from suite.fleet.distinctions import Distinction, distinctions
from suite.fleet.verdicts import ACCEPTED, BAD
from suite.machine.packages import lacking
from suite.report.html.plot import Cell, Plot, Trace, colour, significant, symbol, utc

COLUMNS = 64  # nodes of a row at most
MOST_HISTORIES = 20  # nodes with a picture: the bad ones, then those that stand out furthest
MOST_VERDICTS = 200  # of a node's table
MOST_FIGURES = 6  # of a node's picture: those that are furthest from 1 last
KINDS = ("accepted", "stands out", "not decided", "bad")  # 0 to 3
_FILLS = ("--good-back", "--c7", "--c8", "--bad")
NO_RACK = "no rack known"


class FleetSection(NamedTuple):
    """The fleet's section of the page.

    Args:
        says: all nodes in a sentence.
        nodes: the map; None without nodes.
        histories: a picture of each node that is bad or stands out; `left_out` more have none.
        common: what distinguishes those that stand out.
    """

    says: str
    nodes: Plot | None
    histories: Sequence[Plot]
    left_out: int
    common: Sequence[Distinction]

    @property
    def plots(self) -> list[Plot]:
        """All of its pictures."""
        return [*([self.nodes] if self.nodes else []), *self.histories]


EMPTY = FleetSection("", None, (), 0, ())


def fleet_section(results: Path) -> FleetSection:
    """The section of the store that `fleet report` made below `results`; empty without one, or without DuckDB."""
    store = results / STORE
    if not (parts(store, BATTERIES) or parts(store, FLEETS)) or lacking(["duckdb"]):
        return EMPTY
    try:
        known = FleetStore(store)
        nodes, outliers = known.nodes(FleetSelection()), known.outliers()
        if not nodes:
            return EMPTY
        furthest = {outlier.node: outlier for outlier in reversed(outliers)}  # they come furthest first
        bad = [node.node for node in nodes if node.verdict in BAD]
        shown = list(dict.fromkeys([*bad, *(outlier.node for outlier in outliers)]))
        drawn = shown[:MOST_HISTORIES]
        figures = known.over_time(drawn)
        names = {node.node: node for node in nodes}
        pictures = [
            _history(
                number,
                names[node],
                known.history(FleetSelection(node=node)),
                [figure for figure in figures if figure.node == node],
                [outlier for outlier in outliers if outlier.node == node],
            )
            for number, node in enumerate(drawn, 1)
        ]
    except InputError:
        return EMPTY
    common = distinctions(nodes, furthest)
    return FleetSection(
        _says(nodes, furthest, known.batteries()), _map(nodes, furthest), pictures, len(shown) - len(drawn), common
    )


def _says(nodes: Sequence[NodeVerdict], furthest: dict[str, Outlier], batteries: int) -> str:
    counts = Counter(node.verdict for node in nodes)
    said = ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(counts.items()))
    return (
        f"{len(nodes):,} nodes with {batteries:,} batteries: {said}. {len(furthest):,} have a figure that stands out."
    )


def _kind(node: NodeVerdict, furthest: dict[str, Outlier]) -> int:
    if node.verdict in BAD:
        return 3
    if node.verdict != ACCEPTED:
        return 2
    return 1 if node.node in furthest else 0


def _natural(words: str) -> list[tuple[int, str]]:
    """Sorts rack2 before rack10."""
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in re.split(r"(\d+)", words)]


def _map(nodes: Sequence[NodeVerdict], furthest: dict[str, Outlier]) -> Plot:
    racks: dict[str, list[NodeVerdict]] = {}
    for node in sorted(nodes, key=lambda node: (_natural(node.rack or NO_RACK), _natural(node.name or node.node))):
        racks.setdefault(node.rack or NO_RACK, []).append(node)
    rows: list[tuple[str, list[NodeVerdict]]] = []
    for rack, own in racks.items():
        for first in range(0, len(own), COLUMNS):
            rows.append((rack if not first else f"{rack}, from {first + 1}", own[first : first + COLUMNS]))
    width = max(len(own) for _, own in rows)
    steps = [(share, fill) for kind, fill in enumerate(_FILLS) for share in (kind / 4, (kind + 1) / 4)]
    trace: Trace = {
        "type": "heatmap",
        "x": list(range(1, width + 1)),
        "y": [rack for rack, _ in rows],
        "z": [[_kind(node, furthest) for node in own] + [None] * (width - len(own)) for _, own in rows],
        "text": [[_words(node, furthest) for node in own] + [""] * (width - len(own)) for _, own in rows],
        "hovertemplate": "%{text}<extra></extra>",
        "colorscale": [list(step) for step in steps],
        "zmin": -0.5,
        "zmax": 3.5,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {"tickvals": [0, 1, 2, 3], "ticktext": list(KINDS), "thickness": 12},
    }
    counts = [sum(_kind(node, furthest) == kind for node in nodes) for kind in range(4)]
    table: list[list[Cell]] = [
        [node.name or node.node, node.rack, node.verdict, node.part, _furthest(node, furthest), utc(node.time)]
        for _, own in rows
        for node in own
        if _kind(node, furthest)
    ]
    return Plot(
        id="fleet-map",
        title="All nodes by rack",
        says="A square is a node: "
        + ", ".join(f"{count:,} {kind}" for kind, count in zip(KINDS, counts, strict=True))
        + ". What stands out is accepted, with a figure far from its siblings'. The numbers name all but the accepted.",
        traces=[trace],
        layout={
            "xaxis": {"title": {"text": "node of the rack"}, "showgrid": False, "zeroline": False},
            "yaxis": {"type": "category", "autorange": "reversed", "showgrid": False},
        },
        columns=["node", "rack", "verdict", "part", "stands out furthest", "last verdict"],
        rows=table,
        height=120 + max(16 * len(rows), 60),
    )


def _words(node: NodeVerdict, furthest: dict[str, Outlier]) -> str:
    words = [node.name or node.node, f"{node.verdict}: {node.part}" if node.part else node.verdict]
    return "<br>".join(line.translate(_PLAIN) for line in (*words, _furthest(node, furthest)) if line)


_PLAIN = str.maketrans({"<": "&lt;", ">": "&gt;", "&": "&amp;"})


def _furthest(node: NodeVerdict, furthest: dict[str, Outlier]) -> str:
    outlier = furthest.get(node.node)
    if outlier is None:
        return ""
    return f"{outlier.figure}: {outlier.value / outlier.median:.2f} of its {outlier.group}'s median, z {outlier.z:+.1f}"


def _history(
    number: int,
    node: NodeVerdict,
    verdicts: Sequence[NodeVerdict],
    figures: Sequence[FigureOverTime],
    outliers: Sequence[Outlier],
) -> Plot:
    by_name: dict[str, list[FigureOverTime]] = {}
    for figure in figures:
        by_name.setdefault(figure.figure, []).append(figure)
    drawn = sorted(by_name, key=lambda name: -abs(by_name[name][-1].ratio - 1))[:MOST_FIGURES]
    traces: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name.translate(_PLAIN),
            "x": [utc(point.time, "%Y-%m-%d %H:%M:%S") for point in by_name[name]],
            "y": [significant(point.ratio, 4) for point in by_name[name]],
            "line": {"color": colour(index), "width": 1},
            "marker": {"color": colour(index), "symbol": symbol(index), "size": 6},
            "hovertemplate": "%{x|%Y-%m-%d %H:%M}: %{y:.3f}",
        }
        for index, name in enumerate(drawn)
    ]
    bad = [said for said in verdicts if said.verdict in BAD]
    shapes = [
        {"type": "line", "xref": "x", "yref": "paper", "x0": stamp, "x1": stamp, "y0": 0, "y1": 1}
        | {"line": {"color": "--bad", "width": 1, "dash": "dash"}}
        for stamp in dict.fromkeys(utc(said.time, "%Y-%m-%d %H:%M:%S") for said in bad[:MOST_VERDICTS])
    ]
    outside = "; ".join(
        dict.fromkeys(f"{outlier.figure} (z {outlier.z:+.1f} in its {outlier.group})" for outlier in outliers[:3])
    )
    said = f"{node.verdict}, {node.part}" if node.part else node.verdict
    since = f", bad since {utc(node.since)}" if node.since is not None else ""
    return Plot(
        id=f"fleet-node-{number}",
        title=f"{', '.join(filter(None, (node.name or node.node, node.rack)))}: {said}",
        says=f"{len(verdicts):,} verdicts, {len(bad):,} of them bad (dashed lines){since}. "
        + (f"Stands out: {outside}. " if outside else "")
        + "Figures over the median of its siblings' newest ones.",
        traces=traces,
        layout={"xaxis": {"type": "date"}, "yaxis": {"title": {"text": "over the siblings' median"}}, "shapes": shapes},
        columns=["time", "verdict", "part", "evidence"],
        rows=[[utc(said.time), said.verdict, said.part, said.evidence] for said in verdicts[:MOST_VERDICTS]],
        height=300 + 20 * len(drawn),
    )
