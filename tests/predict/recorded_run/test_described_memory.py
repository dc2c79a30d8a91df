"""The peak of a workload and stack, whichever command asks for it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy
import pytest

from reference_runs.layout import Layout
from reference_runs.machine_model import machine_model
from reference_runs.published import PublishedRow, load_table
from reference_runs.published_tables import PUBLISHED
from reference_runs.run import Workload
from reference_runs.stack import stack
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.memory_uncertainty import PeakKind, peak_uncertainty
from suite.predict.machine_model.model import prepared_row, row_machine, run_machine
from suite.predict.recorded_run.prediction import run_prediction
from suite.predict.recorded_run.sweep import formula_peak, layout_peak
from suite.predict.validation.measured_peaks import measured_peak
from suite.predict.validation.published_tables import row_prediction


@pytest.fixture(scope="module")
def rows() -> Sequence[PublishedRow]:
    """Every 25th row of nanotron's table: all numbers of tensor-parallel ranks, stages and micro-batches."""
    return load_table(PUBLISHED / "playbook_h100_1b.csv").rows[::25]


def _machine(row: PublishedRow) -> Machine:
    model = machine_model()
    return row_machine(model, model.values(), prepared_row(row))


def test_predict_and_plan_print_the_peak_of_nanotron_that_validate_scores(rows: Sequence[PublishedRow]) -> None:
    assert len(rows) >= 7
    assert len({row.layout.pipeline_stages for row in rows}) >= 3
    for row in rows:
        scored, machine = row_prediction(row), _machine(row)
        printed = [memory.peak for memory in run_prediction(row.workload, machine).memory]
        assert (printed[0], max(printed)) == (scored.peak_bytes, scored.fullest_bytes)
        assert layout_peak(row.workload, machine) == formula_peak(row.workload, machine) == max(printed)
        assert measured_peak(row).kind is PeakKind.NANOTRON
    errors = [abs(row_prediction(row).peak_bytes / (row.peak_bytes or 0) - 1) for row in rows if row.peak_bytes]
    assert sum(errors) / len(errors) < 0.12  # of all 527 rows 7.5 %


def test_a_search_of_nanotrons_layouts_takes_the_peaks_of_its_single_layouts(rows: Sequence[PublishedRow]) -> None:
    row = rows[0]
    machine = _machine(row)
    layouts = [
        msgspec.structs.replace(row.layout, tensor_parallel=t, pipeline_stages=p) for t in (1, 2) for p in (1, 4)
    ]
    columns = {
        field: numpy.array([getattr(each, field) for each in layouts], dtype=float)
        for field in ("data_parallel", "tensor_parallel", "pipeline_stages", "micro_batch")
    }
    counted = msgspec.structs.replace(row.layout, **columns)
    together = formula_peak(Workload(row.architecture, row.recipe, counted), machine)
    alone = [layout_peak(Workload(row.architecture, row.recipe, each), machine) for each in layouts]
    assert list(numpy.asarray(together)) == alone
    assert len(set(alone)) == 4


def test_a_run_that_nanotrons_memory_does_not_describe_has_the_formulas_and_says_so(
    rows: Sequence[PublishedRow],
) -> None:
    row = rows[0]
    layout = Layout(data_parallel=8, zero_stage=3)
    machine = run_machine(None, row.recipe.precision, ranks=8, accelerator_name="h100-sxm-80gb", stack_name="nanotron")
    assert machine is not None
    by_formula, notes = machine.with_memory_for(Workload(row.architecture, row.recipe, layout))
    assert notes == ("memory by formula: that of nanotron is not described with ZeRO-2 and 3",)
    kept = machine.with_memory_for(Workload(row.architecture, row.recipe, row.layout))
    assert kept == (machine, ())
    workload = Workload(row.architecture, row.recipe, layout)
    assert by_formula.machine is not None
    peaks = {
        layout_peak(workload, each.machine)  # with or without the note, as commands that print none do
        for each in (machine, by_formula)
        if each.machine is not None
    }
    generic = stack("generic").switches.keeping
    assert len(peaks) == 1
    assert by_formula.stack.switches.keeping.modules is not machine.stack.switches.keeping.modules
    assert generic.modules is by_formula.stack.switches.keeping.modules
    assert peak_uncertainty(PeakKind.NANOTRON).spread < peak_uncertainty(PeakKind.FORMULA).spread
