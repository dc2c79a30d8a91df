"""Take over the records of another results directory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from suite.commands import exit_codes
from suite.commands.options import Json, Results, name_left_out, print_json
from suite.paths import RESULTS
from suite.records.merge import merged
from suite.report.terminal.tables import console, print_refusal


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
        sys.stdout.write(f"{counts}, {len(outcome.conflicts)} conflicts, {len(outcome.damaged)} damaged\n")
    if outcome.damaged:
        raise typer.Exit(exit_codes.BAD_INPUT)
    if outcome.conflicts:
        raise typer.Exit(exit_codes.FAIL)
    if not outcome.added + outcome.ended + outcome.same:
        raise typer.Exit(exit_codes.INCONCLUSIVE)
