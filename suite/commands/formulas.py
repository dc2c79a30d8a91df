"""Textbook arithmetic: claims of published texts, and examples of the pages for students, by the same formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from reference_runs.errors import InputError, nearest
from reference_runs.units import UNITS
from reference_runs.worked_examples import WorkedExample, load
from suite.commands import exit_codes
from suite.commands.options import print_json
from suite.predict.validation.computations import Value
from suite.predict.validation.worked_examples import ExampleVerdict, FormulaResult, formula_results
from suite.report.terminal.tables import console, print_folded, print_table

if TYPE_CHECKING:
    import pandas

WORDS = {
    ExampleVerdict.AGREES: "agrees",
    ExampleVerdict.SLIPS: "text is wrong",
    ExampleVerdict.BROKEN: "not as recorded",
}


def formulas(
    examples: Annotated[list[str] | None, typer.Argument(help="Worked examples; default: all.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for each result.")] = False,
) -> None:
    """Check published arithmetic: 6 N D, 18 bytes a parameter, 40 s h L and others, claimed and computed.

    A named example is printed with its formula and inputs.

    Examples: python -m suite formulas; python -m suite formulas training_flop_6nd --json

    Exit codes: 0 all is as recorded, errors of the texts too; 1 a formula gives another figure than recorded.
    """
    chosen = _chosen(examples or [])
    results = [result for example in chosen for result in formula_results(example)]
    if json:
        for result in results:
            print_json(result)
    else:
        _print(chosen, results, explained=bool(examples))
    if any(result.verdict is ExampleVerdict.BROKEN for result in results):
        raise typer.Exit(exit_codes.FAIL)


def _chosen(ids: list[str]) -> list[WorkedExample]:
    recorded = {example.id: example for example in load()}
    for name in ids:
        if name not in recorded:
            meant = nearest(name, recorded)
            raise InputError("unknown example", got=repr(name), meant=meant, allowed=", ".join(recorded))
    return [recorded[name] for name in ids or recorded]


def _print(examples: list[WorkedExample], results: list[FormulaResult], *, explained: bool) -> None:
    out = console()
    for example in examples if explained else ():
        print_folded(out, f"{example.id}: {example.document}", "bold")
        inputs = ", ".join(f"{name} = {_input(value)}" for name, value in example.inputs.items())
        for title, text in (("formula", example.formula), ("inputs", inputs), ("note", example.note)):
            if text:
                print_folded(out, f"  {title:8} {text}", "")
    frame, reasons = _frame(results)
    print_table(out, frame, right=("claimed", "computed"))
    for number, reason in enumerate(reasons, start=1):
        print_folded(out, f"({number}) {reason}")
    wrong = {result.id for result in results if result.verdict is ExampleVerdict.BROKEN}
    mistaken = {result.id for result in results if result.verdict is ExampleVerdict.SLIPS} - wrong
    agree = len(examples) - len(wrong | mistaken)
    counts = f"{agree} agree, {len(mistaken)} with an error of the text, {len(wrong)} not as recorded"
    print_folded(out, f"examples: {counts}; results in all: {len(results)}", "")


def _frame(results: list[FormulaResult]) -> tuple[pandas.DataFrame, list[str]]:
    """The table, and the reasons that it numbers."""
    import pandas

    named = [f"{result.id}{' (found here)' if result.found_here else ''}: {result.why}" for result in results]
    reasons = list(dict.fromkeys(name for name, result in zip(named, results, strict=True) if result.why))
    frame = pandas.DataFrame(
        {
            "example": [f"{result.id}: {result.what}" for result in results],
            "claimed": [_figure(result.claimed, result.recorded_unit) for result in results],
            "computed": [_with_unit(result) for result in results],
            "verdict": [WORDS[result.verdict] for result in results],
            "why": [f"({reasons.index(n) + 1})" if r.why else "" for n, r in zip(named, results, strict=True)],
        }
    )
    return frame, reasons


def _with_unit(result: FormulaResult) -> str:
    computed = _figure(result.computed, result.recorded_unit)
    return computed if result.unit in (None, "1") else f"{computed} {result.recorded_unit}"


def _input(value: object) -> str:
    return f"{value:,.10g}" if isinstance(value, (int, float)) else str(value)


def _figure(value: Value | None, unit: str | None) -> str:
    """A value in base units as the text prints it: in the recorded unit, to six digits; counts below 1e12 whole."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    scaled = value / UNITS[unit][1] if unit in UNITS else value
    if isinstance(value, int) and scaled == value < 10**12:
        return f"{value:,}"
    return f"{scaled:,.0f}" if 10**6 <= scaled < 10**12 else f"{scaled:,.6g}"
