"""Prints the machine model's parameters, its errors, and what is left when something is left out of the fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reference_runs.machine_model import FitScores, MachineModel


def print_fit(out: Console, model: MachineModel, errors: Mapping[str, Sequence[float]]) -> None:
    """Print the parameters with uncertainty and support, and the errors by table."""
    table = _table(
        ("parameter", False), ("value", True), ("unit", False), ("uncertainty", True), ("rows", True), ("tables", True)
    )
    for name, parameter in model.parameters.items():
        if parameter.fitted:
            table.add_row(
                name,
                f"{parameter.value:.4g}",
                parameter.unit,
                f"{parameter.uncertainty or 0:.0%}",
                str(parameter.rows),
                str(len(parameter.tables)),
            )
        else:
            table.add_row(name, f"{parameter.value:.4g}", parameter.unit, "not fitted", "", "")
    out.print(table)
    scored = _table(("table", False), ("rows", True), ("mean error", True), ("bias", True), ("largest", True))
    for name, of_table in errors.items():
        largest = max(of_table, key=abs)
        scored.add_row(
            escape(name),
            str(len(of_table)),
            f"{fmean([abs(error) for error in of_table]):.1%}",
            f"{fmean(of_table):+.1%}",
            f"{largest:+.1%}",
        )
    out.print()
    out.print(scored)


def print_left_out(out: Console, scores: FitScores) -> None:
    """Print errors by table with the table, sizes and runs left out, and without each term."""
    table = _table(
        ("table", False),
        ("rows", True),
        ("fitted %", True),
        ("table left out %", True),
        ("size left out %", True),
        ("run left out %", True),
    )
    for name, score in scores.tables.items():
        run = "" if score.run_left_out is None else f"{score.run_left_out:.1f}, at most {score.run_left_out_max:.1f}"
        table.add_row(
            escape(name),
            str(score.rows),
            f"{score.fitted:.1f}",
            f"{score.table_left_out:.1f}",
            f"{score.size_left_out:.1f}",
            run,
        )
    out.print()
    out.print(table)
    terms = _table(("without", False), ("mean error %", True), ("more by", True))
    for term, error in sorted(scores.without_term.items(), key=lambda item: -item[1]):
        terms.add_row(term, f"{error:.1f}", f"{error - scores.all_terms:+.1f}")
    out.print()
    out.print(terms)
    out.print(f"{scores.free_parameters} free parameters; {scores.all_terms:.1f} % with every term")


def _table(*titles: tuple[str, bool]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title, numeric in titles:
        table.add_column(title, justify="right" if numeric else "left", no_wrap=True)
    return table
