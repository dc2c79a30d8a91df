"""Write a table of recorded launches for other programs: CSV or Parquet."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from reference_runs.errors import InputError
from suite.commands.options import Json, Machine, Results, Run, Since, Statuses, exit_code, name_left_out, print_json
from suite.paths import RESULTS
from suite.records.export import columns, written_csv, written_parquet
from suite.records.index import launches
from suite.records.query import Selection, moment, statuses

FORMATS = {"csv": written_csv, "parquet": written_parquet}


def export_command(
    out: Annotated[Path, typer.Option(readable=False, help="The file, for instance launches.csv.")],
    format_: Annotated[str, typer.Option("--format", help="csv or parquet (needs pyarrow).")] = "csv",
    run: Run = None,
    machine: Machine = None,
    status: Statuses = None,
    since: Since = None,
    results: Results = RESULTS,
    json: Json = False,
) -> None:
    """Write a row a launch, a column a fact or figure of the whole job, in base units, oldest first.

    A figure's column is `measured.` or `predicted.`, its quantity, axis, operation and term, joined by dots.

    Example: python -m suite results export --format parquet --out launches.parquet --run bloom-mini

    Exit codes: 0 written, 2 bad input or a damaged record (the others are written), 3 no launch to write.
    """
    if format_ not in FORMATS:
        raise InputError("unknown format", got=repr(format_), allowed=", ".join(FORMATS), where="--format")
    start = None if since is None else moment(since, where="--since")
    wanted = Selection(run=run, machine=machine, statuses=statuses(status or ()), since=start)
    known, bad = launches(results, run=run)
    chosen = [launch for launch in known if wanted.takes(launch)]
    name_left_out(bad)
    if chosen:
        table = columns(chosen)
        FORMATS[format_](table, out)
        if json:
            entry = {"file": str(out), "launches": len(chosen), "columns": list(table)}
            print_json(entry)
        else:
            sys.stdout.write(f"wrote {out}: {len(chosen)} launches, {len(table)} columns\n")
    else:
        sys.stderr.write(f"none of {len(known)} launches in {results} is meant: nothing is written\n")
    raise typer.Exit(exit_code(any_record=bool(chosen), damaged=bool(bad)))
