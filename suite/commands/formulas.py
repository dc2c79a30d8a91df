"""Textbook arithmetic: claims of published texts, and examples of the pages for students, by the same formulas."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from reference_runs.errors import InputError, nearest
from reference_runs.units import UNITS
from reference_runs.worked_examples import WorkedExample, load
from suite.commands import exit_codes
from suite.commands.options import print_json
from suite.predict.validation.computations import Value
from suite.predict.validation.worked_examples import ExampleVerdict, FormulaResult, formula_results
from suite.report.terminal.tables import console, print_folded, print_table

TITLES = ("example", "claimed", "computed", "verdict", "why")
WORDS = {
    ExampleVerdict.AGREES: "agrees",
    ExampleVerdict.SLIPS: "text is wrong",
    ExampleVerdict.BROKEN: "not as recorded",
}


def formulas(
    examples: Annotated[list[str] | None, typer.Argument(help="Worked examples (default: all).")] = None,
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
    """Print one table of all results or, explained, each example with its formula and a table of its own."""
    out = console()
    lines, reasons = _lines(results)
    if not explained:
        print_table(out, lines, TITLES, right=("claimed", "computed"))
    for example in examples if explained else ():
        print_folded(out, f"{example.id}: {example.document}", "bold")
        inputs = ", ".join(f"{name} = {_input(value)}" for name, value in example.inputs.items())
        for title, text in (("formula", example.formula), ("inputs", inputs), ("note", example.note)):
            if text:
                print_folded(out, f"  {title:8} {text}", "")
        own = [line for line, result in zip(lines, results, strict=True) if result.id == example.id]
        _print_own(out, [(line[0].removeprefix(f"{example.id}: "), *line[1:]) for line in own])
    for number, reason in enumerate(reasons, start=1):
        print_folded(out, f"({number}) {reason}")
    wrong = {result.id for result in results if result.verdict is ExampleVerdict.BROKEN}
    mistaken = {result.id for result in results if result.verdict is ExampleVerdict.SLIPS} - wrong
    agree = len(examples) - len(wrong | mistaken)
    counts = f"{agree} agree, {len(mistaken)} with an error of the text, {len(wrong)} not as recorded"
    print_folded(out, f"examples: {counts}; results in all: {len(results)}", "")


def _print_own(out: Console, lines: list[tuple[str, ...]]) -> None:
    """Print the results of one example, without columns that say nothing: claims and verdicts where none is claimed."""
    told = {
        "result": True,
        "claimed": any(line[1] != "-" for line in lines),
        "computed": True,
        "verdict": any(line[1] != "-" or line[3] != WORDS[ExampleVerdict.AGREES] for line in lines),
        "why": any(line[4] for line in lines),
    }
    rows = [[cell for cell, shown in zip(line, told.values(), strict=True) if shown] for line in lines]
    titles = [title for title, shown in told.items() if shown]
    print_table(out, rows, titles, right=[title for title in ("claimed", "computed") if told[title]])


def _lines(results: list[FormulaResult]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Lines of the table, and the reasons that it numbers."""
    named = [f"{result.id}{' (found here)' if result.found_here else ''}: {result.why}" for result in results]
    reasons = list(dict.fromkeys(name for name, result in zip(named, results, strict=True) if result.why))
    lines: list[tuple[str, ...]] = [
        (
            f"{result.id}: {result.what}",
            _figure(result.claimed, result.recorded_unit),
            _with_unit(result),
            WORDS[result.verdict],
            f"({reasons.index(name) + 1})" if result.why else "",
        )
        for name, result in zip(named, results, strict=True)
    ]
    return lines, reasons


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
