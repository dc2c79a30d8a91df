"""Commands on all records that options choose: list, check, export, merge, prune."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from reference_runs.errors import InputError
from reference_runs.quantities import MOST
from suite.commands import exit_codes
from suite.commands.new_file import Force, check_new, check_new_directory
from suite.commands.options import Json, Machine, Results, Run, Since, Statuses, exit_code, name_left_out, print_json
from suite.machine.packages import require
from suite.metrics.figures import Quantity
from suite.paths import RESULTS
from suite.records import frame
from suite.records.export import columns, written_csv, written_parquet
from suite.records.index import launches
from suite.records.merge import merged
from suite.records.prune import baseline_ids, removable, removable_damaged, remove, remove_leftovers
from suite.records.query import Selection, moment, statuses
from suite.records.store import end_of, read
from suite.records.summary import LaunchSummary
from suite.report.tables import table
from suite.report.terminal.tables import console, print_refusal, write_line

MOST_DAYS = 100_000  # of a launch's age: 273 years
_DIGITS = 8  # of an id, its last
_ONE = frozenset({"dp1", "tp1", "pp1", "cp1", "ep1"})


def list_command(
    run: Run = None,
    machine: Machine = None,
    status: Statuses = None,
    since: Since = None,
    limit: Annotated[int | None, typer.Option(help="Number of launches to list, the latest (default: all).")] = None,
    results: Results = RESULTS,
    json: Json = False,
) -> None:
    """List recorded launches, oldest first, a line each; with --json an object a line.

    Example: python -m suite results list --run bloom-mini --status ok --since 7d --limit 20

    Exit codes: 0 listed, 2 bad input or a damaged record (the others are listed), 3 none found.
    """
    if limit is not None and not 1 <= limit <= MOST:
        raise InputError("limit", got=limit, allowed=f"1 to {MOST:,}", where="--limit")
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
        write_line(f"none of {len(known)} launches in {results} is meant", stderr=True)
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


def check_command(run: Run = None, results: Results = RESULTS, json: Json = False) -> None:
    """Read every field of every record, also those that no table needs, and name what is damaged.

    Example: python -m suite results check

    Exit codes: 0 all are whole, 2 bad input or a damaged record, 3 there is none.
    """
    known, bad = launches(results, run=run)
    whole = 0
    for launch in known:
        try:
            read(Path(launch.path))
            whole += 1
        except InputError as error:
            bad.append(error)
    if json:
        damaged = [{"path": error.where, "why": str(error)} for error in bad]
        print_json({"whole": whole, "damaged": damaged})
    else:
        name_left_out(bad)
        write_line(f"{whole} records are whole, {len(bad)} damaged")
    raise typer.Exit(exit_code(any_record=bool(known), damaged=bool(bad)))


FORMATS = {"csv": written_csv, "parquet": written_parquet}
SERVICES = ("pytorch-benchmark", "bencher", "asv")


def export_command(
    out: Annotated[Path, typer.Option(readable=False, help="The file, for instance launches.csv; of asv a directory.")],
    format_: Annotated[
        str, typer.Option("--format", help="csv, parquet (needs pyarrow), pytorch-benchmark, bencher or asv.")
    ] = "csv",
    force: Force = False,
    run: Run = None,
    machine: Machine = None,
    status: Statuses = None,
    since: Since = None,
    results: Results = RESULTS,
    json: Json = False,
) -> None:
    """Write a row a launch, a column a fact or figure of the whole job, in base units, oldest first.

    A figure's column is `measured.` or `predicted.`, its quantity, axis, operation and term, joined by dots. For
    PyTorch's benchmark database, Bencher and asv: the measured figures of whole launches, in their own forms.

    Example: python -m suite results export --format parquet --out launches.parquet --run bloom-mini

    Exit codes: 0 written, 2 bad input or a damaged record (the others are written), 3 no launch to write.
    """
    if format_ not in (*FORMATS, *SERVICES):
        allowed = ", ".join((*FORMATS, *SERVICES))
        raise InputError("unknown format", got=repr(format_), allowed=allowed, where="--format")
    if format_ == "asv":  # of which new files join a directory
        check_new_directory(out, "--out", force=True)
    else:
        check_new(out, "--out", force=force)
    require("pandas", *(("pyarrow",) if format_ == "parquet" else ()))
    start = None if since is None else moment(since, where="--since")
    wanted = Selection(run=run, machine=machine, statuses=statuses(status or ()), since=start)
    known, bad = launches(results, run=run)
    chosen = [launch for launch in known if wanted.takes(launch)]
    name_left_out(bad)
    if chosen:
        names = _written(chosen, format_, out, force=force)
        if json:
            print_json({"file": str(out), "launches": len(chosen), "columns": names})
        else:
            what = "columns" if format_ in FORMATS else "figures"
            write_line(f"wrote {out}: {len(chosen)} launches, {len(names)} {what}")
    else:
        write_line(f"none of {len(known)} launches in {results} is meant: nothing is written", stderr=True)
    raise typer.Exit(exit_code(any_record=bool(chosen), damaged=bool(bad)))


def _written(chosen: Sequence[LaunchSummary], name: str, out: Path, *, force: bool) -> list[str]:
    """Write launches in a format; names of its columns, or of the figures that a service gets.

    Raises:
        InputError: it cannot be written, or the service has no place for these launches.
    """
    if name in FORMATS:
        table = columns(chosen)
        FORMATS[name](table, out)
        return [*table]
    from suite.records import benchmark_export as services

    figures = services.measured(chosen)
    if name == "asv":
        if without := services.write_asv(figures, out, force=force):
            write_line(f"left out: {without} launches of no commit, for which asv has no place", stderr=True)
    else:
        content = services.bencher(figures) if name == "bencher" else services.pytorch_records(figures)
        services.written_json(content, out)
    return sorted({each.quantity for each in figures})


def merge_command(
    directory: Annotated[Path, typer.Argument(help="A results directory, for instance copied from another machine.")],
    results: Results = RESULTS,
    json: Json = False,
) -> None:
    """Copy the records of DIRECTORY that are not here yet. Nothing is overwritten; merging again changes nothing.

    A record whose id has another content here is named and left where it is.

    Example: python -m suite results merge /mnt/node17/results

    Exit codes: 0 merged, 1 an id has two contents, 2 bad input or a damaged record, 3 nothing to merge, 4 no room.
    """
    messages = console(stderr=True)
    try:
        outcome = merged(directory, results)
    except OSError as error:
        print_refusal(error)
        raise typer.Exit(exit_codes.EXECUTION_FAILED) from error
    name_left_out(outcome.damaged)
    for conflict in outcome.conflicts:
        messages.print(f"conflict: {escape(conflict)}", soft_wrap=True)
    if json:
        print_json(outcome)
    else:
        counts = f"{outcome.added} added, {outcome.ended} got their end, {outcome.same} were here"
        write_line(f"{counts}, {len(outcome.conflicts)} conflicts, {len(outcome.damaged)} damaged")
    if outcome.damaged:
        raise typer.Exit(exit_codes.BAD_INPUT)
    if outcome.conflicts:
        raise typer.Exit(exit_codes.FAIL)
    if not outcome.added + outcome.ended + outcome.same:
        raise typer.Exit(exit_codes.INCONCLUSIVE)


def prune_command(
    older_than: Annotated[float | None, typer.Option(help="Days since the launch started, at least.")] = None,
    status: Statuses = None,
    damaged: Annotated[bool, typer.Option("--damaged", help="Records that cannot be read, and no others.")] = False,
    run: Run = None,
    machine: Machine = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them; without it they are only listed.")] = False,
    results: Results = RESULTS,
    json: Json = False,
) -> None:
    """List the records that fit all options; with --yes, remove them.

    What a file below baselines/ names stays, and so does what runs; another machine's launch without an end may run
    there, and goes with --status unknown alone.

    Example: python -m suite results prune --status crashed --older-than 30 --yes

    Exit codes: 0 listed or removed, 2 bad input or a record that cannot be removed, 3 nothing fits.
    """
    if older_than is not None and not 0 <= older_than <= MOST_DAYS:
        raise InputError("days", got=older_than, allowed=f"0 to {MOST_DAYS:,}", where="--older-than")
    if older_than is None and not status and not damaged:
        raise InputError("nothing says what to remove", allowed="--older-than, --status or --damaged")
    if damaged and (older_than is not None or status or machine):
        raise InputError("what is damaged has no age, status or machine", allowed="--damaged, with --run or alone")
    before = None if older_than is None else time.time() - 86400 * older_than
    wanted = Selection(run=run, machine=machine, statuses=statuses(status or ()), before=before)
    known, bad = launches(results, run=run, recorded=False)
    kept = baseline_ids(results)
    if damaged:
        paths = removable_damaged(bad, kept)
    else:
        paths = [Path(launch.path) for launch in removable(known, wanted, kept)]
    failed: list[InputError] = []
    for path in paths:
        halves = [str(half) for half in (path, end_of(path)) if os.path.lexists(half)]
        if yes:
            try:
                remove(path)
            except InputError as error:
                failed.append(error)
                continue
        if not json:
            write_line(f"{'removed' if yes else 'would remove'} {' and '.join(halves)}")
    if yes:
        remove_leftovers(results)
    name_left_out(failed)
    if json:
        entry = {"removed": yes, "records": [str(path) for path in paths], "failed": [str(e) for e in failed]}
        print_json(entry)
    elif not yes and paths:
        write_line(f"{len(paths)} record{'s' if len(paths) > 1 else ''}; nothing is removed without --yes", stderr=True)
    if failed:
        raise typer.Exit(exit_codes.BAD_INPUT)
    raise typer.Exit(exit_codes.PASS if paths else exit_codes.INCONCLUSIVE)
