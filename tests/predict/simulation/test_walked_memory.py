"""Memory by a walk: short cuts give what the whole walk gives, and `predict` has the peaks that GPUs measured."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Layout, parse_layout
from reference_runs.run import Workload
from reference_runs.stack import stack
from suite.machine.half_precision import Kernels
from suite.metrics.figures import Quantity
from suite.paths import RECORDED_H100
from suite.predict.machine_model.model import run_machine
from suite.predict.recorded_run.prediction import run_prediction
from suite.predict.simulation.step_memory import executed_peak_bytes
from suite.predict.simulation.supported_layouts import describes_ranks
from suite.predict.simulation.walked_memory import Execution, least_peak, walked_by_stage, walked_memory
from suite.records.store import read
from tests.support.examples import examples

LLAMA = reference_run("llama2-7b")
CUDA = Execution(Kernels(cuda=True), stack("this-suite").switches.keeping)
LAYOUTS = (
    *("dp1", "dp8", "dp8,zero1", "dp8,zero1,reduce-scatter", "dp8,zero2", "dp8,zero3", "dp8,zero3,noreshard"),
    *(
        "dp2,tp4,sp,zero1",
        "cp4,zero3",
        "pp4,dp2,zero1",
        "pp4,interleave2",
        "pp4,zbv",
        "pp4,dualpipev",
        "pp4,zero-bubble",
    ),
)


def workload(words: str, *, layers: int, micro_batches: int) -> Workload:
    layout = parse_layout(f"{words},fused", base=Layout())
    batch = micro_batches * layout.data_parallel * layout.micro_batch
    recipe = msgspec.structs.replace(LLAMA.recipe, global_batch=batch)
    architecture = msgspec.structs.replace(LLAMA.architecture, layers=layers, sequence=1024)
    return Workload(architecture, recipe, layout)


@examples(30)
@given(
    st.sampled_from(LAYOUTS),
    st.sampled_from(["none", "full", "selective"]),
    st.sampled_from([16, 24, 32]),
    st.sampled_from([1, 3, 17, 21, 40]),
    st.data(),
)
def test_long_and_deep_steps_follow_from_short_and_shallow_ones(
    words: str, recomputation: str, layers: int, micro_batches: int, data: st.DataObject
) -> None:
    case = workload(f"{words},recompute-{recomputation}", layers=layers, micro_batches=micro_batches)
    stage = data.draw(st.integers(0, case.layout.pipeline_stages - 1))
    if not describes_ranks(case):
        with pytest.raises(InputError, match="^--layout: not executed by this suite"):
            walked_memory(case, stage=stage, execution=CUDA)
        return
    peak = walked_memory(case, stage=stage, execution=CUDA).peak
    whole = executed_peak_bytes(case, CUDA.options(case), stage=stage, replica=0)
    assert peak == pytest.approx(whole, rel=1e-6)
    assert least_peak(case, stage=stage, execution=CUDA) <= whole * (1 + 1e-5)


def test_stages_between_two_that_are_walked_through_lie_on_their_line() -> None:
    case = workload("pp8,recompute-none", layers=24, micro_batches=16)
    by_stage = walked_by_stage(case, execution=CUDA)
    assert by_stage == [walked_memory(case, stage=stage, execution=CUDA) for stage in range(8)]
    assert len({memory.peak for memory in by_stage}) > 4


def test_parts_of_the_fullest_instant_add_up_to_the_peak_and_name_their_pass() -> None:
    memory = walked_memory(workload("dp8,zero3", layers=4, micro_batches=2), stage=0, execution=CUDA)
    when, parts = memory.fullest_instant()
    assert when in ("in the forward pass", "in the backward pass", "at the update")
    assert sum(parts.values()) == memory.peak == max(memory.after_forward, memory.after_backward, memory.at_update)


def test_four_peaks_that_an_h100_measured_are_predicted_by_the_path_of_predict_within_2_percent() -> None:
    errors = {}
    for path in sorted(RECORDED_H100.glob("records/*/*.begin.json")):
        record = read(path)
        assert record.end is not None
        job, figures = record.begin.job, record.end.figures
        measured = {f.quantity: f.value for f in figures if f.rank == 0 and f.term is None and f.axis is None}
        if job.kernels.value != "torch":
            continue
        machine = run_machine(
            None,
            job.recipe.precision,
            ranks=job.layout.ranks,
            accelerator_name="h100-sxm",
            stack_name=f"this-suite{'' if job.compiled else '-eager'}",
        )
        assert machine is not None
        memory = run_prediction(job.workload, machine.machine).memory
        errors[record.begin.id] = max(stage.peak for stage in memory) / measured[Quantity.PEAK_BYTES] - 1
    assert len(errors) == 4
    assert all(abs(error) < 0.02 for error in errors.values()), errors
