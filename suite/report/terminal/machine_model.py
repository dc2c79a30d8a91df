"""Prints the machine model's parameters, its errors, and what is left when something is left out of the fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from rich.console import Console

from reference_runs.machine_model import FitScores, MachineModel, Parameter
from suite.report.terminal.tables import print_table


def print_fit(out: Console, model: MachineModel, errors: Mapping[str, Sequence[float]]) -> None:
    """Print the parameters with uncertainty and support, and the errors by table."""
    titles = ["parameter", "value", "unit", "uncertainty", "rows", "tables"]
    rows = ([name, *_support(parameter)] for name, parameter in model.parameters.items())
    print_table(out, rows, titles, right=("value", "uncertainty", "rows", "tables"))
    scored = (
        [
            name,
            len(of_table),
            f"{fmean(map(abs, of_table)):.1%}",
            f"{fmean(of_table):+.1%}",
            f"{max(of_table, key=abs):+.1%}",
        ]
        for name, of_table in errors.items()
    )
    out.print()
    print_table(out, scored, ["table", "rows", "mean error", "bias", "largest"])


def _support(parameter: Parameter) -> list[object]:
    """Value and unit of a parameter, and what they rest on."""
    value = [f"{parameter.value:.4g}", parameter.unit]
    if not parameter.fitted:
        return [*value, "not fitted", "", ""]
    uncertainty = "at its bound" if parameter.at_bound else f"{parameter.uncertainty or 0:.0%}"
    return [*value, uncertainty, parameter.rows, len(parameter.tables)]


def print_left_out(out: Console, scores: FitScores) -> None:
    """Print errors by table with the table, sizes and runs left out, and without each term."""
    rows, every = [], []
    for name, score in scores.tables.items():
        run = "" if score.run_left_out is None else f"{score.run_left_out:.1f}, at most {score.run_left_out_max:.1f}"
        errors = (score.fitted, score.table_left_out, score.cluster_left_out, score.size_left_out)
        every.append(errors)
        rows.append([name, score.rows, *(f"{error:.1f}" for error in errors), run])
    rows.append(["mean over the tables", "", *(f"{fmean(errors):.1f}" for errors in zip(*every, strict=True)), ""])
    titles = [
        "table",
        "rows",
        "fitted %",
        "table left out %",
        "cluster left out %",
        "size left out %",
        "run left out %",
    ]
    out.print()
    print_table(out, rows, titles, right=titles[1:])
    ordered = sorted(scores.without_term.items(), key=lambda item: -item[1])
    terms = [[term, f"{error:.1f}", f"{error - scores.all_terms:+.1f}"] for term, error in ordered]
    out.print()
    print_table(out, terms, ["without", "mean error %", "more by"])
    covered = ", ".join(f"{share:.0f} % by {kind}" for kind, share in scores.coverage.items())
    out.print(f"inside 80 % intervals, left out: {covered}")
    out.print(f"{scores.free_parameters} free parameters; {scores.all_terms:.1f} % with every term")
