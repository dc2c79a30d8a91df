"""How near predictions come to tables of published measurements, and how near one constant MFU comes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reference_runs.errors import InputError
from reference_runs.machine_model import chosen_edition
from reference_runs.published import load_table
from reference_runs.published_tables import held_out_tables, proxy_tables, shipped_tables
from suite.commands import exit_codes
from suite.commands.new_file import check_new, forced
from suite.commands.options import print_json
from suite.commands.training_options import asks_edition
from suite.machine.packages import require
from suite.predict.validation.proxies import proxy_pairs
from suite.predict.validation.published_tables import table_score, timed_rows
from suite.report.plots.validation import draw
from suite.report.predicted_table import write_as_read, write_predictions
from suite.report.terminal.plan import print_ranked
from suite.report.terminal.tables import console
from suite.report.terminal.validation import print_proxies, print_scores

_PRINTED, _WRITTEN, _INSTEAD = "Output", "Files to write", "Other comparisons"  # headings of --help


Worst = Annotated[
    int,
    typer.Option(
        help="Number of worst rows to print, of each of TABLES.", min=0, max=1_000_000, rich_help_panel=_PRINTED
    ),
]
EveryLine = Annotated[
    bool,
    typer.Option(
        "--all",
        help="Print all on how each table was read: sources, assumptions, skipped rows.",
        rich_help_panel=_PRINTED,
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(help="Draw predicted against published times into this file (.svg, .png).", rich_help_panel=_WRITTEN),
]
Written = Annotated[
    Path | None,
    typer.Option(
        help="Write the table with predicted values in further columns to this file (one of TABLES).",
        rich_help_panel=_WRITTEN,
    ),
]
AsRead = Annotated[
    Path | None,
    typer.Option(
        help="Write the table as it was read, with notes, to this file, to be edited (one of TABLES).",
        rich_help_panel=_WRITTEN,
    ),
]
Proxies = Annotated[
    bool,
    typer.Option(
        "--proxies", help="Predict whole models from published steps of some of their layers.", rich_help_panel=_INSTEAD
    ),
]
Layouts = Annotated[
    bool,
    typer.Option(
        "--layouts",
        help="Rank 18 published layouts among all that their builders could choose.",
        rich_help_panel=_INSTEAD,
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON object a table, a pair of --proxies, or a layout; errors in percent.",
        rich_help_panel=_PRINTED,
    ),
]


@asks_edition
def validate(
    tables: Annotated[list[Path] | None, typer.Argument(help="Tables ending in .csv (default: all published).")] = None,
    worst: Worst = 5,
    every_table: EveryLine = False,
    plot: Plot = None,
    write: Written = None,
    as_read: AsRead = None,
    force: forced(_WRITTEN) = False,  # type: ignore[valid-type]  # an annotation that a function makes
    proxies: Proxies = False,
    layouts: Layouts = False,
    json: Json = False,
) -> None:
    """Predict the step time and memory of published measurements, and say how far off the predictions are.

    A table has the columns of those in reference_runs/published/; docs/published_tables.md lists them. A row that lacks
    something is skipped, with the reason. The score comes first, then at most ten lines on how TABLES were read: as
    which stack the framework was, and the other one that would change the predictions most.

    Examples: python -m suite validate; python -m suite validate my_measurements.csv --worst 10;
    python -m suite validate my_measurements.csv --write with_predictions.csv;
    python -m suite validate my_measurements.csv --as-read canonical.csv;
    python -m suite validate --proxies; python -m suite validate --layouts

    Exit codes: 0 scored; 2 bad usage or input; 3 no row could be used.
    """
    written = {"--write": write, "--as-read": as_read}
    if chosen_edition() and not json:
        console().print(f"machine model: edition {chosen_edition()}", highlight=False)
    require("pandas", *(("matplotlib",) if plot is not None else ()))
    if layouts:
        given = {"--plot": plot, "--all": every_table, "--proxies": proxies, "TABLES": tables, **written}
        if ignored := [name for name, value in given.items() if value]:
            raise InputError("excludes --layouts", got="--layouts", allowed="one of both", where=", ".join(ignored))
        _layouts(json=json)
        return
    if proxies:
        given = {"--plot": plot, "--all": every_table, **written}
        if ignored := [name for name, value in given.items() if value]:
            raise InputError("excludes --proxies", got="--proxies", allowed="one of both", where=", ".join(ignored))
        _proxies(tables or proxy_tables(), json=json)
        return
    _check_one_table(tables or [], written)
    for option, target in {**written, "--plot": plot}.items():
        check_new(target, option, force=force)  # before the first of them is written
    loaded = [load_table(path) for path in tables or [*shipped_tables(), *held_out_tables()]]
    shown = every_table or bool(tables)
    scored = [(table.facts, table_score(table, worst=worst, frameworks=shown)) for table in loaded]
    if write is not None and tables:
        write_predictions(loaded[0], tables[0], write)
    if as_read is not None and tables:
        write_as_read(tables[0], as_read)
    if json:
        for _, score in scored:
            print_json(score)
    else:
        print_scores(console(), scored, complete=every_table, of_each=bool(tables))
    if plot is not None and (drawn := {table.name: rows for table in loaded if (rows := timed_rows(table))}):
        draw(plot, drawn)
    if not any(score.used for _, score in scored):
        raise typer.Exit(exit_codes.INCONCLUSIVE)


def _check_one_table(tables: list[Path], written: dict[str, Path | None]) -> None:
    for option, target in written.items():
        if target is not None and len(tables) != 1:
            raise InputError("is of one table", got=f"{len(tables)} TABLES", allowed="one", where=option)


def _proxies(paths: list[Path], *, json: bool) -> None:
    pairs = [pair for path in paths for pair in proxy_pairs(load_table(path))]
    if json:
        for pair in pairs:
            print_json(pair)
    else:
        print_proxies(console(), pairs)
    if not pairs:
        raise typer.Exit(exit_codes.INCONCLUSIVE)


def _layouts(*, json: bool) -> None:
    from suite.predict.plan.published_layouts import ranked_layouts

    ranked = ranked_layouts()
    if json:
        for each in ranked:
            print_json(each)
    else:
        print_ranked(console(), ranked)
