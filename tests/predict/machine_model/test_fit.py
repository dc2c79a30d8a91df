"""The fit finds the parameters that rows determine, and what it leaves out it has not seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache

import msgspec
import numpy
import pytest

pytest.importorskip("scipy", reason="the fit of the machine model needs scipy, of the extra `fit`")

from reference_runs.machine_model import machine_model
from reference_runs.published import load_table
from reference_runs.published_tables import shipped_tables
from reference_runs.stack import Generation, stack
from suite.predict.machine_model import fit as fitting
from suite.predict.machine_model.fit import determined, errors, fit, with_values
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


EXACT = msgspec.structs.replace(
    MODEL.spreads, laboratory=1e-4, size=1e-4, part=1e-4, row=1e-4, composed_row=1e-4
)  # times as if no laboratory and no clock added anything, so that rows decide and not what is expected


def test_a_fit_finds_the_parameters_that_made_the_times() -> None:
    values = {name: value * SHIFTED.get(name, 1.0) for name, value in MODEL.values().items()}
    rows = measured_as(values, some_rows())
    found = fit(MODEL, rows, spreads=EXACT, start=MODEL.values())
    # What the rows determine is known to 2 % by the fit's own account. What is expected draws others off, where they
    # take turns (bytes of an operator and the memory's rate), and with them the times by far less.
    sure = {name for name, uncertainty in found.uncertainty.items() if uncertainty < 0.002}
    assert sure >= set(SHIFTED) - {"kernel_seconds"}
    for name in sure | set(SHIFTED):
        assert found.values[name] == pytest.approx(values[name], rel=0.02), name
    assert max(map(abs, errors(MODEL, found.values, rows))) < 0.004
    # and nothing else was touched
    assert all(found.values[name] == each.value for name, each in MODEL.parameters.items() if not each.fitted)
    assert with_values(MODEL, found).values() == found.values


def test_the_fit_does_not_hang_on_where_it_begins() -> None:
    rows = measured_as(MODEL.values(), some_rows())
    expected, known = (fit(MODEL, rows, start=start).values for start in (None, MODEL.values()))
    for name in ("matrix_efficiency.ampere", "launch_seconds", "libraries_2021", "overlap_cost"):
        # both stop where no parameter moves by 1 %
        assert expected[name] == pytest.approx(known[name], rel=0.01)


def test_rows_of_one_laboratory_tell_of_its_level_no_more_than_one_laboratory_can() -> None:
    table = "vtrain_multi_small"
    own = [each for each in some_rows() if each.row.table == table]
    many = [each for each in own for _ in range(30)]
    name = "matrix_efficiency.ampere"
    alone, together = (fit(MODEL, rows, start=MODEL.values(), rounds=1).uncertainty[name] for rows in (own, many))
    assert together <= alone
    # time is inversely proportional to the efficiency for most of the step: its error is the laboratory's at least,
    # unless what is expected (a spread of a tenth) says more
    spread = math.log(MODEL.parameters[name].spread)
    least = 1 / math.hypot(1 / spread, 1 / MODEL.spreads.laboratory)
    assert together > 0.9 * least


def test_parameters_stay_within_their_bounds() -> None:
    # an accelerator three times faster than its peak, at a host without any delay, is none that the bounds allow
    rows = [
        each._replace(row=msgspec.structs.replace(each.row, step_seconds=(each.row.step_seconds or 0) / 3))
        for each in some_rows()[::3]
    ]
    found = fit(MODEL, rows, rounds=6)
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
    # of a row that may have been several, each of them: their mean is not of seconds, but of logarithms
    for each in [one for row in some_rows() for one in ([each for _, each in row.alternatives] or [row])]:
        added = row_step_seconds(MODEL, more, each) - row_step_seconds(MODEL, values, each)
        # the difference of two steps of up to some hundred seconds
        has_none = each.row.table in composed or not stack(each.row.stack).switches.python_launches
        assert added == pytest.approx(0.0 if has_none else 1.0, abs=1e-12 * 1000)


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
