"""Seconds of a layer and of the head: products, attention, operators, each alone."""

from __future__ import annotations

import math

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout, Recomputation
from reference_runs.placement import head_stage
from reference_runs.run import Mask, Position, Precision, Workload
from reference_runs.stack import Modules
from suite.predict.analytic.gemm import gemm_seconds, product_seconds
from suite.predict.analytic.layer_products import layer_products
from suite.predict.analytic.layer_time import (
    attention_work,
    fused_attention_seconds,
    head_seconds,
    layer_time,
    product_times,
)
from suite.predict.analytic.machine import Machine, head_share
from suite.predict.analytic.memory import WEIGHT_ELEMENT_BYTES
from suite.predict.analytic.memory_bound_operators import (
    backward_operator_bytes,
    embedding_bytes,
    layer_operator_bytes,
    loss_bytes,
    score_operator_bytes,
)
from suite.predict.analytic.stage_layers import stage_layers
from tests.support.machines import A100, Case, at_peak, cases, machines
from tests.support.steps import ROUNDING, but, changed, having, stage_times, time_of
from tests.support.strategies import BLOOM

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
        Recomputation.SELECTIVE_OP: layers,
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


@pytest.mark.parametrize("switch", ["modules", "fused_bias", "fused_rotary"])
@given(cases(), machines())
def test_kernels_that_are_not_fused_read_and_write_once_more(switch: str, case: Case, machine: Machine) -> None:
    architecture, recipe, layout, _ = case
    if switch == "fused_rotary":
        architecture = msgspec.structs.replace(architecture, position=Position.ROTARY, rotary_dim=2)
    fused, apart = (
        layer_time(Workload(architecture, recipe, layout), having(machine, **{switch: claim}))
        for claim in ((Modules.FUSED, Modules.EAGER) if switch == "modules" else (True, False))
    )
    w = 4 if recipe.precision is Precision.FP32 else 2
    t, tokens = layout.tensor_parallel, layout.micro_batch * architecture.sequence // layout.context_parallel
    moved = 0.0
    if switch == "modules":  # of dropout, what the addition, or the product with the values, reads and writes anyway
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
    if switch == "modules":  # backward it is a pass of its own: the residual keeps the gradient as it is
        assert apart.operator_backward_seconds == fused.operator_backward_seconds


@given(cases(), machines())
def test_products_are_whole_where_accelerators_do_not_reach_each_others_memory(case: Case, machine: Machine) -> None:
    workload = Workload(*changed(case, sequence_parallel=True)[:3])
    machine = msgspec.structs.replace(machine, direct_link=False)
    engine = having(machine, tensor_parallel_chunks=4, transformer_engine=True)
    for part, whole in product_times(workload, machine).items():
        after = product_times(workload, engine)[part]
        assert after.forward_seconds == whole.forward_seconds
        assert after.backward_seconds == pytest.approx(whole.backward_seconds, rel=1e-9)


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
    times = product_times(workload, machine)
    head = times["head"].sizes
    assert head is not None
    assert head[1] * case.layout.tensor_parallel == case.architecture.padded_vocabulary
    for time in times.values():
        if time.sizes is not None:
            M, N, K = time.sizes
            tensors = [torch.empty(size, dtype=dtype, device="meta") for size in ((M, K), (K, N), (M, N))]
            assert time.least_bytes == time.products * sum(tensor.nbytes for tensor in tensors)
            assert time.flop == time.products * 2 * M * N * K


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


def test_fused_attention_of_a_rank_in_flop_and_bytes() -> None:
    """3 samples of 2048 positions over 2 context- and 4 tensor-parallel ranks; 112 heads of 128, in 16 bits."""
    layout = Layout(micro_batch=3, tensor_parallel=4, context_parallel=2, fused_attention=True)
    machine = msgspec.structs.replace(at_peak(A100), fused_attention_efficiency=0.25)
    tokens, width = 3 * 1024, 28 * 128
    for mask, share in ((Mask.CAUSAL, 0.5), (Mask.PREFIX, 1.0)):
        workload = Workload(msgspec.structs.replace(BLOOM.architecture, mask=mask), BLOOM.recipe, layout)
        work = attention_work(workload)
        assert work.flop == share * 2 * 2 * tokens * 2048 * width
        # queries and output of the rank's positions, keys and values of all
        assert work.least_bytes == 2 * (2 * tokens * width + 2 * 3 * 2048 * width)
        # backward the scores again, and two products for each of the two forward ones
        seconds = work.flop / (0.25 * 312e12)
        assert fused_attention_seconds(workload, machine) == pytest.approx((seconds, 2.5 * seconds), rel=ROUNDING)


@pytest.mark.parametrize(("exponential_flop", "share"), [(0.0, 1.0), (256.0, 0.75), (512.0, 2 / 3)])
def test_heads_of_64_reach_the_published_share_of_heads_of_128(exponential_flop: float, share: float) -> None:
    """FlashAttention 3 on H100, forward and causal: 497 of 648 Tflop/s (arXiv 2407.08608, figure 5), 0.77."""
    shape = msgspec.structs.replace(BLOOM.architecture, head_dim=64)
    assert head_share(shape, exponential_flop) == pytest.approx(share, rel=1e-12)
    assert head_share(msgspec.structs.replace(shape, head_dim=128), exponential_flop) == 1
    mixed = msgspec.structs.replace(shape, head_dim=192, value_head_dim=128)
    assert head_share(mixed, exponential_flop) >= 1  # latent attention: 160 in the mean


def test_fused_attention_of_windows_on_some_layers_takes_the_mean_of_both() -> None:
    """gpt-oss on 4096 tokens: layers with the window of 128 move bytes longer than they compute."""
    run = reference_run("gpt-oss-120b")
    machine = msgspec.structs.replace(at_peak(A100), fused_attention_efficiency=0.5)

    def seconds(**attention: int | None) -> tuple[float, float]:
        shape = msgspec.structs.replace(run.architecture, **attention)
        return fused_attention_seconds(Workload(shape, run.recipe, Layout(fused_attention=True)), machine)

    whole, windowed = seconds(sliding_window=None, full_every=None), seconds(full_every=None)
    mean = tuple((one + other) / 2 for one, other in zip(whole, windowed, strict=True))
    assert seconds() == pytest.approx(mean, rel=ROUNDING)
    work = attention_work(Workload(run.architecture, run.recipe, Layout(fused_attention=True)))
    assert work.flop < 0.6 * 2 * 2 * 4096 * 4096 * 64 * 64 / 2
