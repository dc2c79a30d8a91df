"""Terms of a step from synthetic traces of GPUs, in the form that Kineto writes, whose answer is plain to see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.errors import InputError
from reference_runs.training_traces.kineto import kineto_traces
from reference_runs.training_traces.trace import DeviceTrace, Label, Labels, Spans
from suite.predict.diagnosis.trace_terms import StepTerms, Term, operation_of, step_terms, term_of_kernel
from tests.support.gpu_traces import ADAM, ALL_REDUCE, ATTENTION, GEMM, NORM, gpu_steps

KERNELS = (GEMM, ATTENTION, NORM, ADAM, ALL_REDUCE)


def of_kernels(*spans: tuple[str, int, int], host: tuple[tuple[str, str, int, int], ...] = ()) -> StepTerms:
    """Terms of kernels (name, start, end), each launched when it starts, and of what the host does."""
    labels, kernels, of_host = Labels(), Spans(), Spans()
    for name, start, end in spans:
        kernels.add(labels.number(Label(name, "copy" if name.startswith("Memcpy") else "kernel")), start, end, start)
    for category, name, start, end in host:
        of_host.add(labels.number(Label(name, category)), start, end, 1)
    return step_terms(DeviceTrace("trace", 0, labels.all, kernels, of_host, []))


def nanoseconds(step: StepTerms) -> dict[Term, int]:
    return {term: round(seconds * 1e9) for term, seconds in step.terms.items() if seconds}


def of_gpu(path: Path, **changes: Any) -> StepTerms:
    [trace] = kineto_traces(gpu_steps(**changes).write(path / "trace.json"))
    return step_terms(trace)


@pytest.mark.parametrize(
    ("name", "term"),
    [
        (GEMM, Term.GEMM),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopB_NNT", Term.GEMM),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16>", Term.GEMM),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32", Term.GEMM),
        (ATTENTION, Term.ATTENTION),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80", Term.ATTENTION),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", Term.ATTENTION),
        (NORM, Term.MEMORY_BOUND),
        ("triton_poi_fused_addmm_gelu_5", Term.MEMORY_BOUND),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>", Term.MEMORY_BOUND),
        (ADAM, Term.OPTIMIZER),
    ],
)
def test_kernels_are_known_by_their_names(name: str, term: Term) -> None:
    assert term_of_kernel(Label(name, "kernel")) is term
    assert operation_of(Label(name, "kernel")) is None


@pytest.mark.parametrize(
    ("name", "collective", "operation"),
    [
        (ALL_REDUCE, "", "all-reduce"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_half(ncclWorkElem)", "", "reduce-scatter"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "_allgather_base", "all-gather"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "all_to_allv", "all-to-all"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send", "send and receive"),
        ("ncclBroadcastRingLLKernel_copy_i8(ncclColl)", "", "broadcast"),
    ],
)
def test_collectives_are_known_by_what_was_called_else_by_the_kernel(
    name: str, collective: str, operation: str
) -> None:
    assert operation_of(Label(name, "kernel", collective)) == operation


def test_a_collective_is_exposed_where_nothing_computes() -> None:
    step = of_kernels((GEMM, 0, 100), (ALL_REDUCE, 60, 150), (NORM, 120, 130), (GEMM, 150, 200))
    assert nanoseconds(step) == {Term.GEMM: 150, Term.MEMORY_BOUND: 10, Term.COLLECTIVE: 40}
    assert [(each.operation, round(each.seconds * 1e9)) for each in step.collectives] == [("all-reduce", 90)]


def test_idle_time_is_the_input_pipelines_or_follows_a_wait_or_is_the_hosts() -> None:
    host = (
        ("annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 110, 140),
        ("runtime", "cudaStreamSynchronize", 170, 201),
    )
    step = of_kernels((GEMM, 0, 100), (GEMM, 150, 200), ("Memcpy HtoD (Pinned -> Device)", 230, 240), host=host)
    found = nanoseconds(step)
    assert found == {Term.GEMM: 150, Term.HOST: 20, Term.INPUT: 30, Term.SYNCHRONISATION: 30, Term.COPY: 10}
    assert step.waits == 1


def test_a_step_ends_when_the_device_has_ended_what_was_launched_in_it(tmp_path: Path) -> None:
    step = of_gpu(tmp_path, launching=1.0)
    assert len(step.steps) == 4
    assert step.seconds == pytest.approx(0.01966, rel=1e-3)  # 24 layers of 810 us, Adam's 200, a message's 20
    assert step.terms[Term.GEMM] == pytest.approx(24 * 600e-6, rel=1e-3)


def test_a_forward_pass_in_an_optimizers_closure_is_no_update() -> None:
    labels, host = Labels(), Spans()
    for category, name, start, end, records in (
        ("annotation", "ProfilerStep#3", 0, 100, False),
        ("annotation", "Optimizer.step#AdamW.step", 0, 100, False),
        ("operator", "aten::linear", 10, 60, True),
        ("operator", "aten::addmm", 10, 60, True),
        ("operator", "aten::addcmul_", 70, 90, False),
    ):
        host.add(labels.number(Label(name, category, records_graph=records)), start, end, 1)
    found = nanoseconds(step_terms(DeviceTrace("trace", 0, labels.all, Spans(), host, [])))
    assert found == {Term.GEMM: 50, Term.OPTIMIZER: 50}


def test_without_marks_the_whole_trace_is_one_step() -> None:
    step = of_kernels((GEMM, 0, 100), (GEMM, 150, 200))
    assert (len(step.steps), "no step is marked" in step.notes[0]) == (1, True)


def test_updates_mark_steps_where_nothing_else_does() -> None:
    updates = tuple(("annotation", "Optimizer.step#AdamW.step", at, at + 10) for at in (90, 190, 290))
    step = of_kernels(*[(GEMM, at, at + 80) for at in range(0, 300, 100)], host=updates)
    assert (step.notes, step.steps) == ([], [1e-7, 1e-7])
    assert nanoseconds(step) == {Term.GEMM: 80, Term.HOST: 20}


def test_one_long_step_does_not_change_what_the_usual_ones_are_spent_on() -> None:
    marks = tuple(("annotation", f"ProfilerStep#{at}", at, end) for at, end in ((0, 100), (100, 200), (200, 1200)))
    step = of_kernels((GEMM, 0, 80), (GEMM, 100, 180), (GEMM, 200, 280), host=marks)
    assert (step.steps, nanoseconds(step)) == ([1e-7, 1e-7, 1e-6], {Term.GEMM: 80, Term.HOST: 20})


@given(
    st.lists(st.tuples(st.sampled_from(KERNELS), st.integers(0, 500), st.integers(1, 90)), min_size=1, max_size=30),
    st.lists(st.integers(0, 500), max_size=4, unique=True),
)
def test_terms_add_up_to_the_step_and_none_is_negative(spans: list[tuple[str, int, int]], marks: list[int]) -> None:
    host = tuple(("annotation", f"ProfilerStep#{at}", at, at + 40) for at in marks)
    step = of_kernels(*((name, start, start + length) for name, start, length in spans), host=host)
    assert sum(step.terms.values()) == pytest.approx(step.seconds)
    assert min(step.terms.values()) >= 0


def test_a_trace_in_which_nothing_takes_time_is_refused() -> None:
    with pytest.raises(InputError, match="nothing in it takes time"):
        of_kernels((GEMM, 5, 5))
