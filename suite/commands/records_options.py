"""What every command on records shares: options that choose launches, the names of what is left out, the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape

from reference_runs.errors import InputError
from suite.commands import exit_codes
from suite.report.terminal.tables import console

Run = Annotated[str | None, typer.Option(help="Of this run alone, for instance bloom-mini.")]
Machine = Annotated[
    str | None, typer.Option(help="The node's hash or its beginning, or words of the machine such as 'H200'.")
]
Statuses = Annotated[
    list[str] | None, typer.Option("--status", help="For instance --status ok, or --status hang --status oom.")
]
Since = Annotated[str | None, typer.Option(help="Started since, for instance 2026-11-22, 12h, 7d or 4w.")]
Json = Annotated[bool, typer.Option("--json", help="For machines; what is left out is named on stderr.")]


def name_left_out(errors: Sequence[InputError | str]) -> None:
    """A line on stderr for each record that is left out."""
    messages = console(stderr=True)
    for error in errors:
        messages.print(f"left out: {escape(str(error))}", soft_wrap=True)


def exit_code(*, any_record: bool, damaged: bool) -> int:
    """2 where a record is damaged, 3 where there is none, else 0."""
    if damaged:
        return exit_codes.BAD_INPUT
    return exit_codes.PASS if any_record else exit_codes.INCONCLUSIVE
