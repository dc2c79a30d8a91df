"""fleet references: what a further node of a fleet's kind must reach."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suite.commands.options import print_json
from suite.fleet.fleet_record import latest
from suite.fleet.references import references
from suite.paths import RESULTS


def references_command(
    fleet: Annotated[str | None, typer.Argument(help="The beginning of its id (default: the newest).")] = None,
    nodes: Annotated[str | None, typer.Option(help="These accepted nodes alone: a,b,c.")] = None,
    results: Annotated[Path, typer.Option(help="The directory that all nodes share.")] = RESULTS,
) -> None:
    """Print medians of a fleet's accepted nodes, and how far a good node is from them at most, as one JSON object.

    For an engine that compares figures by itself, such as ReFrame (deploy/reframe). `lower` and `upper` are shares of
    the value; null is never bad. Three nodes of one kind are needed.

    Example: python -m suite fleet references --results /shared/results

    Exit codes: 0 printed, 2 bad input, no fleet, or too few nodes.
    """
    chosen = [word.strip() for word in (nodes or "").split(",") if word.strip()]
    print_json(references(results, latest(results, fleet), chosen))
