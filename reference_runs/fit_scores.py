"""What the fit of the machine model reached, with and without each table, size, run and term: written by `fit`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from reference_runs.recorded_file import record_of

FIT_SCORES = Path(__file__).parent / "fit_scores.toml"


class LeftOutScore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mean absolute errors of a table's step times, in percent.

    Args:
        fitted: with every row in the fit.
        table_left_out: with the whole table left out.
        size_left_out: of each row, with all rows of its model's size left out, in every table.
        run_left_out: of each row of the recorded runs, with the run left out; None in other tables.
        run_left_out_max: the largest of these.
    """

    rows: int
    fitted: float
    table_left_out: float
    size_left_out: float
    run_left_out: float | None = None
    run_left_out_max: float | None = None


class FitScores(msgspec.Struct, frozen=True, kw_only=True):
    """Scores by table; of each term, the error without it after a new fit of the others.

    Args:
        free_parameters: that the fit determined.
        all_terms: mean over the tables of their mean absolute errors, in percent.
        without_term: the same by term.
        without_term_by_table: term -> table -> mean absolute error.
    """

    free_parameters: int
    all_terms: float
    tables: dict[str, LeftOutScore]
    without_term: dict[str, float]
    without_term_by_table: dict[str, dict[str, float]]


@cache
def fit_scores(path: Path = FIT_SCORES) -> FitScores:
    """The scores that the TOML file at `path` records.

    Raises:
        InputError: unreadable file, broken TOML, missing, unknown or wrongly typed key.
    """
    return record_of(path, FitScores, what="scores of the fit")
