from __future__ import annotations

import msgspec
from hypothesis import given

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout, Offload, Recomputation, Schedule
from reference_runs.miniature import miniature
from reference_runs.run import Precision, Workload
from suite.job.options import StepOptions
from suite.machine.gpu import H100
from suite.machine.half_precision import Kernels
from suite.metrics.figures import Quantity
from suite.predict.executed_run.figures import MEMORY_TOLERANCE, memory_figures, unproven_peak
from suite.predict.simulation.state import executed_state
from suite.predict.simulation.step_memory import executed_activation_bytes, executed_peak_bytes, executed_peaks
from tests.support.examples import examples
from tests.support.executed_runs import Run, executed_runs

CPU = StepOptions()
SMALL = miniature(reference_run("gpt2-124m"), "cpu", ranks=1)
SHAPE = msgspec.structs.replace(
    SMALL.architecture,
    layers=2,
    hidden=8,
    heads=2,
    head_dim=4,
    kv_heads=2,
    ffn_hidden=32,
    vocabulary=20,
    padded_vocabulary=24,
    sequence=6,
)
FP32 = msgspec.structs.replace(
    SMALL.recipe,
    precision=Precision.FP32,
    global_batch=4,
    embedding_dropout=0.0,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
LAYOUT = Layout(micro_batch=2, recomputation=Recomputation.NONE)


def activations(layout: Layout, *, stage: int = 0) -> int:
    return executed_activation_bytes(Workload(SHAPE, FP32, layout), CPU, stage=stage)


def test_a_rank_of_several_keeps_its_part() -> None:
    split = msgspec.structs.replace(LAYOUT, tensor_parallel=2)
    by_sequence = msgspec.structs.replace(split, sequence_parallel=True)
    states, tokens, layers = 4 * 2 * 6 * 8, 2 * 6, 2
    # of the norms' inputs, two a layer and the last, and their statistics half is elsewhere
    assert activations(split) - activations(by_sequence) == (2 * layers + 1) * (states + 2 * 4 * tokens) // 2
    assert activations(by_sequence) < activations(split) < activations(LAYOUT)


@examples(60)
@given(executed_runs())
def test_the_peak_holds_state_and_what_is_kept_of_a_micro_batch(run: Run) -> None:
    for stage in range(run.layout.pipeline_stages):
        state = executed_state(Workload(*run), stage=stage, replica=0)
        kept = executed_activation_bytes(Workload(*run), CPU, stage=stage)
        most = executed_peak_bytes(Workload(*run), CPU, stage=stage, replica=0)
        assert most >= state.weight_bytes + state.optimizer_bytes + state.gradient_bytes
        # chunks of an interleaved schedule do not all hold a micro-batch at a time
        if run.layout.virtual_stages == 1:
            # views of hidden states that messages bring are kept there too
            assert most >= state.weight_bytes + state.optimizer_bytes + kept


def test_more_recomputation_never_needs_more() -> None:
    long = msgspec.structs.replace(SHAPE, sequence=96, layers=4)
    peaks = [
        executed_peak_bytes(
            Workload(long, FP32, msgspec.structs.replace(LAYOUT, recomputation=recomputation)), CPU, stage=0, replica=0
        )
        for recomputation in (Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL)
    ]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 3


def test_gpipe_holds_all_micro_batches_where_1f1b_holds_as_many_as_stages() -> None:
    long = msgspec.structs.replace(SHAPE, sequence=96)
    pipeline = msgspec.structs.replace(LAYOUT, pipeline_stages=2, micro_batch=1)
    gpipe = msgspec.structs.replace(pipeline, schedule=Schedule.GPIPE)
    one, all_ = (
        executed_peak_bytes(Workload(long, FP32, layout), CPU, stage=0, replica=0) for layout in (pipeline, gpipe)
    )
    states, tokens = 4 * 96 * 8, 8 * 97
    kept = executed_activation_bytes(Workload(long, FP32, pipeline), CPU, stage=0) - tokens + states
    gradients = executed_state(Workload(long, FP32, pipeline), stage=0, replica=0).gradient_bytes
    # 4 micro-batches with their outputs in place of 2; the tokens of all are one block. gpipe's are all there before
    # the first gradient is, 1f1b's when all are, and the message that it posted last
    assert 2 * kept - gradients - states <= all_ - one <= 2 * kept


def test_of_fully_sharded_state_on_cpus_and_of_padded_or_cudnn_s_attention_the_peak_is_shown_and_not_judged() -> None:
    half = msgspec.structs.replace(FP32, precision=Precision.BF16)
    sharded = msgspec.structs.replace(LAYOUT, data_parallel=2, zero_stage=3)
    fused = msgspec.structs.replace(LAYOUT, fused_attention=True)
    hopper = StepOptions(kernels=Kernels(cuda=True))
    ampere = StepOptions(kernels=Kernels(cuda=True, gpu=H100._replace(capability=(8, 0))))
    wide = msgspec.structs.replace(SHAPE, hidden=16, head_dim=8)
    for shape, layout, options, judged in (
        (SHAPE, LAYOUT, CPU, True),
        (SHAPE, sharded, CPU, False),
        (SHAPE, LAYOUT, hopper, True),
        (SHAPE, sharded, hopper, True),
        (SHAPE, fused, ampere, False),
        (wide, fused, ampere, True),
        (wide, fused, hopper, False),
    ):
        workload = Workload(shape, half, layout)
        assert (unproven_peak(workload, options.kernels) is None) is judged
        peaks = [figure for figure in memory_figures(workload, options) if figure.quantity is Quantity.PEAK_BYTES]
        assert [figure.rank for figure in peaks] == [None, *range(layout.ranks)]
        assert {figure.tolerance for figure in peaks} == {MEMORY_TOLERANCE if judged else None}


def test_of_state_on_the_host_a_gpu_s_peak_is_not_predicted() -> None:
    layout = msgspec.structs.replace(LAYOUT, data_parallel=2, zero_stage=3, offload=Offload.STATE)
    for options, predicted in ((CPU, {Quantity.PEAK_BYTES}), (StepOptions(kernels=Kernels(cuda=True)), set())):
        figures = memory_figures(Workload(SHAPE, FP32, layout), options)
        assert {figure.quantity for figure in figures} - {Quantity.ACTIVATION_BYTES} == predicted


def test_products_through_fp32_need_more_at_the_peak_and_keep_no_more() -> None:
    wide = StepOptions(kernels=Kernels(products_through_fp32=True))
    long = msgspec.structs.replace(SHAPE, sequence=96)
    for precision in (Precision.BF16, Precision.FP16):
        recipe = msgspec.structs.replace(FP32, precision=precision)
        short, longer = (Workload(shape, recipe, LAYOUT) for shape in (SHAPE, long))
        kept = [executed_activation_bytes(short, options, stage=0) for options in (CPU, wide)]
        peaks = [executed_peak_bytes(longer, options, stage=0, replica=0) for options in (CPU, wide)]
        assert kept[0] == kept[1]
        assert peaks[0] < peaks[1]


def test_the_largest_of_three_peaks_is_the_peak_and_each_holds_the_state() -> None:
    for changes in (
        {},
        {"micro_batch": 1, "recomputation": Recomputation.FULL},
        {"data_parallel": 2, "zero_stage": 3},
        {"pipeline_stages": 2, "schedule": Schedule.ONE_F_ONE_B},
        {"micro_batch": 1, "data_parallel": 2, "zero_stage": 1},
    ):
        layout = msgspec.structs.replace(LAYOUT, **changes)
        workload = Workload(SHAPE, FP32, layout)
        peaks = executed_peaks(workload, CPU, stage=0, replica=0)
        assert list(peaks) == ["forward", "backward", "update"]
        most = max(sum(parts.values()) for parts in peaks.values())
        assert most == executed_peak_bytes(workload, CPU, stage=0, replica=0)
        state = executed_state(workload, stage=0, replica=0)
        for parts in peaks.values():
            assert parts["weights"] == state.weight_bytes
            assert parts["optimizer state"] == state.optimizer_bytes
            assert min(parts.values()) > 0
        assert peaks["update"]["gradients"] >= state.gradient_bytes
        assert "forward pass" not in peaks["update"]
        assert "update" not in peaks["backward"]
        assert ("gathered weights" in peaks["forward"]) == layout.fully_sharded
        assert ("computed again" in peaks["backward"]) == (layout.recomputation is Recomputation.FULL)
