"""Each term beyond the textbooks' model, alone: what it adds, to what, and that it changes nothing else."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_runs.layout import Layout, Recomputation, Schedule
from reference_runs.placement import chunk_layers, head_stage
from reference_runs.run import Mask, Position, Precision, ProductFormat, Workload
from reference_runs.stack import Accumulation
from suite.predict.analytic.axis_links import axis_groups
from suite.predict.analytic.collective_time import collective_seconds, group
from suite.predict.analytic.gemm import EfficiencyTable, gemm_seconds, product_seconds
from suite.predict.analytic.layer_products import layer_products
from suite.predict.analytic.layer_time import (
    attention_work,
    fused_attention_seconds,
    head_seconds,
    layer_time,
    product_times,
)
from suite.predict.analytic.machine import PLAIN, Machine
from suite.predict.analytic.memory import WEIGHT_ELEMENT_BYTES
from suite.predict.analytic.memory_bound_operators import (
    backward_operator_bytes,
    embedding_bytes,
    layer_operator_bytes,
    loss_bytes,
    score_operator_bytes,
)
from suite.predict.analytic.parameters import rank_parameters
from suite.predict.analytic.process_groups import axes_in_node, group_ranks
from suite.predict.analytic.product_formats import layer_casts
from suite.predict.analytic.stage_computation import stage_kernels
from suite.predict.analytic.stage_layers import stage_layers
from suite.predict.analytic.step_time import StepTime
from suite.predict.analytic.traffic import step_traffic
from tests.support.machines import A100, Case, at_peak, cases, flat_efficiency, machines
from tests.support.steps import ROUNDING, bloom, changed, pass_seconds, stage_times, time_of, waiting_stages
from tests.support.strategies import BLOOM

SWITCHES = st.fixed_dictionaries(
    {
        "layer_kernels": st.integers(1, 40),
        "tensor_parallel_kernels": st.integers(0, 4),
        "head_kernels": st.integers(1, 80),
    }
)


def having(machine: Machine, **changes: Any) -> Machine:
    """The machine with other numbers, or, by the names of its stack, with other switches."""
    switches = {name: changes.pop(name) for name in list(changes) if name in PLAIN.__struct_fields__}
    stack = msgspec.structs.replace(machine.stack, **switches)
    return msgspec.structs.replace(machine, stack=stack, **changes)


def but(time: StepTime, *names: str) -> dict[str, float]:
    """All terms but these."""
    return {name: seconds for name, seconds in time._asdict().items() if name not in names}


def counted_kernels(case: Case, switches: dict[str, int], *, stage: int, collective: int = 1) -> float:
    """Kernels of one micro-batch on a rank of `stage`, walked layer by layer; a collective counts as so many."""
    architecture, _, layout, _ = case
    layers = stage_layers(architecture, layout, stage=stage)
    of_a_layer = switches["layer_kernels"]
    if layout.tensor_parallel > 1:
        each_way = 2 if layout.sequence_parallel else 1  # a gather and a scatter in place of a sum
        of_a_layer += collective * each_way * switches["tensor_parallel_kernels"]
    kernels = 0.0
    for layer in range(layers):
        kernels += 3 * of_a_layer  # a gradient of input and weights for each output
        kernels += {
            Recomputation.NONE: 0,
            Recomputation.SELECTIVE: of_a_layer / 4,
            Recomputation.FULL: of_a_layer,
            Recomputation.FROM_INPUT: (layer + 1) * of_a_layer,  # again from the stage's input up to this layer
        }[layout.recomputation]
    if stage == head_stage(layout):
        kernels += 3 * switches["head_kernels"]
    return kernels


@given(cases(), machines(), SWITCHES, st.floats(1e-9, 1e-3))
def test_the_time_of_each_kernel_adds_kernels_times_seconds(
    case: Case, machine: Machine, switches: dict[str, int], seconds: float
) -> None:
    plain = stage_times(case, having(machine, **switches))
    slowed = stage_times(case, having(machine, **switches, kernel_seconds=seconds))
    for stage, (before, after) in enumerate(zip(plain, slowed, strict=True)):
        kernels = counted_kernels(case, switches, stage=stage)
        # the term is a difference of two sums with the accelerator's time, whose last digit is lost
        lost = ROUNDING * case.micro_batches * pass_seconds(after, micro_batches=case.micro_batches)
        expected = case.micro_batches * kernels * seconds
        assert after.launch_seconds == pytest.approx(expected, rel=ROUNDING, abs=lost)
        assert but(after, "launch_seconds") == but(before, "launch_seconds")
        assert before.launch_seconds == before.accumulation_seconds == before.overhead_seconds == 0


def busy_accelerator(time: StepTime) -> float:
    """Seconds in which the accelerator is busy: what it computes, and collectives that it waits for."""
    return math.fsum(time[:6]) + time.launch_seconds


@given(cases(), machines(), SWITCHES, st.floats(0.01, 1.0))
def test_a_host_that_keeps_up_costs_at_most_the_smooth_maximums_bound(
    case: Case, machine: Machine, switches: dict[str, int], share: float
) -> None:
    # a slower pass would hide more traffic
    machine = having(machine, **switches, kernel_seconds=1e-6, overlap_share=0.0)
    for stage, before in enumerate(stage_times(case, machine)):
        accelerator = busy_accelerator(before) / case.micro_batches
        host = share * accelerator
        each = host / counted_kernels(case, switches, stage=stage, collective=2)
        after = stage_times(case, having(machine, launch_seconds=each))[stage]
        assert but(after, "launch_seconds") == but(before, "launch_seconds")
        more = (after.launch_seconds - before.launch_seconds) / case.micro_batches
        # sums of some dozens of terms are subtracted from each other
        lost = ROUNDING * accelerator
        assert more == pytest.approx(math.hypot(1, share**4) ** 0.25 * accelerator - accelerator, rel=0, abs=lost)
        assert -lost <= more <= (2 ** (1 / 8) - 1) * accelerator + lost
        if share <= 0.5:
            assert more <= accelerator / (8 * 2**8) + lost  # (1 + x)^(1/8) <= 1 + x / 8


@given(cases(), machines(), SWITCHES)
def test_a_host_a_thousand_times_slower_decides_alone(case: Case, machine: Machine, switches: dict[str, int]) -> None:
    machine = having(machine, **switches, kernel_seconds=1e-6)
    for stage, before in enumerate(stage_times(case, machine)):
        kernels = counted_kernels(case, switches, stage=stage, collective=2)
        each = 1000 * busy_accelerator(before) / case.micro_batches / kernels
        after = stage_times(case, having(machine, launch_seconds=each))[stage]
        # the accelerator's share is 1000^-8 / 8, far below a rounding
        assert busy_accelerator(after) == pytest.approx(case.micro_batches * kernels * each, rel=ROUNDING, abs=0)


@given(cases(), machines(), SWITCHES, st.floats(1e-9, 1e-3))
def test_a_host_that_waits_at_every_recomputed_layer_adds_its_whole_time(
    case: Case, machine: Machine, switches: dict[str, int], seconds: float
) -> None:
    machine = having(machine, **switches, launch_seconds=seconds, overlap_share=0.0)
    waiting = stage_times(case, having(machine, synchronises_layers=True))
    for stage, (before, after) in enumerate(zip(stage_times(case, machine), waiting, strict=True)):
        assert but(after, "launch_seconds") == but(before, "launch_seconds")
        waits = case.layout.recomputation is not Recomputation.NONE
        host = waits * case.micro_batches * counted_kernels(case, switches, stage=stage, collective=2) * seconds
        lost = ROUNDING * busy_accelerator(after)
        assert after.launch_seconds - before.launch_seconds == pytest.approx(host, rel=ROUNDING, abs=lost)


# a gradient as the backward pass leaves it, and reading and writing the sum
ACCUMULATED_BYTES = {
    Precision.FP32: 4 + 4 + 4,
    Precision.BF16: 2 + 4 + 4,
    Precision.FP16: 2 + 2 + 2,
    Precision.FP16_GRADIENT_COPY: 2 + 2 + 2,
    Precision.FP16_NO_MASTER: 2 + 2 + 2,
}


@given(cases(), machines(), st.booleans(), st.sampled_from(Accumulation))
def test_gradients_are_added_up_once_a_micro_batch_where_no_product_does_it(
    case: Case, machine: Machine, single: bool, accumulation: Accumulation
) -> None:
    if single:
        case = changed(case, pipeline_stages=1, virtual_stages=1)._replace(micro_batches=1)
    architecture, recipe, layout, micro_batches = case
    plain = stage_times(case, machine)
    added = stage_times(case, having(machine, accumulation=accumulation))
    always = accumulation is Accumulation.SEPARATE_ALWAYS
    times = micro_batches if always or (accumulation is Accumulation.SEPARATE and micro_batches > 1) else 0
    for stage, (before, after) in enumerate(zip(plain, added, strict=True)):
        parameters = rank_parameters(architecture, layout, stage=stage).all
        moved = times * ACCUMULATED_BYTES[recipe.precision] * parameters
        seconds = moved / machine.achievable_memory_bytes_per_second
        assert after.accumulation_seconds == pytest.approx(seconds, rel=ROUNDING, abs=0)
        assert but(after, "accumulation_seconds") == but(before, "accumulation_seconds")


@given(cases(), machines(), st.integers(1, 8))
def test_pieces_that_overlap_expose_one_of_them(case: Case, machine: Machine, chunks: int) -> None:
    whole, pieces = stage_times(case, machine), stage_times(case, having(machine, tensor_parallel_chunks=chunks))
    layout = case.layout
    cut = layout.sequence_parallel and layout.tensor_parallel <= machine.accelerators_per_node
    for before, after in zip(whole, pieces, strict=True):
        exposed = before.tensor_parallel_seconds / (chunks if cut else 1)
        assert after.tensor_parallel_seconds == pytest.approx(exposed, rel=ROUNDING, abs=0)
        assert but(after, "tensor_parallel_seconds") == but(before, "tensor_parallel_seconds")


@given(cases(), machines())
def test_messages_to_the_next_stage_that_overlap_take_no_time_where_stages_interleave(
    case: Case, machine: Machine
) -> None:
    hidden = stage_times(case, having(machine, overlaps_pipeline=True))
    for before, after in zip(stage_times(case, machine), hidden, strict=True):
        assert (before.pipeline_seconds > 0) == (case.layout.pipeline_stages > 1)
        assert after.pipeline_seconds == (0 if case.layout.virtual_stages > 1 else before.pipeline_seconds)
        assert but(after, "pipeline_seconds") == but(before, "pipeline_seconds")


@given(cases(), machines())
def test_a_stack_that_does_not_overlap_exposes_all_data_parallel_traffic(case: Case, machine: Machine) -> None:
    architecture, recipe, layout, micro_batches = case
    machine = having(machine, overlaps_data_parallel=False, overlap_share=1.0)
    groups = axis_groups(layout, machine)
    for stage, time in enumerate(stage_times(case, machine)):
        entries = step_traffic(Workload(architecture, recipe, layout), stage=stage, micro_batches=micro_batches)
        seconds = math.fsum(
            collective_seconds(operation, groups[axis], payload_bytes=payload, messages=messages)
            for axis, operation, payload, messages in entries
            if axis in ("dp", "shard", "replicate")
        )
        assert time.data_parallel_seconds == pytest.approx(seconds, rel=ROUNDING, abs=0)


@given(cases(), machines(), st.sampled_from([0.0, 0.1]))
def test_one_ring_makes_a_group_between_nodes_as_slow_as_one_rank_a_node(
    case: Case, machine: Machine, contention: float
) -> None:
    machine = having(machine, network_contention=contention)
    ringed, layout = axis_groups(case.layout, having(machine, one_ring=True)), case.layout
    for axis, inside in axes_in_node(layout, accelerators_per_node=machine.accelerators_per_node).items():
        ranks = group_ranks(layout, axis)
        if inside >= ranks:
            assert ringed[axis] == axis_groups(layout, machine)[axis]
            assert ringed[axis].latency_seconds == machine.link_latency_seconds
        else:
            share = machine.achievable_network_bytes_per_second / machine.accelerators_per_node
            rate = min(machine.achievable_link_bytes_per_second, share / (1 + contention * math.log2(ranks)))
            assert ringed[axis] == pytest.approx((ranks, rate, machine.network_latency_seconds), rel=ROUNDING, abs=0)


SIZES = st.integers(1, 10**5)


@given(SIZES, SIZES, SIZES, st.floats(0, 1000), machines())
def test_a_product_takes_longer_by_its_dimensions_over_the_saturation(
    M: int, N: int, K: int, saturation: float, machine: Machine
) -> None:
    given_ = {
        "element_bytes": 2,
        "table": machine.matrix_efficiency,
        "peak_flop_per_second": machine.peak_flop_per_second,
        "memory_bytes_per_second": math.inf,
    }
    factor = 1 + saturation * (1 / M + 1 / N + 1 / K)
    once, twice = product_seconds(M=M, N=N, K=K, **given_)
    assert product_seconds(M=M, N=N, K=K, **given_, saturation=saturation) == pytest.approx(
        (factor * once, factor * twice), rel=ROUNDING, abs=0
    )


@given(SIZES, SIZES, SIZES, machines(), st.floats(0, 1))
def test_what_does_not_overlap_of_bytes_and_arithmetic_is_added(
    M: int, N: int, K: int, machine: Machine, overlap: float
) -> None:
    def seconds(overlap: float, *, flop_rate: float, byte_rate: float) -> float:
        return gemm_seconds(M, N, K, 2, machine.matrix_efficiency, flop_rate, byte_rate, 0.0, overlap)

    peak, bandwidth = machine.peak_flop_per_second, machine.achievable_memory_bytes_per_second
    arithmetic = seconds(1.0, flop_rate=peak, byte_rate=math.inf)
    moved = seconds(1.0, flop_rate=math.inf, byte_rate=bandwidth)
    both = {"flop_rate": peak, "byte_rate": bandwidth}
    assert seconds(0.0, **both) == arithmetic + moved
    assert seconds(1.0, **both) == max(arithmetic, moved)
    expected = overlap * max(arithmetic, moved) + (1 - overlap) * (arithmetic + moved)
    assert seconds(overlap, **both) == pytest.approx(expected, rel=ROUNDING, abs=0)


@given(cases(), machines(), st.floats(0, 1000))
def test_saturation_slows_every_product_of_a_layer_and_the_head(case: Case, machine: Machine, d: float) -> None:
    machine = having(at_peak(machine), matrix_saturation=d)
    architecture, recipe, layout, _ = changed(case, fused_attention=False)
    products = layer_products(Workload(architecture, recipe, layout))
    seconds = math.fsum(
        n * 2 * M * N * K * (1 + d / M + d / N + d / K) / machine.peak_flop_per_second
        for n, M, N, K in products.values()
    )
    layer = layer_time(Workload(architecture, recipe, layout), machine)
    assert (layer.forward_seconds, layer.backward_seconds) == pytest.approx((seconds, 2 * seconds), rel=ROUNDING, abs=0)
    M, N, K = products["expansion"][1], architecture.padded_vocabulary // layout.tensor_parallel, architecture.hidden
    seconds = 2 * M * N * K * (1 + d / M + d / N + d / K) / machine.peak_flop_per_second
    head = head_seconds(Workload(architecture, recipe, layout), machine)
    assert head == pytest.approx((seconds, 2 * seconds), rel=ROUNDING, abs=0)


@given(cases(), machines(), st.floats(1.0, 4.0))
def test_only_rows_of_the_vocabulary_that_are_no_multiple_of_eight_slow_the_head_down(
    case: Case, machine: Machine, factor: float
) -> None:
    architecture, recipe, layout, _ = case
    aligned = head_seconds(Workload(architecture, recipe, layout), machine)
    slowed = factor if (architecture.padded_vocabulary // layout.tensor_parallel) & 7 else 1.0
    misaligned = head_seconds(Workload(architecture, recipe, layout), having(machine, misalignment=factor))
    assert misaligned == tuple(slowed * seconds for seconds in aligned)


def test_gpt2s_vocabulary_is_aligned_where_it_is_padded() -> None:
    for rows, slowed in ((50257, 2.0), (50304, 1.0), (50257 + 7, 1.0), (50258, 2.0)):
        architecture = msgspec.structs.replace(bloom().architecture, padded_vocabulary=rows)
        given_ = (architecture, bloom().recipe, Layout())
        once, twice = head_seconds(Workload(*given_), A100)
        assert head_seconds(Workload(*given_), having(A100, misalignment=2.0)) == (slowed * once, slowed * twice)


HIDDEN_STATES = {"norm", "residual add", "dropout"}
PASSES = ("residual_passes", "inner_passes", "score_passes", "loss_passes", "update_passes")


def by_passes(operators: dict[str, float] | dict[str, int], workload: Workload) -> dict[str, float]:
    """Bytes of a layer's operators by the passes that scale them."""
    scores = sum(moved for name, moved in operators.items() if name in score_operator_bytes(workload))
    hidden = sum(moved for name, moved in operators.items() if name in HIDDEN_STATES)
    inner = sum(operators.values()) - hidden - scores
    return {"residual_passes": hidden, "inner_passes": inner, "score_passes": scores}


def operator_bytes(case: Case, *, stage: int) -> dict[str, float]:
    """Bytes of one micro-batch's operators on a rank of `stage`, by the passes that scale them."""
    architecture, recipe, layout, _ = case
    layers = stage_layers(architecture, layout, stage=stage)
    workload = Workload(architecture, recipe, layout)
    every = layer_operator_bytes(workload)
    forward, backward = (by_passes(each, workload) for each in (every, backward_operator_bytes(workload, every)))
    again = {
        Recomputation.NONE: 0,
        Recomputation.SELECTIVE: 0,
        Recomputation.FULL: layers,
        Recomputation.FROM_INPUT: sum(range(layers + 1)),
    }[layout.recomputation]
    again_scores = layers if layout.recomputation is Recomputation.SELECTIVE else again
    first, last = stage == 0, stage == head_stage(layout)
    moved = {
        passes: (layers + (again_scores if passes == "score_passes" else again)) * forward[passes]
        + layers * backward[passes]
        for passes in forward
    }
    moved["residual_passes"] += first * 3 * embedding_bytes(workload)
    return moved | {"loss_passes": last * 3 * loss_bytes(workload)}


@given(cases(), machines(), st.sampled_from(PASSES), st.floats(0.5, 10.0))
def test_passes_scale_their_operators_and_nothing_else(
    case: Case, machine: Machine, passes: str, factor: float
) -> None:
    machine = having(machine, overlap_share=0.0)  # longer operators would hide more traffic
    scaled = stage_times(case, having(machine, **{passes: factor}))
    for stage, (before, after) in enumerate(zip(stage_times(case, machine), scaled, strict=True)):
        if passes == "update_passes":
            assert after.optimizer_seconds == pytest.approx(factor * before.optimizer_seconds, rel=ROUNDING, abs=0)
            assert but(after, "optimizer_seconds") == but(before, "optimizer_seconds")
            continue
        moved = operator_bytes(case, stage=stage)
        moved[passes] *= factor
        seconds = case.micro_batches * sum(moved.values()) / machine.achievable_memory_bytes_per_second
        assert after.operator_seconds == pytest.approx(seconds, rel=ROUNDING, abs=0)
        assert but(after, "operator_seconds") == but(before, "operator_seconds")


@given(cases(), machines(), st.floats(0.1, 1.0))
def test_the_share_of_a_fused_loss_scales_what_is_behind_the_layers(case: Case, machine: Machine, share: float) -> None:
    fused = having(machine, loss_share=share, loss_passes=3.0)
    assert time_of(case, fused) == pytest.approx(
        time_of(case, having(machine, loss_passes=3 * share)), rel=ROUNDING, abs=0
    )


@pytest.mark.parametrize("switch", ["fused_dropout", "fused_bias", "fused_rotary"])
@given(cases(), machines())
def test_kernels_that_are_not_fused_read_and_write_once_more(switch: str, case: Case, machine: Machine) -> None:
    architecture, recipe, layout, _ = case
    if switch == "fused_rotary":
        architecture = msgspec.structs.replace(architecture, position=Position.ROTARY, rotary_dim=2)
    fused, apart = (
        layer_time(Workload(architecture, recipe, layout), having(machine, **{switch: claim}))
        for claim in (True, False)
    )
    w = 4 if recipe.precision is Precision.FP32 else 2
    t, tokens = layout.tensor_parallel, layout.micro_batch * architecture.sequence // layout.context_parallel
    moved = 0.0
    if switch == "fused_dropout":  # what the addition, or the product with the values, reads and writes anyway
        hidden = tokens * architecture.hidden / (t if layout.sequence_parallel else 1)
        scores = 0 if layout.fused_attention else tokens * architecture.sequence * architecture.heads / t
        moved += 2 * 2 * w * hidden * (recipe.hidden_dropout > 0)
        moved += 2 * w * scores * (recipe.attention_dropout > 0)
    elif switch == "fused_bias":  # the expansion's
        expansion = tokens * architecture.ffn_hidden / t * (2 if architecture.activation.gated else 1)
        moved += 2 * w * expansion * architecture.biases
    else:
        # four kernels more on the two rotated dimensions of each head, and joining them with the others
        heads = tokens * (architecture.heads + architecture.kv_heads) / t
        moved += 4 * 2 * w * heads * 2 + 2 * w * heads * architecture.head_dim
    seconds = moved / machine.achievable_memory_bytes_per_second
    more = apart.operator_seconds - fused.operator_seconds
    assert more == pytest.approx(seconds, rel=0, abs=ROUNDING * apart.operator_seconds)
    assert apart[:3] == fused[:3]
    if switch == "fused_dropout":  # backward it is a pass of its own: the residual keeps the gradient as it is
        assert apart.operator_backward_seconds == fused.operator_backward_seconds


@given(machines(), st.integers(0, 10), st.integers(0, 6), st.floats(0, 1))
def test_a_network_is_slower_with_every_doubling_of_the_nodes(
    machine: Machine, doublings: int, ranks_in_node: int, contention: float
) -> None:
    machine = having(machine, link_bytes_per_second=math.inf)
    sizes = {"ranks": 2 ** (doublings + ranks_in_node), "ranks_in_node": 2**ranks_in_node}
    free, contended = group(machine, **sizes), group(having(machine, network_contention=contention), **sizes)
    slower = free.bytes_per_second / (1 + contention * doublings)
    assert contended == pytest.approx(free._replace(bytes_per_second=slower), rel=ROUNDING, abs=0)


@given(cases(), machines(), st.floats(0, 10))
def test_the_overhead_comes_once_a_step(case: Case, machine: Machine, seconds: float) -> None:
    plain, more = time_of(case, machine), time_of(case, having(machine, step_overhead_seconds=seconds))
    assert more == plain._replace(overhead_seconds=seconds)
    assert more.total_seconds == pytest.approx(plain.total_seconds + seconds, rel=ROUNDING, abs=0)


NUMBERS = {
    "matrix_saturation": (0.0, 1000.0),
    "misalignment": (1.0, 4.0),
    "kernel_seconds": (0.0, 1e-3),
    "launch_seconds": (0.0, 1e-3),
    "residual_passes": (0.1, 10.0),
    "inner_passes": (0.1, 10.0),
    "score_passes": (0.1, 10.0),
    "loss_passes": (0.1, 50.0),
    "update_passes": (0.1, 10.0),
    "network_contention": (0.0, 1.0),
    "step_overhead_seconds": (0.0, 1.0),
    "expert_slowdown": (1.0, 2.0),
    "overlap_cost": (0.0, 1.0),
}
FASTER = ("product_overlap", "score_product_overlap", "format_efficiency")  # the more, the faster; shares
COUNTS = ("layer_kernels", "tensor_parallel_kernels", "head_kernels")
# switch -> the faster choice, the slower one
SWITCHED: dict[str, tuple[object, object]] = {
    "fused_dropout": (True, False),
    "fused_bias": (True, False),
    "fused_rotary": (True, False),
    "loss_share": (0.3, 1.0),
    "accumulation": (Accumulation.IN_PRODUCT, Accumulation.SEPARATE_ALWAYS),
    "tensor_parallel_chunks": (4, 1),
    "transformer_engine": (True, False),
    "overlaps_data_parallel": (True, False),
    "overlaps_pipeline": (True, False),
    "synchronises_layers": (False, True),
    "one_ring": (False, True),
    "overlaps_gathers": (True, False),
    "reduces_in_16_bit": (True, False),
    "gathers_in_format": (True, False),
    "overlaps_input_gradients": (True, False),
    "overlaps_context_parallel": (True, False),
    "overlaps_experts": (True, False),
}


def test_every_number_and_switch_of_the_step_is_among_those_that_never_make_it_faster() -> None:
    new = set(Machine.__struct_fields__[-len(Machine.__struct_defaults__) :])
    # more overlap and more flop per second are faster; what the peak rests on changes no time, and the link to the host
    # that of an offloaded optimizer alone
    peaks = {"peak_is_measured", "product_peak_flop_per_second", "host_bytes_per_second"}
    assert new == {*NUMBERS, *peaks, "stack", *FASTER}
    # three others choose other numbers or layouts: libraries, the attention kernel, the dealing of layers; the fourth
    # is the host's time or none; the last two change memory alone
    others = {"generation", "attention", "balances_stages", "python_launches", "modules", "weights_32"}
    assert set(PLAIN.__struct_fields__) == {*SWITCHED, *COUNTS, *others}


@pytest.mark.parametrize("name", [*NUMBERS, *COUNTS, *SWITCHED, *FASTER])
@settings(max_examples=25)
@given(cases(), machines(), st.data())
def test_more_of_it_never_makes_a_step_faster(name: str, case: Case, machine: Machine, data: st.DataObject) -> None:
    host = data.draw(st.sampled_from([0.0, 1e-6, 1e-3]))
    # Computation's share of a pass hides traffic, and beside a slow host more computation is a larger share of a pass
    # that takes no longer: the law holds without overlap alone.
    machine = having(machine, kernel_seconds=1e-6, launch_seconds=host, overlap_share=0.0 if host else 1.0)
    if name in SWITCHED:
        less, more = SWITCHED[name]
    elif name in COUNTS:
        less, more = sorted(data.draw(st.lists(st.integers(1, 100), min_size=2, max_size=2)))
    else:
        bounds = NUMBERS.get(name, (0.05, 1.0))
        less, more = sorted(data.draw(st.lists(st.floats(*bounds), min_size=2, max_size=2)))
        if name in FASTER:
            less, more = more, less
    fast, slow = (time_of(case, having(machine, **{name: value})).total_seconds for value in (less, more))
    assert fast <= slow * (1 + ROUNDING)


def without_v(case: Case) -> Case:
    """The case with another schedule where its own has two chunks a stage, in the shape of a V."""
    return changed(case, schedule=Schedule.ONE_F_ONE_B) if case.layout.schedule.shape_of_v else case


@given(cases(), machines())
def test_equal_counts_of_layers_give_what_dealing_them_evenly_gives(case: Case, machine: Machine) -> None:
    stages = case.layout.pipeline_stages
    architecture = msgspec.structs.replace(case.architecture, layers=2 * stages)
    machine = having(machine, kernel_seconds=1e-6, launch_seconds=1e-6)
    case = changed(without_v(case)._replace(architecture=architecture), virtual_stages=1, stage_assignment="layers")
    counted = changed(case, stage_layer_counts=(2,) * stages)
    # the same additions but for those of the stages' micro-batches
    assert time_of(counted, machine) == pytest.approx(time_of(case, machine), rel=ROUNDING, abs=0)


@given(cases(), machines())
def test_counted_layers_are_those_that_the_assignment_deals(case: Case, machine: Machine) -> None:
    case = changed(without_v(case), virtual_stages=1)
    dealt = chunk_layers(case.architecture.layers, case.layout)
    counted = changed(case, stage_layer_counts=tuple(len(layers) for layers in dealt))
    assert chunk_layers(case.architecture.layers, counted.layout) == dealt
    assert stage_times(counted, machine) == stage_times(case, machine)


@given(cases(), machines(), st.data())
def test_a_step_of_counted_layers_is_the_slowest_of_all_its_stages(
    case: Case, machine: Machine, data: st.DataObject
) -> None:
    stages, left, counts = case.layout.pipeline_stages, case.architecture.layers, []
    for _ in range(stages - 1):
        counts.append(data.draw(st.integers(0, left)))
        left -= counts[-1]
    # with every term that a micro-batch has: the other stages' are what the slowest one waits for
    machine = having(
        machine,
        kernel_seconds=data.draw(st.sampled_from([0.0, 1e-6, 1e-3])),
        launch_seconds=data.draw(st.sampled_from([0.0, 1e-6, 1e-3])),
        accumulation=data.draw(st.sampled_from(Accumulation)),
        synchronises_layers=data.draw(st.booleans()),
        overlaps_pipeline=data.draw(st.booleans()),
        tensor_parallel_chunks=data.draw(st.sampled_from([1, 4])),
    )
    case = changed(case, virtual_stages=1, stage_layer_counts=(*counts, left))
    longest = max(time.total_seconds for time in waiting_stages(case, machine))
    assert time_of(case, machine).total_seconds == pytest.approx(longest, rel=ROUNDING, abs=0)


ARRAYS = (
    "memory_efficiency",
    "fused_attention_efficiency",
    "link_efficiency",
    "link_latency_seconds",
    "network_efficiency",
    "network_latency_seconds",
    "overlap_share",
)


@given(cases(), machines(), SWITCHES, st.data())
def test_arrays_of_parameters_give_what_each_number_gives(
    case: Case, machine: Machine, switches: dict[str, int], data: st.DataObject
) -> None:
    case = changed(case, schedule=data.draw(st.sampled_from([Schedule.ONE_F_ONE_B, case.layout.schedule])))
    switched = {
        name: data.draw(st.sampled_from(choices), label=name)
        for name, choices in SWITCHED.items()
        if name not in ("loss_share",)
    }
    machine = having(machine, **switches, **switched)
    points = 3
    shares, seconds = st.floats(0.05, 1.0), st.floats(1e-9, 1e-3)
    draws = {name: seconds if name.endswith("seconds") else shares for name in ARRAYS}
    draws |= {name: st.floats(*bounds) for name, bounds in NUMBERS.items()}
    drawn = {name: data.draw(st.lists(each, min_size=points, max_size=points)) for name, each in draws.items()}
    efficiency = data.draw(st.lists(shares, min_size=points, max_size=points))
    table = EfficiencyTable((1.0,), (1.0,), (1.0,), (((numpy.array(efficiency),),),))
    columns = {name: numpy.array(values) for name, values in drawn.items()}
    together = time_of(case, having(machine, matrix_efficiency=table, **columns))
    for place in range(points):
        numbers = {name: values[place] for name, values in drawn.items()}
        alone = time_of(case, having(machine, matrix_efficiency=flat_efficiency(efficiency[place]), **numbers))
        swept = StepTime(*(float(numpy.broadcast_to(term, points)[place]) for term in together))
        assert swept.total_seconds == pytest.approx(alone.total_seconds, rel=ROUNDING, abs=0)
        if case.layout.pipeline_stages == 1:
            # NumPy rounds powers and logarithms on its own; the launch term is a difference of longer times
            lost = ROUNDING * alone.total_seconds
            assert swept == pytest.approx(alone, rel=ROUNDING, abs=lost)


@given(cases(), machines(), st.floats(1e-9, 1e-3))
def test_waiting_for_the_host_hides_traffic_too(case: Case, machine: Machine, seconds: float) -> None:
    machine = having(machine, overlap_share=1.0, overlaps_data_parallel=True, kernel_seconds=1e-6)
    for before, after in zip(
        stage_times(case, machine), stage_times(case, having(machine, launch_seconds=seconds)), strict=True
    ):
        # the same traffic, and a pass that takes as long or longer
        assert after.data_parallel_seconds <= before.data_parallel_seconds * (1 + ROUNDING)


@given(cases(), machines(), st.sampled_from([2, 4]))
def test_products_next_to_messages_in_pieces_read_the_weight_once_a_piece(
    case: Case, machine: Machine, chunks: int
) -> None:
    case = changed(case, sequence_parallel=True)
    workload, ranks = Workload(*case[:3]), case.layout.tensor_parallel
    if ranks > machine.accelerators_per_node:
        return
    engine = having(machine, tensor_parallel_chunks=chunks, transformer_engine=True)
    plain, cut = product_times(workload, machine), product_times(workload, engine)
    element = WEIGHT_ELEMENT_BYTES[case.recipe.precision]
    numbers = {
        "element_bytes": element,
        "table": machine.matrix_efficiency,
        "peak_flop_per_second": machine.peak_flop_per_second,
        "memory_bytes_per_second": machine.achievable_memory_bytes_per_second,
        "saturation": machine.matrix_saturation,
        "overlap": machine.product_overlap,
    }
    for part, before in plain.items():
        after = cut[part]
        if ranks == 1 or part not in {"query, key, value", "expansion", "projection", "contraction"}:
            assert after.forward_seconds == before.forward_seconds
            assert after.backward_seconds == pytest.approx(before.backward_seconds, rel=1e-9)
            continue
        assert before.sizes is not None
        M, N, K = before.sizes
        summed = part in {"projection", "contraction"}
        pieces = chunks if summed else ranks
        forward, _ = product_seconds(M=max(M // pieces, 1), N=N, K=K, **numbers)  # type: ignore[arg-type]
        assert after.forward_seconds == pytest.approx(pieces * forward, rel=ROUNDING)
        backward = before.backward_seconds
        if summed:
            whole, _ = product_seconds(M=M, N=K, K=N, **numbers)  # type: ignore[arg-type]
            piece, _ = product_seconds(M=max(M // ranks, 1), N=K, K=N, **numbers)  # type: ignore[arg-type]
            backward += ranks * piece - whole
        assert after.backward_seconds == pytest.approx(backward, rel=1e-9)


@given(cases(), machines())
def test_products_read_both_factors_and_write_their_result(case: Case, machine: Machine) -> None:
    workload = Workload(*case[:3])
    element = WEIGHT_ELEMENT_BYTES[case.recipe.precision]
    dtype = {2: torch.bfloat16, 4: torch.float32}[element]
    for time in product_times(workload, machine).values():
        if time.sizes is not None:
            M, N, K = time.sizes
            tensors = [torch.empty(size, dtype=dtype, device="meta") for size in ((M, K), (K, N), (M, N))]
            assert time.least_bytes == time.products * sum(tensor.nbytes for tensor in tensors)
            assert time.flop == time.products * 2 * M * N * K


def test_casts_take_inputs_and_gradients_of_every_micro_batch_and_weights_once() -> None:
    recipe = msgspec.structs.replace(BLOOM.recipe, product_format=ProductFormat.FP8_CURRENT)
    layout = Layout(recomputation=Recomputation.NONE, micro_batch=2)
    workload = Workload(BLOOM.architecture, recipe, layout)
    casts = layer_casts(workload)
    assert min(casts.inputs, casts.gradients, casts.weights) > 0
    moved = BLOOM.architecture.layers * (7 * (casts.inputs + casts.gradients) + casts.weights)
    machine = msgspec.structs.replace(A100, product_peak_flop_per_second=A100.peak_flop_per_second)
    seconds = time_of(Case(*workload, 7), machine).cast_seconds
    assert seconds == pytest.approx(moved / A100.achievable_memory_bytes_per_second, rel=ROUNDING)


@pytest.mark.parametrize(("recomputation", "forwards"), [("none", 1), ("selective", 1), ("full", 2)])
@pytest.mark.parametrize(("product_format", "each"), [("fp8-delayed", 1), ("fp8-current", 2)])
def test_kernels_of_casts_are_of_four_inputs_a_forward_pass_and_four_gradients(
    recomputation: str, forwards: int, product_format: str, each: int
) -> None:
    layout = Layout(recomputation=Recomputation(recomputation))
    in_8_bit = msgspec.structs.replace(BLOOM.recipe, product_format=ProductFormat(product_format))
    plain, casting = (
        stage_kernels(Workload(BLOOM.architecture, recipe, layout), A100, stage=0)
        for recipe in (BLOOM.recipe, in_8_bit)
    )
    assert casting - plain == each * BLOOM.architecture.layers * (4 * forwards + 4)


def test_recomputation_repeats_attention_or_whole_layers() -> None:
    shape = msgspec.structs.replace(BLOOM.architecture, layers=5)
    kept, selective, full = (
        Workload(shape, BLOOM.recipe, Layout(recomputation=one))
        for one in (Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL)
    )
    layer, plain = layer_time(kept, A100), time_of(Case(*kept, 3), A100)
    assert 0 < layer.attention_operator_seconds < layer.operator_seconds
    for workload, products, operators in (
        (selective, layer.attention_seconds, layer.attention_operator_seconds),
        (full, layer.forward_seconds, layer.operator_seconds),
    ):
        time = time_of(Case(*workload, 3), A100)
        assert time.recomputation_seconds == pytest.approx(3 * 5 * products, rel=ROUNDING)
        assert time.operator_seconds - plain.operator_seconds == pytest.approx(3 * 5 * operators, rel=1e-9)
        assert (time.forward_seconds, time.backward_seconds) == (plain.forward_seconds, plain.backward_seconds)


def test_experts_that_are_unequally_busy_slow_down_what_a_router_shares_out() -> None:
    slow = having(A100, expert_slowdown=1.5)
    mixed = msgspec.structs.replace(BLOOM.architecture, experts=4, experts_per_token=2, shared_experts=1)
    for shape, slowed in ((BLOOM.architecture, set()), (mixed, {"expansion", "contraction"})):
        workload = Workload(shape, BLOOM.recipe, Layout())
        before, after = product_times(workload, A100), product_times(workload, slow)
        for part, time in before.items():
            factor = 1.5 if part in slowed else 1.0
            assert after[part].forward_seconds == pytest.approx(factor * time.forward_seconds, rel=ROUNDING)
            assert after[part].backward_seconds == pytest.approx(factor * time.backward_seconds, rel=ROUNDING)


@pytest.mark.parametrize(("mask", "share"), [(Mask.CAUSAL, 0.5), (Mask.PREFIX, 1.0)])
def test_fused_attention_of_a_rank_in_flop_and_bytes(mask: Mask, share: float) -> None:
    """3 samples of 2048 positions over 2 context- and 4 tensor-parallel ranks; 112 heads of 128, in 16 bits."""
    shape = msgspec.structs.replace(BLOOM.architecture, mask=mask)
    layout = Layout(micro_batch=3, tensor_parallel=4, context_parallel=2, fused_attention=True)
    workload = Workload(shape, BLOOM.recipe, layout)
    work = attention_work(workload)
    tokens, width = 3 * 1024, 28 * 128
    assert work.flop == share * 2 * 2 * tokens * 2048 * width
    # queries and output of the rank's positions, keys and values of all
    assert work.least_bytes == 2 * (2 * tokens * width + 2 * 3 * 2048 * width)
    passes = fused_attention_seconds(workload, at_peak(A100))
    assert passes == pytest.approx((work.flop / 312e12, 2.5 * work.flop / 312e12), rel=ROUNDING)
