"""List recorded launches, a line each."""

from __future__ import annotations

import sys
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
from suite.records import frame
from suite.records.index import LaunchSummary, launches
from suite.records.query import Selection, moment, statuses
from suite.report.tables import table


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
        sys.stdout.write(_table(chosen) + "\n")
    else:
        sys.stderr.write(f"none of {len(found)} launches in {results} is meant\n")
    raise typer.Exit(exit_code(any_record=bool(chosen), damaged=bool(bad)))


def _entry(launch: LaunchSummary) -> dict[str, Any]:
    names = ("id", "run", "status", "started", "node", "machine", "ranks", "layout", "compiled", "suite", "path")
    seconds = launch.measured.of(Quantity.STEP_SECONDS)
    return {name: getattr(launch, name) for name in names} | {"step_seconds": seconds}


def _table(launches: Sequence[LaunchSummary]) -> str:
    """Columns as wide as their cells, whatever the terminal's width, so that `grep` and `awk` find whole lines."""
    import pandas

    rows = frame.launches(launches)
    shown = pandas.DataFrame(
        {
            "id": rows.id,
            "started (UTC)": rows.started_utc.dt.strftime("%Y-%m-%d %H:%M:%S"),
            **{name: rows[name] for name in ("run", "status", "node", "ranks", "layout")},
            "execution": rows.compiled.map({True: "compiled", False: "eager"}),
            "step (s)": [printed(None if value != value else value, "s") for value in rows.step_seconds],
            "suite": rows.suite,
        }
    )
    return table(shown, right=("ranks", "step (s)"))
