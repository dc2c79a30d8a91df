"""Read every record whole, and name what is damaged."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from reference_runs.errors import InputError
from suite.commands.options import Json, Results, Run, exit_code, name_left_out, print_json
from suite.paths import RESULTS
from suite.records.index import launches
from suite.records.store import read


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
        sys.stdout.write(f"{whole} records are whole, {len(bad)} damaged\n")
    raise typer.Exit(exit_code(any_record=bool(known), damaged=bool(bad)))
