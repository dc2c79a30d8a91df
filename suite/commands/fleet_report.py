"""Batteries of many nodes, read together: a table of nodes, the history of one, outliers, metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from reference_runs.errors import InputError
from suite.commands.new_file import Force, check_new
from suite.commands.options import exit_code, name_left_out, print_json
from suite.fleet.battery_queries import FleetSelection, FleetStore, NodeVerdict, Outlier
from suite.fleet.battery_store import STORE
from suite.fleet.distinctions import Distinction, distinctions
from suite.machine.packages import require
from suite.report.terminal.fleet import print_common, print_history, print_nodes, print_outliers
from suite.report.terminal.tables import console

THIS = "this"


def report_command(  # the command's options
    results: Annotated[Path, typer.Argument(help="The directory that all nodes share.")],
    node: Annotated[
        str | None, typer.Option(help="Print the history of this node: a name, a hash of records, or this.")
    ] = None,
    rack: Annotated[str | None, typer.Option(help="Nodes of this switch alone, as Slurm calls it.")] = None,
    part: Annotated[str | None, typer.Option(help="Only where these words are in the part at fault.")] = None,
    since: Annotated[str | None, typer.Option(help="Verdicts since, for instance 2026-11-22, 12h, 7d or 4w.")] = None,
    prometheus: Annotated[
        Path | None, typer.Option(readable=False, help="Write last verdicts as metrics, for instance suite.prom.")
    ] = None,
    force: Force = False,
    stored: Annotated[bool, typer.Option("--stored", help="Ask the store alone: look for no new records.")] = False,
    store: Annotated[
        Path | None, typer.Option(help="Directory of Parquet files (default: fleet-store in the directory).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Print the last verdict of every node, or the history of one, from all batteries and fleets below a directory.

    New records are taken into a columnar store first. A damaged one is named and left out. Without conditions, figures
    that stand out from their siblings (modified z of 3.5 or more, among nodes of the rack or firmware) are listed too,
    and the racks and firmware that more of their nodes have than chance would give.

    Examples: python -m suite fleet report /shared/results; python -m suite fleet report /shared/results --node n7;
    python -m suite fleet report /shared/results --node this --prometheus /var/lib/node_exporter/suite.prom --force

    Exit codes: 0 shown, 2 bad input or a damaged record (the others are shown), 3 nothing to show.
    """
    require("duckdb")
    if not results.is_dir():
        raise InputError("no such directory", got=str(results), allowed="a directory of records", where="DIR")
    check_new(prometheus, "--prometheus", force=force)
    node = _this_node() if node == THIS else node
    start = None if since is None else _moment(since)
    wanted = FleetSelection(node=node, rack=rack, part=part, since=start)
    place = store or results / STORE
    left_out = [] if stored else _ingested(results, place)
    name_left_out(left_out)
    known = FleetStore(place)
    nodes = known.nodes(wanted) if node is None or prometheus is not None else []
    history = [] if node is None else known.history(wanted)
    outliers: list[Outlier] = known.outliers() if wanted == FleetSelection() else []
    common = _in_common(nodes, outliers)
    if prometheus is not None:
        _write_metrics(prometheus, nodes)
    if json:
        print_json({"nodes": nodes, "history": history, "outliers": outliers, "common": common, "left_out": left_out})
    elif history:
        print_history(console(), history)
    elif nodes:
        print_nodes(console(), nodes, known.batteries())
        print_outliers(console(), outliers)
        print_common(console(), common)
    else:
        console(stderr=True).print(escape(_why_nothing(known, wanted, place, results, stored=stored)), soft_wrap=True)
    raise typer.Exit(exit_code(any_record=bool(nodes or history), damaged=bool(left_out)))


def _why_nothing(known: FleetStore, wanted: FleetSelection, store: Path, results: Path, *, stored: bool) -> str:
    if not known.nodes(FleetSelection()):
        if stored:
            return f"no verdicts in {store}: without --stored the records below {results} are taken in"
        return f"no verdicts in {store}: `accept` and `fleet accept` write them with --results {results}"
    if wanted.node is not None and wanted == FleetSelection(node=wanted.node):
        return f"no verdict of a node {wanted.node} in {store}; without --node all nodes are listed"
    return f"no verdict in {store} has all that the options ask for"


# Imported where they are needed: the history of a node by --stored needs none of them


def _ingested(results: Path, store: Path) -> list[str]:
    from suite.fleet.battery_table import ingest

    return ingest(results, store).left_out


def _in_common(nodes: list[NodeVerdict], outliers: list[Outlier]) -> list[Distinction]:
    if not outliers:
        return []
    return distinctions(nodes, {outlier.node for outlier in outliers})


def _this_node() -> str:
    from suite.machine.fingerprint import node_identity

    return node_identity()


def _moment(words: str) -> float:
    from suite.records.query import moment

    return moment(words, where="--since")


def _write_metrics(path: Path, nodes: list[NodeVerdict]) -> None:
    from suite.fleet.prometheus import write_metrics

    write_metrics(path, nodes)
