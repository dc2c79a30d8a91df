"""A fit has not seen the rows that it leaves out, and intervals hold what they promise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("scipy", reason="the fit of the machine model needs scipy, of the extra `fit`")

from reference_runs.machine_model import fit_scores, machine_model
from suite.predict.machine_model import leave_out
from suite.predict.machine_model.fit import Linearised, Solved, errors
from suite.predict.machine_model.leave_out import NEUTRAL, coverage, half_widths, weighted_quantile, without
from suite.predict.machine_model.model import row_step_seconds
from suite.predict.machine_model.spreads import size_of
from tests.predict.machine_model.test_fit import some_rows

MODEL = machine_model()
ROUNDING = 1e-12


def test_what_is_left_out_is_in_no_row_of_its_fit_and_each_row_is_left_out_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, folds = some_rows(), []

    def solved(linear: Linearised, _: Any, kept: Sequence[int]) -> Solved:
        folds.append(set(range(len(rows))) - set(kept))
        return Solved(linear.at, None, 0.0)

    monkeypatch.setattr(leave_out, "solved", solved)
    left = leave_out.held_out_errors(MODEL, rows)
    tables = {each.row.table for each in rows}
    for name in tables:
        assert {number for number, each in enumerate(rows) if each.row.table == name} in folds
    for size in {size_of(each.row) for each in rows}:
        assert {number for number, each in enumerate(rows) if size_of(each.row) == size} in folds
    left_together = [{rows[number].row.table for number in fold} for fold in folds]
    for cluster in ({"dgxc_24_11_bf16", "dgxc_25_02_grok1_moe"}, {"vtrain_multi_small", "vtrain_single_h1024"}):
        assert cluster in left_together
    everything = set(range(len(rows)))
    assert set(left["table"]) == set(left["size"]) == set(left["cluster"]) == everything
    assert set(left["run"]) == {number for number in everything if rows[number].row.table == "real_runs"}
    # a fit that finds the same whatever it sees has the same error whatever is left out
    whole = errors(MODEL, MODEL.values(), rows)
    for found in left.values():
        assert all(error == pytest.approx(whole[number], abs=1e-9) for number, error in found.items())


def test_a_quantile_is_the_smallest_value_that_has_its_share_of_the_weight() -> None:
    values = [3.0, 1.0, 2.0]
    assert weighted_quantile(values, [1, 1, 1], 0.5) == 2.0
    assert weighted_quantile(values, [1, 1, 1], 1.0) == 3.0
    assert weighted_quantile(values, [8, 1, 1], 0.5) == 3.0
    assert weighted_quantile(values, [1, 8, 1], 0.5) == 1.0


def test_half_widths_hold_four_fifths_of_each_regime_and_a_table_weighs_as_much_as_any_other() -> None:
    rows = some_rows()
    left = {number: 0.01 if each.row.table == "real_runs" else 0.2 for number, each in enumerate(rows)}
    widths = half_widths(rows, left, ["one"] * len(rows))
    assert widths == {"one": pytest.approx(math.log(1.2))}
    # of two tables, one of which has most of the rows, the near one has half of the weight
    near = [number for number, each in enumerate(rows) if each.row.table == "real_runs"][:1]
    far = [number for number, each in enumerate(rows) if each.row.table == "mosaicml_a100_40gb"]
    assert half_widths(rows, left, ["one"] * len(rows), near + far)["one"] == pytest.approx(math.log(1.2))
    left |= dict.fromkeys(far[: len(far) * 3 // 5 + 1], 0.05)
    assert half_widths(rows, left, ["one"] * len(rows), near + far)["one"] == pytest.approx(math.log(1.05))


def test_coverage_is_of_intervals_that_the_group_itself_had_no_part_in() -> None:
    rows = some_rows()
    tables = sorted({each.row.table for each in rows})
    odd = tables[0]
    left = {number: 0.5 if each.row.table == odd else 0.05 for number, each in enumerate(rows)}
    found = coverage(rows, left, ["one"] * len(rows), lambda row: row.table)
    assert found == pytest.approx(100 * (len(tables) - 1) / len(tables))


def test_stored_intervals_cover_what_they_promise() -> None:
    scores = fit_scores()
    assert set(scores.coverage) == {"table", "cluster", "size"}
    assert set(scores.half_width) == {"computing", "waiting", "mixtures"}
    assert all(0.02 < width < 0.5 for width in scores.half_width.values())
    assert all(75 <= share <= 88 for share in (*scores.coverage.values(), scores.peak_coverage))


def test_without_a_term_its_parameters_are_none_and_not_fitted() -> None:
    known = {name.partition(".")[0] for name in MODEL.parameters}
    for term, neutral in NEUTRAL.items():
        less = without(MODEL, term)
        assert set(neutral) <= known
        for name, parameter in MODEL.parameters.items():
            base = name.partition(".")[0]
            if base in neutral:
                assert less.parameters[name].value == neutral[base]
                assert not less.parameters[name].fitted
            else:
                assert less.parameters[name] == parameter
        assert less.families == MODEL.families


def test_a_term_that_is_none_moves_no_time_and_one_that_is_there_does() -> None:
    rows = some_rows()[::2]

    def seconds(values: dict[str, float]) -> list[float]:
        return [float(row_step_seconds(MODEL, values, row)) for row in rows]

    with_it = seconds(MODEL.values())
    for term, neutral in NEUTRAL.items():
        values = without(MODEL, term).values()
        # a thousandth of what is next to nothing, a thousand times what is next to infinite, is still the same
        beyond = {
            name: value * {-1: 1e-3, 0: 1.0, 1: 1e3}[(neutral[base] > 1) - (neutral[base] < 1)]
            for name, value in values.items()
            if (base := name.partition(".")[0]) in neutral
        }
        none = seconds(values)
        # 1e-9 of a pass, 1e-12 s of a million launches: below 1e-6
        assert seconds(values | beyond) == pytest.approx(none, rel=1e-6), term
        assert max(abs(a / b - 1) for a, b in zip(with_it, none, strict=True)) > 1e-3, term


def test_every_fitted_parameter_but_the_rate_of_products_and_memories_is_a_term() -> None:
    named = {name for neutral in NEUTRAL.values() for name in neutral}
    fitted = {name.partition(".")[0] for name, parameter in MODEL.parameters.items() if parameter.fitted}
    assert fitted - named == {"matrix_efficiency", "memory_efficiency"}
