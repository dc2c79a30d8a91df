"""The stored scores of the fit are those of the shipped tables and of the machine model beside them."""

from __future__ import annotations

import math

import pytest

from reference_runs.machine_model import fit_scores, machine_model
from reference_runs.published import load_table
from reference_runs.published_tables import PUBLISHED, load_tables, shipped_tables
from suite.predict.validation.published_tables import table_score

SCORES = fit_scores()
DIGITS = 1e-3  # of numbers stored with four digits: half a unit of the last is at most 0.0005 of the number


def test_stored_errors_are_those_of_the_shipped_tables_and_model() -> None:
    tables = [load_table(path) for path in shipped_tables()]
    assert list(SCORES.tables) == [table.name for table in tables]
    timed = {table.name: sum(row.step_seconds is not None for row in table.rows) for table in tables}
    assert {name: score.rows for name, score in SCORES.tables.items()} == timed
    found = {table.name: table_score(table, worst=0) for table in tables}
    # Values are stored with four digits: nineteen parameters, each off by up to 0.0005 of itself, move the times by
    # at most some 0.1 %, so the error by as many points.
    stored = {name: score.fitted for name, score in SCORES.tables.items()}
    assert {name: score.step_seconds_mape for name, score in found.items()} == pytest.approx(stored, abs=0.1)


def test_the_error_of_the_whole_is_the_mean_over_tables() -> None:
    fitted = [score.fitted for score in SCORES.tables.values()]
    assert SCORES.all_terms == pytest.approx(math.fsum(fitted) / len(fitted), rel=DIGITS)
    for term, by_table in SCORES.without_term_by_table.items():
        assert set(by_table) == set(SCORES.tables)
        assert SCORES.without_term[term] == pytest.approx(math.fsum(by_table.values()) / len(by_table), rel=DIGITS)
    assert set(SCORES.without_term) == set(SCORES.without_term_by_table)


def test_only_recorded_runs_are_left_out_one_by_one() -> None:
    for name, score in SCORES.tables.items():
        assert (score.run_left_out is not None) == (score.run_left_out_max is not None) == (name == "real_runs")
    recorded = SCORES.tables["real_runs"]
    assert recorded.run_left_out <= recorded.run_left_out_max <= recorded.rows * recorded.run_left_out


def test_tables_that_determine_parameters_alone_are_scored_and_taken_from_no_other() -> None:
    parameters = machine_model().parameters
    determining = {facts.file.removesuffix(".csv"): facts for facts in load_tables().tables if facts.determines}
    assert set(SCORES.later) == set(determining)
    for table, facts in determining.items():
        assert not facts.fitted
        assert all(parameters[name].tables == (table,) for name in facts.determines)
        timed = sum(row.step_seconds is not None for row in load_table(PUBLISHED / facts.file).rows)
        assert sum(score.rows for score in SCORES.later[table].values()) == timed
        for score in SCORES.later[table].values():
            assert 75 <= score.coverage <= 88
            assert score.release_left_out >= 0.95 * score.fitted


def test_no_table_is_predicted_better_by_a_fit_that_has_not_seen_it() -> None:
    # up to what a fit gains that stops within 1e-5 of the least cost, and whose cost is not this error
    for score in SCORES.tables.values():
        assert score.table_left_out >= 0.9 * score.fitted
