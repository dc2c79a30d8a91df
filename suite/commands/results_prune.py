"""Remove records on request: listed first, removed with --yes alone."""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from reference_runs.errors import InputError
from suite.commands import exit_codes
from suite.commands.options import Json, Machine, Results, Run, Statuses, name_left_out, print_json
from suite.paths import RESULTS
from suite.records.index import launches
from suite.records.prune import baseline_ids, removable, removable_damaged, remove, remove_leftovers
from suite.records.query import Selection, statuses
from suite.records.store import end_of


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
    if older_than is not None and not 0 <= older_than < math.inf:
        raise InputError("days", got=older_than, allowed="0 or more", where="--older-than")
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
            sys.stdout.write(f"{'removed' if yes else 'would remove'} {' and '.join(halves)}\n")
    if yes:
        remove_leftovers(results)
    name_left_out(failed)
    if json:
        entry = {"removed": yes, "records": [str(path) for path in paths], "failed": [str(e) for e in failed]}
        print_json(entry)
    elif not yes and paths:
        sys.stderr.write(f"{len(paths)} record{'s' if len(paths) > 1 else ''}; nothing is removed without --yes\n")
    if failed:
        raise typer.Exit(exit_codes.BAD_INPUT)
    raise typer.Exit(exit_codes.PASS if paths else exit_codes.INCONCLUSIVE)
