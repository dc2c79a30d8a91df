"""The fit finds the parameters that rows determine, and what it leaves out it has not seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy
import pytest

pytest.importorskip("scipy", reason="the fit of the machine model needs scipy, of the extra `fit`")

from reference_runs.machine_model import MachineModel, machine_model
from reference_runs.published import load_table
from reference_runs.published_tables import shipped_tables
from reference_runs.stack import Generation, stack
from suite.predict.machine_model import fit as fitting
from suite.predict.machine_model.fit import Fitted, determined, errors, fit, with_values
from suite.predict.machine_model.model import PreparedRow, prepared_row, row_step_seconds

MODEL = machine_model()
ROWS_OF_A_TABLE = 7
ROUNDING = 1e-12  # of a step: some hundreds of operations of 2^-53 each


@cache
def some_rows() -> tuple[PreparedRow, ...]:
    """Up to seven rows of every shipped table, evenly spread over its lines."""
    rows = []
    for path in shipped_tables():
        timed = [row for row in load_table(path).rows if row.step_seconds is not None]
        rows += timed[:: math.ceil(len(timed) / ROWS_OF_A_TABLE)]
    return tuple(prepared_row(row) for row in rows if row.step_seconds is not None)


def measured_as(values: Mapping[str, float], rows: Iterable[PreparedRow]) -> list[PreparedRow]:
    """The rows, as if their times had been measured on a machine of these parameters."""
    return [
        each._replace(row=msgspec.structs.replace(each.row, step_seconds=float(row_step_seconds(MODEL, values, each))))
        for each in rows
    ]


SHIFTED = {
    "matrix_efficiency.ampere": 0.9,
    "matrix_efficiency.hopper": 0.92,
    "launch_seconds": 1.3,
    "kernel_seconds": 0.8,
    "libraries_early_2021": 0.95,
    "step_overhead_seconds": 0.7,
}


def test_a_fit_finds_the_parameters_that_made_the_times() -> None:
    values = {name: value * SHIFTED.get(name, 1.0) for name, value in MODEL.values().items()}
    rows = measured_as(values, some_rows())
    found = fit(MODEL, rows, weights=MODEL.weights)
    # What the rows determine is known to 2 % by the fit's own account. The weak priors draw others off, where they take
    # turns (bytes of an operator and the memory's rate), and with them the times by a fraction of the residuals' scale.
    sure = {name for name, uncertainty in found.uncertainty.items() if uncertainty < 0.02}
    assert sure >= set(SHIFTED) - {"kernel_seconds"}
    for name in sure | set(SHIFTED):
        assert found.values[name] == pytest.approx(values[name], rel=0.02), name
    assert max(map(abs, errors(MODEL, found.values, rows))) < 0.2 * fitting.SCALE
    # and nothing else was touched
    assert all(found.values[name] == each.value for name, each in MODEL.parameters.items() if not each.fitted)
    assert with_values(MODEL, found).values() == found.values


def test_the_fit_does_not_hang_on_where_it_begins() -> None:
    rows = measured_as(MODEL.values(), some_rows())
    expected, known = (fit(MODEL, rows, weights={}, start=start).values for start in (None, MODEL.values()))
    for name in ("matrix_efficiency.ampere", "launch_seconds", "libraries_2021", "overlap_share"):
        # both stop where the cost changes by less than 1e-5
        assert expected[name] == pytest.approx(known[name], rel=0.005)


def test_a_table_counts_once_whatever_the_number_of_its_rows() -> None:
    rows = list(some_rows())[::2]
    again = [each for each in rows if each.row.table in ("vtrain_multi_small", "mosaicml_a100_40gb")]
    once, twice = fit(MODEL, rows, weights={}), fit(MODEL, rows + again, weights={})
    # the same cost, added up in another order, and so the same steps but for roundings, which a stop may double
    assert twice.cost == pytest.approx(once.cost, rel=1e-4)
    assert [*twice.values.values()] == pytest.approx([*once.values.values()], rel=1e-2)


def test_a_heavier_table_is_met_more_closely() -> None:
    rows, table = some_rows(), "vtrain_multi_small"
    own = [each for each in rows if each.row.table == table]
    light, heavy = (fit(MODEL, rows, weights={table: weight}, most_evaluations=8) for weight in (0.1, 10.0))

    def error(found: Fitted) -> float:
        return sum(map(abs, errors(MODEL, found.values, own)))

    assert error(heavy) < error(light)


def test_parameters_stay_within_their_bounds() -> None:
    # an accelerator three times faster than its peak, at a host without any delay, is none that the bounds allow
    rows = [
        each._replace(row=msgspec.structs.replace(each.row, step_seconds=(each.row.step_seconds or 0) / 3))
        for each in some_rows()[::3]
    ]
    found = fit(MODEL, rows, weights={}, most_evaluations=10)
    for name in found.uncertainty:
        parameter = MODEL.parameters[name]
        assert parameter.least <= found.values[name] <= parameter.most * (1 + ROUNDING)


def test_arrays_of_values_give_each_row_what_each_value_gives() -> None:
    factors = numpy.array([1.0, 0.9, 1.07])
    for each in some_rows():
        together = row_step_seconds(MODEL, {name: value * factors for name, value in MODEL.values().items()}, each)
        alone = [
            row_step_seconds(MODEL, {name: value * factor for name, value in MODEL.values().items()}, each)
            for factor in factors.tolist()
        ]
        assert numpy.broadcast_to(together, 3) == pytest.approx(alone, rel=ROUNDING, abs=0)


def test_times_that_are_sums_of_parts_have_no_overhead_of_a_step() -> None:
    values = MODEL.values()
    more = values | {"step_overhead_seconds": values["step_overhead_seconds"] + 1.0}
    composed = {each.row.table for each in some_rows() if each.row.composed}
    assert composed == {"vtrain_single_h1024"}
    for each in some_rows():
        added = row_step_seconds(MODEL, more, each) - row_step_seconds(MODEL, values, each)
        # the difference of two steps of up to some hundred seconds
        assert added == pytest.approx(0.0 if each.row.table in composed else 1.0, abs=1e-12 * 1000)


def test_the_rows_of_a_parameter_are_those_that_it_moves() -> None:
    rows = some_rows()
    model = determined(MODEL, rows)

    def counted(holds: Callable[[PreparedRow], bool]) -> tuple[int, tuple[str, ...]]:
        tables = [each.row.table for each in rows if holds(each)]
        return len(tables), tuple(dict.fromkeys(tables))

    def of_hopper(each: PreparedRow) -> bool:
        return each.row.accelerator in MODEL.families["hopper"].accelerators

    def of(generation: Generation) -> Callable[[PreparedRow], bool]:
        return lambda each: stack(each.row.stack).switches.generation is generation

    for name, holds in (
        ("matrix_efficiency.hopper", of_hopper),
        ("libraries_2021", of(Generation.LATE_2021)),
        ("libraries_early_2021", of(Generation.EARLY_2021)),
    ):
        parameter = model.parameters[name]
        assert (parameter.rows, parameter.tables) == counted(holds), name
    assert set(model.parameters["score_passes"].tables).isdisjoint({"mosaicml_a100_40gb", "playbook_h100_1b"})
    squares = [[error**2 for error in found] for found in fitting.errors_by_table(MODEL, rows).values()]
    means = [math.fsum(each) / len(each) for each in squares]
    assert model.residual == pytest.approx(math.sqrt(math.fsum(means) / len(means)), rel=ROUNDING)


class Recorded:
    """Stands in for the fit: notes what it is given, and finds what the model has already."""

    def __init__(self) -> None:
        self.calls: list[tuple[MachineModel, list[PreparedRow]]] = []

    def __call__(self, model: MachineModel, rows: Sequence[PreparedRow], **_: Any) -> Fitted:
        self.calls.append((model, list(rows)))
        return Fitted(model.values(), {}, 0.0)


class OneProcess:
    """Stands in for a pool of processes, whose calls would not be noted here."""

    def __init__(self, _: int | None) -> None:
        pass

    def __enter__(self) -> OneProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, function: Callable[[Any], Any], each: Iterable[Any]) -> Iterator[Any]:
        return map(function, each)


def places_left_out(rows: Sequence[PreparedRow], kept: Sequence[PreparedRow]) -> tuple[int, ...]:
    names = {id(each) for each in kept}
    assert len(names) == len(kept)
    return tuple(place for place, each in enumerate(rows) if id(each) not in names)


def test_what_is_left_out_is_in_no_row_of_its_fit_and_each_row_is_left_out_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded, rows = Recorded(), some_rows()
    monkeypatch.setattr(fitting, "fit", recorded)
    monkeypatch.setattr(fitting, "ProcessPoolExecutor", OneProcess)
    scores = fitting.left_out_scores(MODEL, rows, {}, peak_bytes={"some": 8.5})
    folds = [places_left_out(rows, kept) for _, kept in recorded.calls]
    tables = list(dict.fromkeys(each.row.table for each in rows))
    sizes = list(dict.fromkeys((each.row.architecture.layers, each.row.architecture.hidden) for each in rows))
    runs = list(dict.fromkeys(each.row.model for each in rows if each.row.table == "real_runs"))
    assert len(runs) == 5
    groups = [
        *(tuple(i for i, each in enumerate(rows) if each.row.table == table) for table in tables),
        *(
            tuple(
                i for i, each in enumerate(rows) if (each.row.architecture.layers, each.row.architecture.hidden) == size
            )
            for size in sizes
        ),
        *(
            tuple(i for i, each in enumerate(rows) if each.row.table == "real_runs" and each.row.model == run)
            for run in runs
        ),
    ]
    assert folds == [*groups, *(() for _ in fitting.NEUTRAL)]
    for first, last, among in (
        (0, len(tables), set(range(len(rows)))),
        (len(tables), len(tables) + len(sizes), set(range(len(rows)))),
        (len(tables) + len(sizes), len(groups), {i for i, each in enumerate(rows) if each.row.table == "real_runs"}),
    ):
        places = [place for fold in folds[first:last] for place in fold]
        assert sorted(places) == sorted(among)
    # a fit that finds the same whatever it sees has the same error whatever is left out
    for table, score in scores.tables.items():
        own = [
            abs(error)
            for each, error in zip(rows, errors(MODEL, MODEL.values(), rows), strict=True)
            if each.row.table == table
        ]
        mean = pytest.approx(100 * math.fsum(own) / len(own), rel=ROUNDING)
        assert (score.rows, score.fitted, score.table_left_out, score.size_left_out) == (len(own), mean, mean, mean)
        assert score.run_left_out == (mean if table == "real_runs" else None)
        assert score.run_left_out_max == (pytest.approx(100 * max(own)) if table == "real_runs" else None)
    for (model, kept), term in zip(recorded.calls[len(groups) :], fitting.NEUTRAL, strict=True):
        assert kept == list(rows)
        assert model == fitting.without(MODEL, term)
        by_table = scores.without_term_by_table[term]
        assert scores.without_term[term] == pytest.approx(math.fsum(by_table.values()) / len(by_table), rel=ROUNDING)


@pytest.mark.parametrize("term", fitting.NEUTRAL)
def test_without_a_term_its_parameters_are_none_and_not_fitted(term: str) -> None:
    less, neutral = fitting.without(MODEL, term), fitting.NEUTRAL[term]
    known = {name.partition(".")[0] for name in MODEL.parameters}
    assert set(neutral) <= known
    for name, parameter in MODEL.parameters.items():
        base = name.partition(".")[0]
        if base in neutral:
            assert less.parameters[name].value == neutral[base]
            assert not less.parameters[name].fitted
        else:
            assert less.parameters[name] == parameter
    assert less.families == MODEL.families


@pytest.mark.parametrize("term", fitting.NEUTRAL)
def test_a_term_that_is_none_moves_no_time_and_one_that_is_there_does(term: str) -> None:
    less, neutral = fitting.without(MODEL, term), fitting.NEUTRAL[term]
    values = less.values()
    # a thousandth of what is next to nothing, a thousand times what is next to infinite, is still the same
    beyond = {
        name: value * {-1: 1e-3, 0: 1.0, 1: 1e3}[(neutral[base] > 1) - (neutral[base] < 1)]
        for name, value in values.items()
        if (base := name.partition(".")[0]) in neutral
    }
    with_it, none, further = (
        [float(row_step_seconds(MODEL, each, row)) for row in some_rows()]
        for each in (MODEL.values(), values, values | beyond)
    )
    assert further == pytest.approx(none, rel=1e-6)  # 1e-9 of a pass, 1e-12 s of a million launches: below 1e-6
    assert max(abs(a / b - 1) for a, b in zip(with_it, none, strict=True)) > 1e-3


def test_every_fitted_parameter_but_the_rate_of_products_and_memories_is_a_term() -> None:
    named = {name for neutral in fitting.NEUTRAL.values() for name in neutral}
    fitted = {name.partition(".")[0] for name, parameter in MODEL.parameters.items() if parameter.fitted}
    assert fitted - named == {"matrix_efficiency", "memory_efficiency"}
