"""Shares of a phase from hand-made events whose answer is plain to see, and the terms of a step from such shares."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.execute.measure.phases import RANGE, Part
from suite.execute.measure.timeline import DeviceSpan, Shares, Span, device_shares, host_shares, term_seconds
from suite.metrics.figures import StepTerm


def phase(part: Part, start: int, end: int) -> Span:
    return Span(RANGE + part, start, end, annotated=True)


def forward(*spans: Span, in_flight: tuple[tuple[int, int], ...] = ()) -> Shares:
    """Shares of a forward pass from 0 to 100."""
    return host_shares([phase(Part.FORWARD, 0, 100), *spans], in_flight)[Part.FORWARD]


def test_time_without_an_operator_is_overhead() -> None:
    assert forward(Span("aten::mm", 10, 40), Span("aten::gelu", 50, 55)) == Shares(compute=35, overhead=65)


def test_views_and_allocations_are_overhead() -> None:
    spans = [Span("aten::mm", 0, 50), Span("aten::t", 50, 60), Span("aten::empty", 60, 70)]
    assert forward(*spans) == Shares(compute=50, overhead=50)


def test_an_operator_that_only_calls_others_computes_in_their_time() -> None:
    spans = [Span("aten::linear", 0, 60), Span("aten::t", 5, 10), Span("aten::addmm", 20, 50)]
    assert forward(*spans) == Shares(compute=30, overhead=70)


def test_an_operator_that_computes_and_calls_others_computes_in_its_own_time_too() -> None:
    spans = [Span("aten::addmm", 0, 60), Span("aten::expand", 0, 10), Span("aten::copy_", 10, 20)]
    assert forward(*spans) == Shares(compute=50, overhead=50)


def test_an_operator_that_calls_its_own_name_hands_on() -> None:
    assert forward(Span("aten::mm", 0, 60), Span("aten::mm", 10, 50)) == Shares(compute=40, overhead=60)


def test_generated_code_computes_and_its_wrappers_do_not() -> None:
    spans = [
        Span("Torch-Compiled Region: 0/0", 0, 80),
        Span("CompiledFunction", 10, 70),
        Span("## Call CompiledFxGraph abc ##", 20, 60),
        Span("aten::mm", 30, 40),
    ]
    assert forward(*spans) == Shares(compute=40, overhead=60)


def test_a_collective_is_communication_but_for_operators_that_compute_within() -> None:
    spans = [Span("c10d::allreduce_", 10, 40), Span("aten::copy_", 10, 15), Span("aten::view", 15, 20)]
    assert forward(*spans) == Shares(compute=5, communication=25, overhead=70)


def test_waiting_for_a_functional_collective_is_communication() -> None:
    assert forward(Span("_c10d_functional::wait_tensor", 20, 90)) == Shares(communication=70, overhead=30)


def test_only_what_no_operator_hides_of_a_message_is_communication() -> None:
    flying = ((5, 70), (60, 80))  # two messages, which overlap
    shares = forward(Span("aten::mm", 0, 50), in_flight=flying)
    assert shares == Shares(compute=50, communication=30, overhead=20)


def test_dispatch_within_an_operator_is_overhead_while_a_message_flies() -> None:
    node = Span("autograd::engine::evaluate_function: MmBackward0", 0, 80)
    shares = forward(node, Span("aten::mm", 20, 60), in_flight=((0, 100),))
    assert shares == Shares(compute=40, communication=20, overhead=40)


def test_waits_of_fully_sharded_units_are_communication_within_an_autograd_node_too() -> None:
    node = Span("RegisterPostBackwardFunctionBackward", 0, 80)
    wait = Span("FSDP::post_backward_reduce", 10, 70, annotated=True)
    assert forward(node, wait, in_flight=((30, 60),)) == Shares(communication=30, overhead=70)


def test_passes_of_a_pipeline_are_apart_from_its_waiting() -> None:
    spans = [phase(Part.PIPELINE, 0, 100), phase(Part.FORWARD, 10, 40), Span("aten::mm", 15, 35)]
    spans += [phase(Part.BACKWARD, 60, 90), Span("aten::mm", 60, 80)]
    shares = host_shares(spans, [])
    assert shares[Part.FORWARD] == Shares(compute=20, overhead=10)
    assert shares[Part.BACKWARD] == Shares(compute=20, overhead=10)
    assert shares[Part.PIPELINE] == Shares(overhead=40)


def test_what_no_phase_holds_counts_nowhere() -> None:
    shares = host_shares([Span("aten::mm", 0, 50), phase(Part.UPDATE, 60, 70), Span("aten::mm", 80, 90)], [(0, 100)])
    assert {part: share.whole for part, share in shares.items() if share.whole} == {Part.UPDATE: 10}


NAMES = ["aten::mm", "aten::view", "aten::linear", "c10d::allreduce_", "AddBackward0", "FSDP::x", "CompiledFxGraph"]


@st.composite
def nested(draw: st.DrawFn, start: int = 0, end: int = 1000, depth: int = 4) -> list[Span]:
    """Spans that lie within each other or side by side."""
    if depth == 0 or end - start < 2:
        return []
    cuts = sorted(draw(st.lists(st.integers(start, end), min_size=0, max_size=6)))
    spans: list[Span] = []
    for first, last in zip(cuts[::2], cuts[1::2], strict=False):
        name = draw(st.sampled_from(NAMES))
        spans += [Span(name, first, last, name.startswith("FSDP")), *draw(nested(first, last, depth - 1))]
    return spans


INTERVALS = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 200)).map(lambda pair: (pair[0], sum(pair))))


@given(nested(), INTERVALS)
def test_the_shares_of_a_phase_are_all_of_its_time(spans: list[Span], messages: list[tuple[int, int]]) -> None:
    share = host_shares([phase(Part.FORWARD, 0, 1000), *spans], messages)[Part.FORWARD]
    assert share.whole == 1000
    assert min(share.compute, share.communication, share.overhead) >= 0


def moment(spans: list[Span], messages: list[tuple[int, int]], time: int) -> str:
    """The kind of one nanosecond by the rule, looked up span by span."""
    within = [span for span in spans if span.start <= time < span.end]
    if within and within[-1].name in ("aten::mm", "CompiledFxGraph"):
        return "compute"
    if any(span.name.startswith("c10d::") for span in within):
        return "communication"
    ranges_only = not within or within[-1].annotated
    if ranges_only and any(start <= time < end for start, end in messages):
        return "communication"
    return "overhead"


@given(nested(end=60), INTERVALS)
def test_the_shares_are_those_of_every_nanosecond_on_its_own(
    spans: list[Span], messages: list[tuple[int, int]]
) -> None:
    spans = [span for number, span in enumerate(spans) if span.end > span.start]
    nests = [(a, b) for a in spans for b in spans if a is not b and a.name == b.name and a.start <= b.start < a.end]
    if nests:
        return  # handing on is tested above
    share = host_shares([phase(Part.FORWARD, 0, 60), *spans], messages)[Part.FORWARD]
    said = [moment(spans, messages, time) for time in range(60)]
    expected = [said.count(kind) for kind in ("compute", "communication", "overhead")]
    assert [share.compute, share.communication, share.overhead] == expected


def test_kernels_belong_to_the_phase_that_launched_them_however_late_they_run() -> None:
    phases = [(Part.FORWARD, (0, 10)), (Part.BACKWARD, (10, 30))]
    kernels = [DeviceSpan("gemm", 5, 25, launched=2), DeviceSpan("gemm", 25, 75, launched=12)]
    shares = device_shares(phases, kernels)
    assert (shares[Part.FORWARD].compute, shares[Part.BACKWARD].compute) == (20, 50)


def test_kernels_at_the_same_time_compute_once() -> None:
    kernels = [DeviceSpan("gemm", 0, 20, 1), DeviceSpan("gelu", 10, 30, 2)]
    assert device_shares([(Part.FORWARD, (0, 10))], kernels)[Part.FORWARD] == Shares(compute=30)


def test_only_what_no_kernel_hides_of_nccl_and_of_copies_counts() -> None:
    kernels = [
        DeviceSpan("gemm", 0, 40, 1),
        DeviceSpan("ncclDevKernel_AllReduce_Sum_bf16", 20, 70, 2),
        DeviceSpan("Memcpy HtoD (Pinned -> Device)", 60, 90, 3),
        DeviceSpan("Memcpy DtoD (Device -> Device)", 90, 95, 3),
    ]
    shares = device_shares([(Part.BACKWARD, (0, 10))], kernels)[Part.BACKWARD]
    assert shares == Shares(compute=45, communication=30, copy=20)


def test_passes_of_a_pipeline_have_their_own_kernels() -> None:
    phases = [(Part.PIPELINE, (0, 100)), (Part.FORWARD, (10, 40)), (Part.BACKWARD, (60, 90))]
    kernels = [DeviceSpan("gemm", 10, 20, 15), DeviceSpan("gemm", 20, 50, 70), DeviceSpan("copy", 50, 51, 50)]
    shares = device_shares(phases, kernels)
    assert [shares[part].compute for part in (Part.PIPELINE, Part.FORWARD, Part.BACKWARD)] == [1, 10, 30]


SECOND = 10**9
NOTHING = {part: Shares() for part in Part}


def terms(
    step: float, phases: dict[Part, float], shares: dict[Part, Shares], *, profiled_steps: int = 1
) -> dict[str, float]:
    """The terms of one timed step that are not 0."""
    result = term_seconds([step], [dict.fromkeys(Part, 0.0) | phases], NOTHING | shares, profiled_steps=profiled_steps)
    assert list(result) == [term.value for term in StepTerm]
    assert sum(result.values()) == pytest.approx(step, rel=1e-12)
    return {term: value for term, value in result.items() if abs(value) > 1e-12}


def test_loading_and_copying_are_terms_as_they_are_and_what_lies_between_phases_is_unexplained() -> None:
    phases = {Part.DATA_LOADING: 0.5, Part.HOST_DEVICE_COPY: 0.25}
    assert terms(1.0, phases, {}) == {"data loading": 0.5, "host-device copy": 0.25, "unexplained": 0.25}


def test_profiling_costs_overhead_and_no_compute() -> None:
    share = Shares(compute=2 * SECOND, communication=SECOND, overhead=4 * SECOND)  # two seconds longer than timed
    result = terms(5.0, {Part.FORWARD: 5.0}, {Part.FORWARD: share})
    assert result == {"forward": 2.0, "exposed communication": 1.0, "launch and host overhead": 2.0}


def test_overhead_is_not_below_zero_and_the_parts_are_scaled_to_the_phase() -> None:
    share = Shares(compute=6 * SECOND, communication=2 * SECOND, overhead=SECOND)
    result = terms(4.0, {Part.BACKWARD: 4.0}, {Part.BACKWARD: share})
    assert result == {"backward": 3.0, "exposed communication": 1.0}


def test_a_phase_that_was_faster_under_the_profiler_is_scaled_up() -> None:
    result = terms(4.0, {Part.UPDATE: 4.0}, {Part.UPDATE: Shares(compute=SECOND, copy=SECOND)})
    assert result == {"host-device copy": 2.0, "optimizer": 2.0}


def test_shares_are_of_all_profiled_steps() -> None:
    share = Shares(compute=4 * SECOND, overhead=2 * SECOND)
    result = terms(3.0, {Part.FORWARD: 3.0}, {Part.FORWARD: share}, profiled_steps=2)
    assert result == {"forward": 2.0, "launch and host overhead": 1.0}


def test_a_phase_that_the_profile_does_not_show_is_overhead() -> None:
    assert terms(1.0, {Part.FORWARD: 1.0}, {}) == {"launch and host overhead": 1.0}


def test_what_a_stage_waits_is_the_bubble() -> None:
    phases = {Part.PIPELINE: 8.0, Part.FORWARD: 2.0, Part.BACKWARD: 3.0}
    shares = {Part.FORWARD: Shares(compute=SECOND), Part.BACKWARD: Shares(compute=SECOND)}
    assert terms(8.0, phases, shares) == {"forward": 2.0, "backward": 3.0, "bubble": 3.0}


def test_phases_of_a_median_step_are_their_mean_shares_of_it() -> None:
    steps = [1.0, 2.0, 4.0]
    phases = [dict.fromkeys(Part, 0.0) | {Part.DATA_LOADING: seconds} for seconds in (0.1, 0.4, 1.2)]
    result = term_seconds(steps, phases, NOTHING, profiled_steps=1)
    assert result["data loading"] == pytest.approx(2.0 * (0.1 + 0.2 + 0.3) / 3)
    assert result["unexplained"] == pytest.approx(2.0 - 0.4)
