"""The page of the machine model's numbers, in Markdown: parameters, errors, what is left when something is left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reference_runs.fit_scores import FitScores
from reference_runs.machine_model import MachineModel, Parameter
from reference_runs.published_tables import PublishedTables


def fit_page(model: MachineModel, scores: FitScores, tables: PublishedTables) -> str:
    """The whole page; the same text for the same records."""
    titles = {table.file.removesuffix(".csv"): table.title for table in tables.tables}
    errors = [
        [
            f"`{name}`",
            titles.get(name, ""),
            str(score.rows),
            f"{score.fitted:.1f}",
            f"{score.size_left_out:.1f}",
            f"{score.table_left_out:.1f}",
        ]
        for name, score in scores.tables.items()
    ]
    runs = [
        f"With each run of `{name}` left out in turn: {score.run_left_out:.1f} %, "
        f"the largest {score.run_left_out_max:.1f} %."
        for name, score in scores.tables.items()
        if score.run_left_out is not None
    ]
    fitted = {name: parameter for name, parameter in model.parameters.items() if parameter.fitted}
    fixed = {name: parameter for name, parameter in model.parameters.items() if not parameter.fitted}
    names = list(scores.tables)
    ablation = [
        [term, f"{error:.1f}", f"{error - scores.all_terms:+.1f}"]
        + [f"{scores.without_term_by_table[term][name] - scores.tables[name].fitted:+.1f}" for name in names]
        for term, error in sorted(scores.without_term.items(), key=lambda item: -item[1])
    ]
    parts = [
        "# Numbers of the machine model",
        "",
        "Written by `nox -s fit -- --write --leave-out`. What they mean: [machine_model.md](machine_model.md).",
        "",
        "## Errors of step time",
        "",
        "Mean absolute errors in percent. Size left out: of each row, with all rows of the same layers and hidden",
        "size, in every table, left out of the fit. Table left out: with the whole table left out.",
        "",
        *_table(["table", "", "rows", "fitted", "size left out", "table left out"], errors, numbers=4),
        "",
        *runs,
        "",
        f"Root mean square of all errors, each table weighted alike: {100 * model.residual:.1f} %.",
        "",
        "## Parameters",
        "",
        f"{len(fitted)} were fitted. Uncertainty is the relative standard error that the residuals leave, every row",
        "taken as a measurement of its own, and none where a parameter stands at one of its bounds. Rows are those",
        "whose time a change of 10 % moves by more than 0.1 %.",
        "",
        *_table(
            ["parameter", "value", "unit", "uncertainty", "rows", "tables", "meaning"],
            [
                [
                    f"`{name}`",
                    f"{parameter.value:.4g}",
                    parameter.unit,
                    "at its bound" if _at_bound(parameter) else f"{parameter.uncertainty or 0:.0%}",
                    str(parameter.rows or 0),
                    str(len(parameter.tables)),
                    parameter.meaning,
                ]
                for name, parameter in fitted.items()
            ],
        ),
        "",
        "Held fixed at these values, whether or not the tables would tell more of them:",
        "",
        *_table(
            ["parameter", "value", "unit", "meaning", "source"],
            [
                [f"`{name}`", f"{parameter.value:.4g}", parameter.unit, parameter.meaning, parameter.source]
                for name, parameter in fixed.items()
            ],
        ),
        "",
        "## What each term takes off the error",
        "",
        f"Mean over the tables in percent, after a new fit without the term; with all terms {scores.all_terms:.1f}.",
        "Then by how much each table's error grows, in points, in the order of the first table above.",
        "",
        *_table(["without", "error", "more by", *(str(place + 1) for place in range(len(names)))], ablation),
        "",
    ]
    return "\n".join(parts)


def _at_bound(parameter: Parameter) -> bool:
    return not 1.001 * parameter.least < parameter.value < 0.999 * parameter.most


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int = 0) -> list[str]:
    """Lines of a Markdown table; the last `numbers` columns stand right."""
    rules = ["---"] * (len(titles) - numbers) + ["--:"] * numbers
    return [f"| {' | '.join(cells)} |" for cells in (titles, rules, *rows)]
