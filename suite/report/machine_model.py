"""The machine model's numbers for people: parameters, errors, and errors when something is left out of the fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from rich.console import Console

from reference_runs.machine_model import FitScores, LeftOutScore, MachineModel, Parameter
from reference_runs.published_tables import PublishedTables
from suite.metrics.difference_words import Direction, difference_in_words
from suite.predict.analytic.memory_uncertainty import PeakUncertainty
from suite.report.tables import MARKDOWN, table
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
            difference_in_words(1.0, 1 + fmean(of_table), Direction.TIME),
            difference_in_words(1.0, 1 + max(of_table, key=lambda error: abs(math.log1p(error))), Direction.TIME),
        ]
        for name, of_table in errors.items()
    )
    out.print()
    print_table(out, scored, ["table", "rows", "mean error", "measured is", "at most"])


def _support(parameter: Parameter) -> list[object]:
    """Value and unit of a parameter, and what they rest on."""
    value = [f"{parameter.value:.4g}", parameter.unit]
    if not parameter.fitted:
        return [*value, "not fitted", "", ""]
    uncertainty = "at its bound" if parameter.at_bound else f"{parameter.uncertainty or 0:.0%}"
    return [*value, uncertainty, parameter.rows or 0, len(parameter.tables)]


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
    terms = [[term, *_without(scores, term)] for term in _terms(scores)]
    out.print()
    print_table(out, terms, ["without", "mean error %", "more by"])
    covered = ", ".join(f"{share:.0f} % by {kind}" for kind, share in scores.coverage.items())
    out.print(f"inside 80 % intervals, left out: {covered}")
    if scores.later:
        out.print()
        print_table(out, _later_rows(scores), _LATER, right=_LATER[2:])
    out.print(f"{scores.free_parameters} free parameters; {scores.all_terms:.1f} % with every term")


PAGE = """# Numbers of the machine model

Edition {edition}. Written by `refruns refit --write --leave-out`, or with `--keep` too: then the parameters are those
of an earlier fit. What they mean: [machine_model.md](machine_model.md).

## Errors of step time

Mean absolute errors in percent. Size left out: of each row, with all rows of the same layers and hidden
size, in every table, left out of the fit. Table left out: with the whole table left out. Cluster left out: with all
tables of its machines. Parameters of a fold are solved with the derivatives at those of the whole; its rows are then
predicted exactly.

{errors}

{runs}

{means}

Root mean square of all errors, each table weighted alike: {residual:.1f} %.

{later}

## Intervals

An 80 % interval reaches from the prediction over a factor to the prediction times it: {computing:.2f} where
accelerators compute, {waiting:.2f} where they wait for a quarter of the step or longer, {mixtures:.2f} of mixtures of
experts. Within it lie 80 % of the rows whose table the fit has not seen, tables weighing alike; of mixtures 80 % of
those of the table above, their release left out. Of the rows of a group that was left
out, inside intervals that the other groups' errors give: {coverage}.

That of a peak is one for each kind of stack. Peaks are published, or reserved by PyTorch's allocator in launches on an
H100 (walked), and divided by the predicted ones: logs and tools count the allocator's unused parts and what collectives
hold too. A kind with fewer than 5 rows has the spread of the formula's excess over all kinds that are not walked
through. Of the peaks on a number of accelerators that was left out, {peak_coverage:.0f} % are inside what the others
give.

{peaks}

## Spreads

Standard deviations of the logarithm of a step's time that no column explains, estimated from the residuals:
{spreads}.

## Parameters

{fitted_count} were fitted. Uncertainty is the relative standard error that rows, spreads and expectations leave.
At a bound there is none. Rows are those whose time a change of 10 % moves by more than 0.1 %.

{fitted}

Held fixed at these values, whether or not the tables would tell more of them:

{fixed}

## What each term takes off the error

Mean over the tables in percent, after a new fit without the term; with all terms {all_terms:.1f}. Of each
table up to 20 rows count here. Then by how much each table's error grows, in points, in the order of the
first table above.

{ablation}
"""


def fit_page(model: MachineModel, scores: FitScores, tables: PublishedTables) -> str:
    """The whole page; the same text for the same records."""
    runs = [
        f"With each run of `{name}` left out in turn: {score.run_left_out:.1f} %, "
        f"the largest {score.run_left_out_max:.1f} %."
        for name, score in scores.tables.items()
        if score.run_left_out is not None
    ]
    return PAGE.format(
        edition=model.edition,
        errors=_errors(scores, tables),
        later=_later(scores),
        runs="\n".join(runs),
        means=_means(scores),
        computing=math.exp(scores.half_width["computing"]),
        waiting=math.exp(scores.half_width["waiting"]),
        mixtures=math.exp(scores.half_width["mixtures"]),
        peaks=_peaks(scores),
        peak_coverage=scores.peak_coverage,
        coverage=", ".join(f"{share:.0f} % by {kind}" for kind, share in scores.coverage.items()),
        spreads=_spreads(model),
        residual=100 * model.residual,
        fitted_count=sum(parameter.fitted for parameter in model.parameters.values()),
        fitted=_fitted(model),
        fixed=_fixed(model),
        all_terms=scores.all_terms,
        ablation=_ablation(scores),
    )


def _errors(scores: FitScores, tables: PublishedTables) -> str:
    titles = {facts.file.removesuffix(".csv"): facts.title for facts in tables.tables}
    rows = [
        [*(f"`{name}`", titles.get(name, ""), score.rows), *(f"{error:.1f}" for error in _errors_of(score))]
        for name, score in scores.tables.items()
    ]
    return table(rows, ["table", "", "rows", *_ERRORS], style=MARKDOWN)


_ERRORS = ("fitted", "size left out", "table left out", "cluster left out")


def _errors_of(score: LeftOutScore) -> tuple[float, ...]:
    return (score.fitted, score.size_left_out, score.table_left_out, score.cluster_left_out)


_LATER = [
    *("table", "models", "rows", "fitted %", "release left out", "accelerator", "model"),
    *("not fitted", "inside intervals"),
]


def _later_rows(scores: FitScores) -> list[list[object]]:
    rows: list[list[object]] = []
    for name, kinds in scores.later.items():
        for kind, score in kinds.items():
            left = (score.fitted, score.release_left_out, score.accelerator_left_out, score.size_left_out)
            rows.append([name, kind, score.rows, *(f"{each:.1f}" for each in (*left, score.expected, score.coverage))])
    return rows


def _later(scores: FitScores) -> str:
    words = (
        "After that fit, with its parameters kept, a table of later accelerators and formats determines parameters of "
        "its own. Errors\nof its dense models and its mixtures in percent: with a release of the software, an "
        "accelerator, or a model\nleft out, with these parameters as they were expected before any fit, and how many "
        "rows are inside the interval that\nthe other releases give:"
    )
    return f"{words}\n\n{table(_later_rows(scores), _LATER, style=MARKDOWN)}" if scores.later else ""


def _means(scores: FitScores) -> str:
    by_error = zip(*(_errors_of(score) for score in scores.tables.values()), strict=True)
    words = [f"{name} {fmean(errors):.1f} %" for name, errors in zip(_ERRORS, by_error, strict=True)]
    return f"Means over the tables: {', '.join(words)}."


def _peaks(scores: FitScores) -> str:
    rows = []
    for kind, spread in scores.peaks.items():
        rows.append([kind, spread.rows, *(f"{times:.2f}" for times in PeakUncertainty(spread.spread).interval(1.0))])
    return table(rows, ["stacks", "rows", "80 %: from", "to times the predicted"], style=MARKDOWN)


def _spreads(model: MachineModel) -> str:
    spreads = model.spreads
    return (
        f"laboratory {spreads.laboratory:.1%}, size {spreads.size:.1%}, row {spreads.row:.1%}; "
        f"in the composed table measured layer {spreads.part:.1%}, row {spreads.composed_row:.1%}"
    )


def _fitted(model: MachineModel) -> str:
    rows = [
        [f"`{name}`", *_support(parameter), parameter.meaning]
        for name, parameter in model.parameters.items()
        if parameter.fitted
    ]
    return table(rows, ["parameter", "value", "unit", "uncertainty", "rows", "tables", "meaning"], style=MARKDOWN)


def _fixed(model: MachineModel) -> str:
    rows = [
        [f"`{name}`", f"{parameter.value:.4g}", parameter.unit, parameter.meaning, parameter.source]
        for name, parameter in model.parameters.items()
        if not parameter.fitted
    ]
    return table(rows, ["parameter", "value", "unit", "meaning", "source"], style=MARKDOWN)


def _ablation(scores: FitScores) -> str:
    tables = scores.tables.items()
    rows = [
        [term, *_without(scores, term)]
        + [f"{scores.without_term_by_table[term][name] - score.fitted:+.1f}" for name, score in tables]
        for term in _terms(scores)
    ]
    return table(rows, ["without", "error", "more by", *map(str, range(1, len(tables) + 1))], style=MARKDOWN)


def _terms(scores: FitScores) -> list[str]:
    """The terms of the model, the one that takes most off the error first."""
    return sorted(scores.without_term, key=lambda term: -scores.without_term[term])


def _without(scores: FitScores, term: str) -> tuple[str, str]:
    """The mean error without a term, and by how much it is more than with all."""
    error = scores.without_term[term]
    return f"{error:.1f}", f"{error - scores.all_terms:+.1f}"
