"""Textbook arithmetic: what published texts compute in passing, checked by the formulas of the prediction."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from reference_runs.errors import InputError
from reference_runs.units import UNITS
from reference_runs.worked_examples import WorkedExample, load
from suite.commands import exit_codes
from suite.predict.validation.computations import Value
from suite.predict.validation.worked_examples import FormulaResult, Verdict, formula_results
from suite.report.terminal.tables import console

_COLOURS = {Verdict.AGREES: "green", Verdict.SLIPS: "yellow", Verdict.BROKEN: "bold red"}
_TITLES = ("example", "result", "claimed", "computed", "verdict", "why")
_WIDE = 120  # columns of a terminal from which on the names of the examples stand beside their results


def formulas(
    examples: Annotated[list[str] | None, typer.Argument(help="Worked examples; default: all.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for each result.")] = False,
) -> None:
    """Check published arithmetic: 6 N D, 18 bytes a parameter, 40 s h L and others, claimed and computed.

    A named example is printed with its formula and inputs.

    Examples: python -m suite formulas; python -m suite formulas training_flop_6nd --json

    Exit codes: 0 all is as recorded, slips of the texts included; 1 a formula gives another figure than recorded.
    """
    chosen = _chosen(examples or [])
    results = [result for example in chosen for result in formula_results(example)]
    if json:
        for result in results:
            print(msgspec.json.encode(result).decode())
    else:
        _print(chosen, results, explained=bool(examples))
    if any(result.verdict is Verdict.BROKEN for result in results):
        raise typer.Exit(exit_codes.FAIL)


def _chosen(ids: list[str]) -> list[WorkedExample]:
    recorded = {example.id: example for example in load()}
    for name in ids:
        if name not in recorded:
            raise InputError("unknown example", got=repr(name), allowed=", ".join(recorded))
    return [recorded[name] for name in ids or recorded]


def _print(examples: list[WorkedExample], results: list[FormulaResult], *, explained: bool) -> None:
    out = console()
    if explained:
        for example in examples:
            out.print(f"[bold]{escape(example.id)}[/]  {escape(example.document)}")
            inputs = ", ".join(f"{name} = {_input(value)}" for name, value in example.inputs.items())
            for title, text in (("formula", example.formula), ("inputs", inputs), ("note", example.note)):
                if text:
                    out.print(f"  {title:8} {escape(text)}")
        out.print()
    rows, reasons = _rows(results)
    for table in _tables(rows, grouped=out.width < _WIDE):
        out.print(table)
    for number, reason in enumerate(reasons, start=1):
        out.print(f"[dim]({number}) {escape(reason)}[/]")
    broken, slipped = (
        {result.id for result in results if result.verdict is verdict} for verdict in (Verdict.BROKEN, Verdict.SLIPS)
    )
    agree = len(examples) - len(broken | slipped)
    out.print(
        f"examples: {agree} agree, {len(slipped - broken)} slip, {len(broken)} broken; {len(results)} results in all"
    )


def _rows(results: list[FormulaResult]) -> tuple[list[list[str]], list[str]]:
    """The table's cells, each example named in its first row alone, and the reasons that they number."""
    rows: list[list[str]] = []
    reasons: list[str] = []
    shown = ""
    for result in results:
        reason = f"{result.id}{' (found here)' if result.found_here else ''}: {result.why}"
        if result.why and reason not in reasons:
            reasons.append(reason)
        claimed, computed = (_figure(value, result.recorded_unit) for value in (result.claimed, result.computed))
        rows.append(
            [
                "" if result.id == shown else result.id,
                result.what,
                claimed,
                computed if result.unit in (None, "1") else f"{computed} {result.recorded_unit}",
                result.verdict.value,
                f"({reasons.index(reason) + 1})" if result.why else "",
            ]
        )
        shown = result.id
    return rows, reasons


def _tables(rows: list[list[str]], *, grouped: bool) -> list[Table]:
    """One table; or, where it would not fit, one for each example under its name, with columns of the same widths."""
    if not grouped:
        return [_table(rows, rows)]
    starts = [place for place, row in enumerate(rows) if row[0]]
    named: list[Table] = []
    for start, end in pairwise([*starts, len(rows)]):
        table = _table([row[1:] for row in rows[start:end]], [row[1:] for row in rows], header=start == 0)
        table.title, table.title_justify, table.title_style = escape(rows[start][0]), "left", "bold"
        named.append(table)
    return named


def _table(rows: list[list[str]], as_wide_as: list[list[str]], *, header: bool = True) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, show_header=header)
    titles = _TITLES[-len(rows[0]) :]
    for place, title in enumerate(titles):
        width = max(len(title), *(len(row[place]) for row in as_wide_as))
        justify: Literal["left", "right"] = "right" if title in ("claimed", "computed") else "left"
        table.add_column(title, justify=justify, min_width=width, no_wrap=True)
    for row in rows:
        cells = {title: escape(cell) for title, cell in zip(titles, row, strict=True)}
        cells["verdict"] = f"[{_COLOURS[Verdict(cells['verdict'])]}]{cells['verdict']}[/]"
        table.add_row(*cells.values())
    return table


def _input(value: object) -> str:
    return f"{value:,.10g}" if isinstance(value, (int, float)) else str(value)


def _figure(value: Value | None, unit: str | None) -> str:
    """A value in base units as the text prints it: in the recorded unit, to six digits; small counts whole."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    scaled = value / UNITS[unit][1] if unit in UNITS else value
    return f"{value:,}" if isinstance(value, int) and scaled == value < 10**9 else f"{scaled:,.6g}"
