"""Compare two records: figures of the job and of ranks, and everything about machine and job that differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from reference_runs.errors import InputError
from suite.commands import exit_codes
from suite.commands.options import Json, Results, print_json
from suite.metrics.comparison import Row, Verdict
from suite.metrics.figures import Quantity
from suite.paths import RESULTS
from suite.records.diff import DifferingFact, difference
from suite.records.query import record_path
from suite.records.store import read
from suite.report.terminal.tables import console, print_comparison, print_table


def diff_command(
    left: Annotated[
        str, typer.Argument(help="latest, an id, its beginning, its last 8 digits, or the path of a file.")
    ],
    right: Annotated[str, typer.Argument(help="Another one, named alike.")],
    quantity: Annotated[
        list[str] | None, typer.Option(help="Only this one, for instance --quantity step_seconds; several times.")
    ] = None,
    ranks: Annotated[bool, typer.Option("--ranks", help="Print figures of each rank too.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Print figures that are the same too.")] = False,
    results: Results = RESULTS,
    json: Json = False,
) -> None:
    """Show what differs between two records: facts, then figures; right less left.

    A time of one launch each is shown, and not judged. With --json every figure, of each rank too.

    Example: python -m suite results diff 75741f03 1a2b3c4d --quantity payload_bytes --ranks

    Exit codes: 0 all exact figures agree, 1 one differs, 2 bad input, 3 no figures to compare.
    """
    for name in quantity or ():
        if name not in tuple(Quantity):
            raise InputError("unknown quantity", got=repr(name), allowed=", ".join(Quantity), where="--quantity")
    compared = difference(read(record_path(results, left)), read(record_path(results, right)))
    rows = [row for row in compared.figures if not quantity or row.quantity in quantity]
    failed = any(row.verdict is Verdict.FAIL for row in rows)
    if json:
        entry = {
            "left": compared.left,
            "right": compared.right,
            "facts": compared.facts,
            "figures": rows,
            "agree": not failed,
        }
        print_json(entry)
    else:
        out = console()
        out.print(f"left {compared.left}, right {compared.right}")
        _print_facts(out, compared.facts)
        shown = [row for row in rows if everything or row.difference != 0]
        shown = [_of_rank(row) if ranks else row for row in shown]
        if shown:
            print_comparison(out, shown, left="left", right="right", relative_to="left")
        else:
            out.print("no figure differs" if rows else "no figures to compare")
    raise typer.Exit(exit_codes.INCONCLUSIVE if not rows else exit_codes.FAIL if failed else exit_codes.PASS)


def _print_facts(out: Console, facts: Sequence[DifferingFact]) -> None:
    import pandas

    if not facts:
        out.print("all facts are the same")
        return
    frame = pandas.DataFrame(
        {
            "differs": [fact.name for fact in facts],
            "left": [fact.left or "-" for fact in facts],
            "right": [fact.right or "-" for fact in facts],
        }
    )
    print_table(out, frame, right=())


def _of_rank(row: Row) -> Row:
    """With the rank in words: tables show rows of single ranks only where they fail."""
    if row.rank is None:
        return row
    words = " ".join(part for part in (row.term, f"rank {row.rank}") if part)
    return msgspec.structs.replace(row, rank=None, stage=None, term=words)
