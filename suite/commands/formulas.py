"""Textbook arithmetic: what published texts compute in passing, checked by the formulas of the prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.markup import escape

from reference_runs.errors import InputError
from reference_runs.units import UNITS
from reference_runs.worked_examples import WorkedExample, load
from suite.commands import exit_codes
from suite.predict.validation.computations import Value
from suite.predict.validation.worked_examples import ExampleVerdict, FormulaResult, formula_results
from suite.report.tables import table
from suite.report.terminal.tables import console

if TYPE_CHECKING:
    import pandas

_WIDE = (120, 80)  # columns of a terminal that has room for examples and results, and for results, next to figures


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
    if any(result.verdict is ExampleVerdict.BROKEN for result in results):
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
    frame, reasons = _frame(results)
    for line in _lines(frame, out.width):
        out.print(line, markup=False, soft_wrap=True)
    for number, reason in enumerate(reasons, start=1):
        out.print(f"[dim]({number}) {escape(reason)}[/]")
    broken, slipped = (
        {result.id for result in results if result.verdict is verdict}
        for verdict in (ExampleVerdict.BROKEN, ExampleVerdict.SLIPS)
    )
    agree = len(examples) - len(broken | slipped)
    out.print(
        f"examples: {agree} agree, {len(slipped - broken)} slip, {len(broken)} broken; {len(results)} results in all"
    )


def _frame(results: list[FormulaResult]) -> tuple[pandas.DataFrame, list[str]]:
    """The table, each example named in its first row alone, and the reasons that it numbers."""
    import pandas

    named = [f"{result.id}{' (found here)' if result.found_here else ''}: {result.why}" for result in results]
    reasons = list(dict.fromkeys(name for name, result in zip(named, results, strict=True) if result.why))
    frame = pandas.DataFrame(
        {
            "example": [result.id for result in results],
            "result": [result.what for result in results],
            "claimed": [_figure(result.claimed, result.recorded_unit) for result in results],
            "computed": [_with_unit(result) for result in results],
            "verdict": [result.verdict.value for result in results],
            "why": [f"({reasons.index(n) + 1})" if r.why else "" for n, r in zip(named, results, strict=True)],
        }
    )
    frame.loc[frame.example.duplicated(), "example"] = ""
    return frame, reasons


def _lines(frame: pandas.DataFrame, width: int) -> list[str]:
    """The table; on a narrow terminal what an example is called, and then what a result is, stand on lines before."""
    titles = ["example", "result"][: sum(width < wide for wide in _WIDE)]
    head, *lines = table(frame.drop(columns=titles), right=("claimed", "computed")).splitlines()
    names = frame[titles].itertuples(index=False, name=None)
    named = zip(names, lines, strict=True)
    return [head, *(line for before, cells in named for line in [*filter(None, before), cells])]


def _with_unit(result: FormulaResult) -> str:
    computed = _figure(result.computed, result.recorded_unit)
    return computed if result.unit in (None, "1") else f"{computed} {result.recorded_unit}"


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
