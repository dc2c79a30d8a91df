"""List recorded launches, a line each."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from reference_runs.errors import InputError
from reference_runs.units import printed
from suite.commands.records_options import Json, Machine, Run, Since, Statuses, exit_code, name_left_out
from suite.metrics.figures import Quantity
from suite.paths import ROOT
from suite.records.index import LaunchSummary, launches
from suite.records.query import Selection, moment, statuses

_TITLES = ("id", "started (UTC)", "run", "status", "node", "ranks", "layout", "execution", "step (s)", "suite")


def list_command(
    run: Run = None,
    machine: Machine = None,
    status: Statuses = None,
    since: Since = None,
    limit: Annotated[int | None, typer.Option(help="Only so many, the latest.")] = None,
    results: Annotated[Path, typer.Option(help="Where records are stored.")] = ROOT / "results",
    json: Json = False,
) -> None:
    """List recorded launches, oldest first, a line each; with --json an object a line.

    Example: python -m suite results list --run bloom-mini --status ok --since 7d --limit 20

    Exit codes: 0 listed, 2 bad input or a damaged record (the others are listed), 3 none found.
    """
    if limit is not None and limit < 1:
        raise InputError("limit", got=limit, allowed="1 or more", where="--limit")
    start = None if since is None else moment(since, where="--since")
    wanted = Selection(run=run, machine=machine, statuses=statuses(status or ()), since=start)
    found, bad = launches(results, run=run)
    name_left_out(bad)
    chosen = [launch for launch in found if wanted.takes(launch)][-(limit or 0) :]
    if json:
        for launch in chosen:
            sys.stdout.write(msgspec.json.encode(_entry(launch)).decode() + "\n")
    elif chosen:
        for line in _lines([_TITLES, *map(_cells, chosen)]):
            sys.stdout.write(line + "\n")
    else:
        sys.stderr.write(f"none of {len(found)} launches in {results} is meant\n")
    raise typer.Exit(exit_code(any_record=bool(chosen), damaged=bool(bad)))


def _entry(launch: LaunchSummary) -> dict[str, Any]:
    names = ("id", "run", "status", "started", "node", "machine", "ranks", "layout", "compiled", "suite", "path")
    seconds = launch.measured.of(Quantity.STEP_SECONDS)
    return {name: getattr(launch, name) for name in names} | {"step_seconds": seconds}


def _cells(launch: LaunchSummary) -> tuple[str, ...]:
    seconds = launch.measured.of(Quantity.STEP_SECONDS)
    return (
        launch.id,
        time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(launch.started)),
        launch.run,
        launch.status,
        launch.node,
        str(launch.ranks),
        launch.layout,
        "compiled" if launch.compiled else "eager",
        printed(seconds, "s"),
        launch.suite,
    )


def _lines(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns two blanks apart, whatever the terminal's width, so that `grep` and `awk` find whole lines."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
