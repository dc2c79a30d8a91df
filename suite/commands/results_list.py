"""List recorded launches, a line each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from reference_runs.errors import InputError
from suite.commands.options import Json, Machine, Results, Run, Since, Statuses, exit_code, name_left_out, print_json
from suite.metrics.figures import Quantity
from suite.paths import RESULTS
from suite.records import frame
from suite.records.index import launches
from suite.records.query import Selection, moment, statuses
from suite.records.summary import LaunchSummary
from suite.report.tables import table

_DIGITS = 8  # of an id, its last
_ONE = frozenset({"dp1", "tp1", "pp1", "cp1", "ep1"})


def list_command(
    run: Run = None,
    machine: Machine = None,
    status: Statuses = None,
    since: Since = None,
    limit: Annotated[int | None, typer.Option(help="Number of launches to list, the latest; default: all.")] = None,
    results: Results = RESULTS,
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
    known, bad = launches(results, run=run)
    name_left_out(bad)
    chosen = [launch for launch in known if wanted.takes(launch)][-(limit or 0) :]
    if json:
        for launch in chosen:
            print_json(_entry(launch))
    elif chosen:
        sys.stdout.write(_table(chosen) + "\n")
    else:
        sys.stderr.write(f"none of {len(known)} launches in {results} is meant\n")
    raise typer.Exit(exit_code(any_record=bool(chosen), damaged=bool(bad)))


def _entry(launch: LaunchSummary) -> dict[str, Any]:
    names = ("id", "run", "status", "started", "node", "machine", "ranks", "layout", "compiled", "suite", "path")
    seconds = launch.measured.of(Quantity.STEP_SECONDS)
    return {name: getattr(launch, name) for name in names} | {"step_seconds": seconds}


def _table(launches: Sequence[LaunchSummary]) -> str:
    """A line a launch, in 100 columns where all are of one node; of ids the digits that the other commands take too."""
    import pandas

    rows = frame.launches(launches)
    shown = pandas.DataFrame(
        {
            "id": rows.id.str[-_DIGITS:],
            "started (UTC)": rows.started_utc.dt.strftime("%Y-%m-%d %H:%M"),
            "run": rows.run,
            "status": rows.status,
            "layout": [_parallel(layout) for layout in rows.layout],
            "execution": rows.compiled.map({True: "compiled", False: "eager"}),
            "step ms": ["-" if seconds != seconds else f"{seconds * 1e3:,.4g}" for seconds in rows.step_seconds],
        }
    )
    if rows.node.nunique() > 1:
        shown.insert(4, "node", rows.node)
    return table(shown, right=["step ms"])


def _parallel(layout: str) -> str:
    """The part of a layout that says how it is spread over ranks, without axes of one."""
    return ",".join(part for part in layout.partition(",recompute")[0].split(",") if part not in _ONE)
