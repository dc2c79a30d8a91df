from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from reference_runs.accelerator import accelerator
from reference_runs.catalog import reference_run
from reference_runs.layout import Layout, Offload, Recomputation, parse_layout
from reference_runs.run import Activation, Architecture, Precision, ProductFormat, Residual, Workload
from reference_runs.stack import stack
from suite.predict.analytic.activations import layer_activation_bytes
from suite.predict.analytic.experts import dispatched_tokens
from suite.predict.analytic.layer_products import layer_products
from suite.predict.analytic.layer_time import product_times
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.memory import WEIGHT_ELEMENT_BYTES
from suite.predict.analytic.parameters import layer_tensors
from suite.predict.analytic.product_formats import (
    cast_bytes,
    cast_kernels,
    factor_element_bytes,
    format_bytes,
    layer_casts,
    layer_weight_copies_bytes,
    products_in_format,
    weight_casts,
)
from suite.predict.analytic.stage_memory import peak_bytes, stage_memory
from suite.predict.analytic.step_time import StepTime
from suite.predict.analytic.usable_memory import usable_memory
from tests.support.machines import A100, Case, cases, machines
from tests.support.steps import changed, time_of
from tests.support.strategies import BLOOM, routed_architectures, varied_architectures

FORMATS = [each for each in ProductFormat if each is not ProductFormat.NONE]
SIZES = st.integers(1, 600)
HOPPER = msgspec.structs.replace(A100, peak_flop_per_second=1e15, product_peak_flop_per_second=2e15)


def stored(product_format: ProductFormat, rows: int, columns: int, *, is_weight: bool) -> list[torch.Tensor]:
    """The tensors that a matrix in this format is stored in, as PyTorch has their dtypes."""
    match product_format:
        case ProductFormat.FP8_DELAYED | ProductFormat.FP8_CURRENT:
            return [torch.empty(rows, columns, dtype=torch.float8_e4m3fn), torch.empty(())]
        case ProductFormat.FP8_BLOCKWISE:
            bands = {row // 128 for row in range(rows)} if is_weight else set(range(rows))
            blocks = {(band, column // 128) for band in bands for column in range(columns)}
            return [torch.empty(rows, columns, dtype=torch.float8_e4m3fn), torch.empty(len(blocks))]
        case ProductFormat.MXFP8:
            blocks = {(row, column // 32) for row in range(rows) for column in range(columns)}
            scales = torch.empty(len(blocks), dtype=torch.float8_e8m0fnu)
            return [torch.empty(rows, columns, dtype=torch.float8_e4m3fn), scales]
        case _:
            blocks = {(row, column // 16) for row in range(rows) for column in range(columns)}
            pairs = torch.empty(len({index // 2 for index in range(rows * columns)}), dtype=torch.float4_e2m1fn_x2)
            return [pairs, torch.empty(len(blocks), dtype=torch.float8_e4m3fn), torch.empty(())]


@pytest.mark.parametrize("product_format", FORMATS)
@given(rows=st.integers(1, 40), columns=SIZES, is_weight=st.booleans())
def test_a_matrix_has_the_bytes_of_the_tensors_that_store_it(
    product_format: ProductFormat, rows: int, columns: int, is_weight: bool
) -> None:
    tensors = stored(product_format, rows, columns, is_weight=is_weight)
    expected = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert format_bytes(product_format, rows=rows, columns=columns, is_weight=is_weight) == expected


@pytest.mark.parametrize("product_format", FORMATS)
@given(rows=SIZES, columns=SIZES)
def test_a_large_matrix_has_the_bytes_of_its_elements(product_format: ProductFormat, rows: int, columns: int) -> None:
    whole = format_bytes(product_format, rows=rows, columns=128 * columns)
    # one scale of the whole tensor, 4 bytes, and half a byte where elements are odd in number
    assert whole - factor_element_bytes(product_format) * rows * 128 * columns in (0, 4)


def test_casting_an_element_reads_and_writes_so_many_bytes() -> None:
    each = {
        ProductFormat.FP8_DELAYED: 2 + 1 + 1,  # the scale is known: read once
        ProductFormat.FP8_CURRENT: 2 + 2 + 1 + 1,
        ProductFormat.FP8_BLOCKWISE: 2 + 2 * (1 + 4 / 128),
        ProductFormat.MXFP8: 2 + 2 * (1 + 1 / 32),
        ProductFormat.NVFP4: 2 + 2 + 2 * (0.5 + 1 / 16),
    }
    assert set(each) == set(FORMATS)
    size = 4096
    for product_format, moved in each.items():
        found = cast_bytes(product_format, rows=size, columns=size, element=2)
        assert found == pytest.approx(moved * size**2, abs=8), product_format  # two scales of whole tensors
    with pytest.raises(ValueError, match="none is no format"):
        format_bytes(ProductFormat.NONE, rows=1, columns=1)


def in_format(workload: Workload, product_format: ProductFormat) -> Workload:
    recipe = msgspec.structs.replace(workload.recipe, product_format=product_format)
    return workload._replace(recipe=recipe)


def with_format(case: Case, product_format: ProductFormat) -> Case:
    return case._replace(recipe=msgspec.structs.replace(case.recipe, product_format=product_format))


@given(cases(), machines())
def test_without_a_format_nothing_changes_to_the_bit(case: Case, machine: Machine) -> None:
    assert case.recipe.product_format is ProductFormat.NONE
    able = msgspec.structs.replace(machine, product_peak_flop_per_second=2 * machine.peak_flop_per_second)
    time = time_of(case, able)
    assert time == time_of(case, machine)
    assert time.cast_seconds == 0
    workload = Workload(*case[:3])
    assert layer_casts(workload) == (0, 0, 0, 0, 0)
    assert stage_memory(workload, stage=0, micro_batches=case.micro_batches).weight_copies == 0


def test_products_in_the_format_are_shown_beside_its_peak_and_others_beside_the_recipes() -> None:
    plain = Workload(BLOOM.architecture, BLOOM.recipe, Layout())
    for product_format in FORMATS:
        for workload, peak in ((plain, 1e15), (in_format(plain, product_format), 2e15)):
            peaks = {part: time.peak_flop_per_second for part, time in product_times(workload, HOPPER).items()}
            casts = products_in_format(workload)
            assert {peaks[part] for part in peaks if part in casts or peak == 1e15} == {peak}
            assert {peaks[part] for part in peaks if part not in casts} == {1e15}


@pytest.mark.parametrize("product_format", FORMATS)
@given(case=cases(), machine=machines())
def test_casts_take_the_bytes_that_a_walk_over_the_products_counts(
    product_format: ProductFormat, case: Case, machine: Machine
) -> None:
    case = changed(with_format(case, product_format), pipeline_stages=1, virtual_stages=1)
    machine = msgspec.structs.replace(machine, product_peak_flop_per_second=machine.peak_flop_per_second)
    architecture, recipe, layout, micro_batches = case
    element = WEIGHT_ELEMENT_BYTES[recipe.precision]
    forward = backward = weights = 0
    for part, (count, M, N, K) in layer_products(Workload(architecture, recipe, layout)).items():
        if part.startswith("attention"):
            continue
        forward += count * cast_bytes(product_format, rows=M, columns=K, element=element)
        backward += count * cast_bytes(product_format, rows=M, columns=N, element=element)
        weights += count * cast_bytes(product_format, rows=N, columns=K, element=element, is_weight=True)
    passes = 1 if layout.recomputation in (Recomputation.NONE, Recomputation.SELECTIVE) else 2
    repeated = weight_casts(layout, micro_batches=micro_batches)
    seconds = micro_batches * (passes * forward + backward) + repeated * weights
    if layout.recomputation is Recomputation.FROM_INPUT:
        return  # repeats layers by a number of its own
    seconds *= architecture.layers / machine.achievable_memory_bytes_per_second
    assert time_of(case, machine).cast_seconds == pytest.approx(seconds, rel=1e-12)


def large(product_format: ProductFormat, tokens: int, width: int, precision: Precision = Precision.BF16) -> StepTime:
    run = reference_run("llama3.1-405b")
    shape = {"hidden": width, "heads": width // 128, "kv_heads": width // 128, "ffn_hidden": 4 * width, "layers": 2}
    architecture = msgspec.structs.replace(run.architecture, **shape, sequence=tokens)
    recipe = msgspec.structs.replace(run.recipe, global_batch=1, product_format=product_format, precision=precision)
    return time_of(Case(architecture, recipe, Layout(fused_attention=True), 1), HOPPER)


@pytest.mark.parametrize("product_format", FORMATS)
@given(tokens=st.integers(32, 256), width=st.integers(32, 160))
def test_large_products_never_take_longer_than_in_16_bit(
    product_format: ProductFormat, tokens: int, width: int
) -> None:
    narrow = large(product_format, 128 * tokens, 128 * width)
    assert narrow.total_seconds < large(ProductFormat.NONE, 128 * tokens, 128 * width).total_seconds


@pytest.mark.parametrize("product_format", FORMATS)
@given(tokens=st.integers(1, 64), width=st.integers(1, 3))
def test_small_products_take_longer_by_their_casts(product_format: ProductFormat, tokens: int, width: int) -> None:
    narrow = large(product_format, tokens, 128 * width)
    wide = large(ProductFormat.NONE, tokens, 128 * width)
    assert wide.total_seconds < narrow.total_seconds <= wide.total_seconds + narrow.cast_seconds


@given(varied_architectures(tensor_parallel=2) | routed_architectures(tensor_parallel=2), st.sampled_from(FORMATS))
def test_all_products_but_those_of_attention_with_itself_and_of_routers_are_in_the_format(
    architecture: Architecture, product_format: ProductFormat
) -> None:
    workload = Workload(architecture, BLOOM.recipe, Layout(tensor_parallel=2))
    parts = products_in_format(in_format(workload, product_format))
    wider = {"attention scores", "attention context"}
    wider |= {"router"} if architecture.experts else set()
    wider |= {"shared gate"} if architecture.shared_gate else set()
    assert set(layer_products(workload)) - set(parts) == wider


@given(varied_architectures(), st.integers(1, 3), st.booleans())
def test_copies_of_weights_are_two_bytes_an_element_of_every_matrix_of_a_layer(
    architecture: Architecture, b: int, sharded: bool
) -> None:
    layout = Layout(micro_batch=b, data_parallel=2, zero_stage=1 if sharded else 0)
    workload = in_format(Workload(architecture, BLOOM.recipe, layout), ProductFormat.FP8_CURRENT)
    elements = sum(tensor.elements for tensor in layer_tensors(workload.architecture) if tensor.matrix)
    scales = 2 * 4 * len(products_in_format(workload))
    assert layer_weight_copies_bytes(workload) == 2 * elements + scales


def test_no_copies_of_weights_stay_where_these_are_gathered_or_on_the_host() -> None:
    workload = in_format(BLOOM.workload, ProductFormat.MXFP8)
    for change in ({"zero_stage": 3}, {"offload": Offload.STATE, "zero_stage": 2}):
        layout = msgspec.structs.replace(workload.layout, **change)
        assert layer_weight_copies_bytes(workload._replace(layout=layout)) == 0
    assert layer_weight_copies_bytes(workload) > 0


def test_weights_are_cast_once_a_step_or_as_often_as_they_are_gathered() -> None:
    assert weight_casts(Layout(zero_stage=2), micro_batches=5) == 1
    assert weight_casts(Layout(zero_stage=3, reshard_after_forward=False), micro_batches=5) == 5
    assert weight_casts(Layout(zero_stage=3), micro_batches=5) == 10


@given(varied_architectures(), st.integers(1, 3), st.booleans())
def test_fp8_keeps_a_byte_less_of_each_element_that_its_products_alone_read(
    architecture: Architecture, b: int, fused: bool
) -> None:
    workload = Workload(architecture, BLOOM.recipe, Layout(micro_batch=b, fused_attention=fused))
    a = workload.architecture
    wide = layer_activation_bytes(workload)
    narrow = layer_activation_bytes(in_format(workload, ProductFormat.FP8_CURRENT))
    tokens = b * a.sequence
    inputs = {
        "attention input": tokens * a.hidden,
        "attention context": tokens * a.context_width,
        "feed-forward input": tokens * a.hidden,
        "contraction input": tokens * a.ffn_hidden,
    }
    for kind, size in wide.items():
        if kind not in inputs:
            assert narrow[kind] == size
            continue
        stays = (kind == "attention context" and fused) or (
            kind == "contraction input" and a.activation is Activation.RELU
        )
        assert size == 2 * inputs[kind]
        assert narrow[kind] == inputs[kind] + 4 + (size if stays else 0)


@given(routed_architectures(), st.integers(1, 3))
def test_fp8_keeps_the_experts_inputs_in_bytes_and_what_the_router_reads_as_it_is(
    architecture: Architecture, b: int
) -> None:
    workload = Workload(architecture, BLOOM.recipe, Layout(micro_batch=b))
    a, tokens = workload.architecture, b * workload.architecture.sequence
    wide = layer_activation_bytes(workload)
    narrow = layer_activation_bytes(in_format(workload, ProductFormat.FP8_CURRENT))
    assert narrow["expert input"] == dispatched_tokens(a, tokens=tokens) * a.hidden + 4
    if not a.shared_norm:
        besides = tokens * a.hidden + 4 if a.shared_experts else 0
        assert narrow["feed-forward input"] == wide["feed-forward input"] + besides
    if a.shared_experts:
        kind = "shared expert contraction input"
        besides = wide[kind] if a.activation is Activation.RELU else 0
        assert narrow[kind] == tokens * a.shared_experts * (a.expert_width or 0) + 4 + besides
    if a.key_value_rank is not None:
        ranks = [rank for rank in (a.query_rank, a.key_value_rank) if rank is not None]
        assert narrow["normed compressed states"] == tokens * sum(ranks) + 4 * len(ranks)
    assert narrow["gates"] == wide["gates"]
    assert narrow["expert output"] == wide["expert output"]


@given(cases(), st.sampled_from(FORMATS))
def test_the_parts_of_the_fullest_instant_add_up_with_the_copies(case: Case, product_format: ProductFormat) -> None:
    workload = Workload(*with_format(case, product_format)[:3])
    for stage in range(workload.layout.pipeline_stages):
        memory = stage_memory(workload, stage=stage, micro_batches=case.micro_batches)
        plain = stage_memory(Workload(*case[:3]), stage=stage, micro_batches=case.micro_batches)
        assert sum(memory.fullest_instant()[1].values()) == pytest.approx(memory.peak, rel=1e-12)
        assert memory.at_update - memory.waiting == pytest.approx(
            plain.at_update - plain.waiting + memory.weight_copies, rel=1e-12
        )


def test_both_branches_of_a_block_with_one_norm_share_a_cast() -> None:
    block = msgspec.structs.replace(BLOOM.architecture, residual=Residual.PARALLEL)
    two, one = (
        layer_casts(
            in_format(
                Workload(msgspec.structs.replace(block, shared_norm=shared), BLOOM.recipe, Layout()),
                ProductFormat.FP8_CURRENT,
            )
        )
        for shared in (False, True)
    )
    assert two.input_matrices - one.input_matrices == 1
    rows, columns = block.sequence, block.hidden
    expected = cast_bytes(ProductFormat.FP8_CURRENT, rows=rows, columns=columns, element=2)
    assert two.inputs - one.inputs == expected
    assert two[1:3] == one[1:3]


@pytest.mark.parametrize("product_format", FORMATS)
@given(case=cases())
def test_norms_cast_what_they_put_out_where_layers_are_transformer_engines(
    product_format: ProductFormat, case: Case
) -> None:
    workload = Workload(*with_format(case, product_format)[:3])
    plain, fused = layer_casts(workload), layer_casts(workload, transformer_engine=True)
    assert (fused.weights, fused.input_matrices, fused.gradient_matrices) == (plain.weights, *plain[3:])
    if product_format is not ProductFormat.FP8_DELAYED:
        assert fused == plain
        return
    element, layout = WEIGHT_ELEMENT_BYTES[workload.recipe.precision], workload.layout
    shards = layout.tensor_parallel if layout.sequence_parallel else 1
    products = layer_products(workload)
    inputs, gradients = plain.inputs, plain.gradients
    for part in ("query, key, value", "expansion"):
        _, M, _, K = products[part]
        inputs -= cast_bytes(product_format, rows=M, columns=K, element=element)  # no kernel of its own
        gradients += 2 * (M * K + 4)  # a transposition reads and writes a byte an element, and a scale
    for part in ("projection", "contraction"):
        _, M, N, _ = products[part]
        if shards > 1:
            gradients -= cast_bytes(product_format, rows=M, columns=N, element=element)
            gradients += (element * M * N + M * N + 4) // shards + 2 * (M * N + 4)
    assert (fused.inputs, fused.gradients) == (inputs, gradients)


@given(routed_architectures(), st.sampled_from([each for each in FORMATS if each is not ProductFormat.FP8_DELAYED]))
def test_transformer_engines_experts_pad_what_they_read_and_write(
    architecture: Architecture, product_format: ProductFormat
) -> None:
    wide = Workload(architecture, BLOOM.recipe, Layout(micro_batch=2))
    workload = in_format(wide, product_format)
    plain, padded = layer_casts(workload), layer_casts(workload, transformer_engine=True)
    experts, tokens, _, hidden = layer_products(workload)["expansion"]
    copied = 2 * 2 * experts * tokens * hidden  # 16 bit, read and written
    assert padded.inputs - plain.inputs == padded.gradients - plain.gradients == 2 * copied
    assert (padded.weights, *padded[3:]) == (plain.weights, *plain[3:])
    assert layer_casts(wide, transformer_engine=True) == (0, 0, 0, 0, 0)


@given(routed_architectures(), st.sampled_from([1, 2]))
def test_every_tensor_parallel_rank_keeps_half_of_what_it_keeps_in_16_bit(architecture: Architecture, t: int) -> None:
    layout = Layout(micro_batch=2, tensor_parallel=t)
    workload = Workload(architecture, BLOOM.recipe, layout)
    assume(workload.architecture.expert_width % t == workload.architecture.context_width % t == 0)
    wide = layer_activation_bytes(workload)
    narrow = layer_activation_bytes(in_format(workload, ProductFormat.FP8_CURRENT))
    sharded = [kind for kind in ("expert contraction input", "attention context") if wide.get(kind)]
    assert sharded
    for kind in sharded:
        assert narrow[kind] in (wide[kind] // 2 + 4, wide[kind] + wide[kind] // 2 + 4)


def test_a_cast_reads_first_where_its_scale_is_of_the_whole_tensor_and_keeps_whole_bytes() -> None:
    first = (ProductFormat.FP8_CURRENT, ProductFormat.NVFP4)
    assert [cast_kernels(each) for each in ProductFormat] == [2 if each in first else 1 for each in ProductFormat]
    workload = Workload(BLOOM.architecture, BLOOM.recipe, Layout(tensor_parallel=4, sequence_parallel=True))
    for product_format in FORMATS:
        kept = layer_activation_bytes(in_format(workload, product_format))
        assert {type(size) for size in kept.values()} == {int}


def test_405b_in_fp8_with_primary_weights_in_8_bits_is_within_an_h100() -> None:
    run = reference_run("llama3.1-405b")
    words = "dp64,tp8,pp8,cp2,interleave8,sp,zero1,reduce-scatter,recompute-none,fused,micro1"
    recipe = msgspec.structs.replace(run.recipe, product_format=ProductFormat.FP8_CURRENT)
    workload = Workload(run.architecture, recipe, parse_layout(words, base=run.recorded_layout))
    wide, narrow = (stack(name).switches.keeping for name in ("megatron-core", "megatron-core-nemo-2"))
    copies = [layer_weight_copies_bytes(workload, primary=each.primary_in_format) for each in (wide, narrow)]
    a = run.architecture
    matrices = a.hidden * (2 * a.query_width + 2 * a.kv_heads * a.head_dim + 3 * a.ffn_hidden) // 8
    assert copies[0] - copies[1] == 2 * matrices
    peaks = [peak_bytes(workload, micro_batches=32, keeping=each) for each in (wide, narrow)]
    usable = usable_memory(accelerator("h100-sxm").board).usable
    assert peaks[1] < 0.75 * usable < peaks[0] < usable
