from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy, embedding, gelu, layer_norm, linear, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint

from reference_runs.layout import Layout, Recomputation, Schedule
from reference_runs.run import (
    Activation,
    Architecture,
    Norm,
    Position,
    Precision,
    QueryKeyNorm,
    Recipe,
    Residual,
    Workload,
)
from suite.predict.analytic.activations import (
    activation_bytes,
    activation_conventions,
    approximate_activation_bytes,
    best_checkpoint_layers,
    checkpoint_partitions,
    embedding_activation_bytes,
    forty_s_h_l_bytes,
    head_activation_bytes,
    kept_units,
    layer_activation_bytes,
    micro_batch_bytes,
    recomputed_bytes,
    score_bytes,
)
from tests.support.strategies import BLOOM, described_architectures, recipes, varied_architectures

SIXTEEN_BIT = msgspec.structs.replace(BLOOM.recipe, precision=Precision.BF16)


@st.composite
def gpt_shapes(draw: st.DrawFn, *, tensor_parallel: int = 1) -> Architecture:
    """Multi-head attention, GELU, f = 4 h, sequential: the block that Korthikanti et al. count."""
    heads = tensor_parallel * draw(st.integers(1, 4))
    hidden = heads * draw(st.integers(1, 8))
    return msgspec.structs.replace(
        BLOOM.architecture,
        layers=draw(st.integers(1, 9)),
        hidden=hidden,
        heads=heads,
        head_dim=hidden // heads,
        kv_heads=heads,
        ffn_hidden=4 * hidden,
        sequence=tensor_parallel * draw(st.integers(1, 40)),
    )


@given(gpt_shapes(), st.integers(1, 8))
def test_one_layer_keeps_what_equation_1_of_korthikanti_says(architecture: Architecture, b: int) -> None:
    s, h, a = architecture.sequence, architecture.hidden, architecture.heads
    kinds = layer_activation_bytes(Workload(architecture, SIXTEEN_BIT, Layout(micro_batch=b)))
    assert sum(kinds.values()) == s * b * h * (34 + 5 * Fraction(a * s, h))


@given(gpt_shapes(tensor_parallel=4), st.integers(1, 8), st.sampled_from([1, 2, 4]), st.booleans())
def test_tensor_and_sequence_parallelism_keep_what_equations_2_and_4_of_korthikanti_say(
    architecture: Architecture, b: int, t: int, sequence_parallel: bool
) -> None:
    s, h, a = architecture.sequence, architecture.hidden, architecture.heads
    layout = Layout(micro_batch=b, tensor_parallel=t, sequence_parallel=sequence_parallel)
    kinds = layer_activation_bytes(Workload(architecture, SIXTEEN_BIT, layout))
    linear_part = Fraction(34, t) if sequence_parallel else 10 + Fraction(24, t)
    assert sum(kinds.values()) == s * b * h * (linear_part + 5 * Fraction(a * s, h * t))
    head = head_activation_bytes(Workload(architecture, SIXTEEN_BIT, layout))
    if sequence_parallel:
        # section 4.3: 4 s b h / t (1 + v / h), of which the logits are 4 s b v / t
        assert sum(head.values()) == 4 * Fraction(s * b * h, t) * (1 + Fraction(architecture.padded_vocabulary, h))


@given(gpt_shapes(), st.integers(1, 8))
def test_full_recomputation_keeps_2_s_b_h_l(architecture: Architecture, b: int) -> None:
    layout = Layout(micro_batch=b, recomputation=Recomputation.FULL)
    unit = micro_batch_bytes(Workload(architecture, SIXTEEN_BIT, layout))
    kept = unit.unit * kept_units(layout, layers=architecture.layers)
    assert kept == 2 * architecture.sequence * b * architecture.hidden * architecture.layers


DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


def saved_bytes(compute: Callable[[], object], parameters: list[Tensor]) -> int:
    """Bytes of the distinct storages that autograd keeps, those of the parameters left out."""
    owned = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        # keeping the tensor keeps its address from being used again
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = compute()
    total = sum(tensor.untyped_storage().nbytes() for address, tensor in kept.items() if address not in owned)
    del result
    return total


class EagerBlock:
    """A Megatron-like block, unfused, softmax in the dtype of the scores as its fused kernel computes it.

    Dropout is torch.native_dropout, which keeps a mask of one byte an element, as on CUDA.
    """

    def __init__(self, architecture: Architecture, recipe: Recipe, layout: Layout) -> None:
        self.architecture, self.recipe, self.layout = architecture, recipe, layout
        self.dtype = DTYPES[recipe.precision]
        self.parameters: list[Tensor] = []
        h, f = architecture.hidden, architecture.ffn_hidden
        narrow = architecture.kv_heads * architecture.head_dim
        wide = 2 * f if architecture.activation.gated else f
        s, d = architecture.sequence, architecture.head_dim
        queries = architecture.heads * d
        self.query, self.key, self.value = self.weight(queries, h), self.weight(narrow, h), self.weight(narrow, h)
        self.projection, self.expansion = self.weight(h, queries), self.weight(wide, h)
        self.contraction = self.weight(h, f)
        self.gains = self.weight(h), self.weight(h)
        self.head_gains = self.weight(d), self.weight(d)
        causal = torch.full((s, s), float("-inf"), dtype=self.dtype).triu(1)
        alibi = -torch.arange(s, dtype=self.dtype) if architecture.position is Position.ALIBI else torch.zeros(s)
        self.bias = causal + alibi.to(self.dtype)
        self.rotation = [torch.rand(s, d, dtype=self.dtype) for _ in range(2)]

    def weight(self, *shape: int) -> Tensor:
        self.parameters.append(torch.randn(*shape, dtype=self.dtype, requires_grad=True))
        return self.parameters[-1]

    def dropped(self, x: Tensor, probability: float) -> Tensor:
        return torch.native_dropout(x, probability, True)[0] if probability > 0 else x

    def rotated(self, x: Tensor) -> Tensor:
        if self.architecture.position is not Position.ROTARY:
            return x
        cosine, sine = self.rotation
        return x * cosine + x.roll(1, -1) * sine

    def normed_head(self, x: Tensor, gain: Tensor) -> Tensor:
        if self.architecture.query_key_norm is QueryKeyNorm.NONE:
            return x
        return layer_norm(x, (self.architecture.head_dim,), gain)

    def attention(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        k, d = self.architecture.kv_heads, self.architecture.head_dim
        query, key = linear(x, self.query).view(b, s, -1, d), linear(x, self.key).view(b, s, k, d)
        heads = self.rotated(self.normed_head(query, self.head_gains[0]).transpose(1, 2))
        keys = self.rotated(self.normed_head(key, self.head_gains[1]).transpose(1, 2))
        values = linear(x, self.value).view(b, s, k, d).transpose(1, 2)
        if self.layout.fused_attention:
            context = scaled_dot_product_attention(heads, keys, values, is_causal=True)
            return linear(context.transpose(1, 2).reshape(b, s, -1), self.projection)
        grouped = heads.reshape(b * k, -1, d)
        scores = torch.bmm(grouped, keys.reshape(b * k, s, d).transpose(1, 2)) * d**-0.5
        scores = (scores.view(b, -1, s, s) + self.bias).view(b * k, -1, s)
        weights = self.dropped(torch.softmax(scores, -1), self.recipe.attention_dropout)
        context = torch.bmm(weights, values.reshape(b * k, s, d)).view(b, -1, s, d)
        return linear(context.transpose(1, 2).reshape(b, s, -1), self.projection)

    def feed_forward(self, x: Tensor) -> Tensor:
        wide, activation = linear(x, self.expansion), self.architecture.activation
        if activation.gated:
            gate, up = wide.chunk(2, -1)
            return linear((silu(gate) if activation is Activation.SWIGLU else gelu(gate)) * up, self.contraction)
        if activation is Activation.RELU_SQUARED:
            return linear(torch.relu(wide).square(), self.contraction)
        return linear(torch.relu(wide) if activation is Activation.RELU else gelu(wide), self.contraction)

    def norm(self, x: Tensor, gain: Tensor) -> Tensor:
        return layer_norm(x, (self.architecture.hidden,), gain)

    def __call__(self, x: Tensor) -> Tensor:
        dropout = self.recipe.hidden_dropout
        if self.architecture.norm is Norm.DEEP_NORM:
            x = self.norm(1.5 * x + self.dropped(self.attention(x), dropout), self.gains[0])
            return self.norm(1.5 * x + self.dropped(self.feed_forward(x), dropout), self.gains[1])
        if self.architecture.norm is Norm.OUTPUT_RMS_NORM:
            middle = x + self.dropped(self.norm(self.attention(x), self.gains[0]), dropout)
            return middle + self.dropped(self.norm(self.feed_forward(middle), self.gains[1]), dropout)
        normed = self.norm(x, self.gains[0])
        middle = x + self.dropped(self.attention(normed), dropout)
        if self.architecture.shared_norm:
            return middle + self.dropped(self.feed_forward(normed), dropout)
        source = x if self.architecture.residual is Residual.PARALLEL else middle
        return middle + self.dropped(self.feed_forward(self.norm(source, self.gains[1])), dropout)

    def input(self) -> Tensor:
        shape = self.layout.micro_batch, self.architecture.sequence, self.architecture.hidden
        return torch.randn(*shape, dtype=self.dtype, requires_grad=True)

    def named_deviations(self) -> dict[str, int]:
        """What this block keeps beyond the formula."""
        element, tokens = self.dtype.itemsize, self.layout.micro_batch * self.architecture.sequence
        rotary = self.architecture.position is Position.ROTARY
        normed = self.architecture.query_key_norm is not QueryKeyNorm.NONE
        heads = self.architecture.heads + self.architecture.kv_heads
        return {
            # mean and reciprocal deviation of two norms; the CPU keeps them in the input's dtype (CUDA in fp32)
            "norm statistics": (1 if self.architecture.shared_norm else 2) * 2 * element * tokens,
            "statistics of heads' norms": normed * 2 * element * tokens * heads,
            "rotary tables, shared by all layers": 2 * element * self.rotation[0].numel() * rotary,
        }


def executable(architecture: Architecture) -> Architecture:
    """The shape with a LayerNorm: the eager RMSNorm on the CPU widens to fp32 and keeps that too."""
    norm = Norm.PRE_LAYER_NORM if architecture.norm is Norm.PRE_RMS_NORM else architecture.norm
    residual = architecture.residual if norm is Norm.PRE_LAYER_NORM else Residual.SEQUENTIAL
    by_head = QueryKeyNorm.NONE if architecture.query_key_norm is QueryKeyNorm.NONE else QueryKeyNorm.HEAD
    return msgspec.structs.replace(architecture, norm=norm, residual=residual, query_key_norm=by_head)


@given(varied_architectures(), recipes(), st.integers(1, 3))
def test_an_eager_block_keeps_the_layers_bytes_and_named_deviations(
    architecture: Architecture, recipe: Recipe, b: int
) -> None:
    architecture, layout = executable(architecture), Layout(micro_batch=b)
    block = EagerBlock(architecture, recipe, layout)
    x = block.input()
    predicted = sum(layer_activation_bytes(Workload(architecture, recipe, layout)).values())
    assert saved_bytes(lambda: block(x), block.parameters) == predicted + sum(block.named_deviations().values())


@given(varied_architectures(), recipes(), st.integers(1, 3))
def test_an_eager_block_with_fused_attention_keeps_the_log_sum_exp_in_place_of_the_scores(
    architecture: Architecture, recipe: Recipe, b: int
) -> None:
    # torch's fused kernel for the CPU has no dropout; grouped keys are left to the unfused block
    architecture = msgspec.structs.replace(executable(architecture), kv_heads=architecture.heads)
    recipe = msgspec.structs.replace(recipe, attention_dropout=0.0)
    layout = Layout(micro_batch=b, fused_attention=True)
    block = EagerBlock(architecture, recipe, layout)
    x = block.input()
    kinds = layer_activation_bytes(Workload(architecture, recipe, layout))
    assert kinds["log-sum-exp"] == 4 * b * architecture.heads * architecture.sequence
    assert saved_bytes(lambda: block(x), block.parameters) == sum(kinds.values()) + sum(
        block.named_deviations().values()
    )


@given(varied_architectures(), recipes(), st.integers(1, 3), st.integers(1, 4))
def test_checkpointed_groups_of_eager_blocks_keep_their_inputs(
    architecture: Architecture, recipe: Recipe, b: int, group: int
) -> None:
    architecture = executable(architecture)
    layout = Layout(micro_batch=b, recomputation=Recomputation.FULL, checkpoint_layers=group)
    blocks = [EagerBlock(architecture, recipe, layout) for _ in range(architecture.layers)]

    def run(x: Tensor) -> Tensor:
        def layers(x: Tensor, first: int) -> Tensor:
            for block in blocks[first : first + group]:
                x = block(x)
            return x

        for first in range(0, len(blocks), group):
            x = checkpoint(layers, x, first, use_reentrant=False)
        return x

    x = blocks[0].input()
    unit = micro_batch_bytes(Workload(architecture, recipe, layout))
    kept = unit.unit * kept_units(layout, layers=architecture.layers)
    assert saved_bytes(lambda: run(x), []) == kept


@given(described_architectures(), recipes(), st.integers(1, 3))
def test_eager_embedding_and_head_keep_the_outer_bytes_and_named_deviations(
    architecture: Architecture, recipe: Recipe, b: int
) -> None:
    layout, dtype, h = Layout(micro_batch=b), DTYPES[recipe.precision], architecture.hidden
    table = torch.randn(architecture.padded_vocabulary, h, dtype=dtype, requires_grad=True)
    gain = torch.randn(h, dtype=dtype, requires_grad=True)
    tokens = torch.zeros(b, architecture.sequence, dtype=torch.long)
    targets = torch.zeros(b * architecture.sequence, dtype=torch.long)

    def before() -> Tensor:
        x = embedding(tokens, table)
        x = layer_norm(x, (h,), gain) if architecture.embedding_norm else x
        return torch.native_dropout(x, 0.1, True)[0] if recipe.embedding_dropout > 0 else x

    x = torch.randn(b, architecture.sequence, h, dtype=dtype, requires_grad=True)

    def behind() -> Tensor:
        return cross_entropy(linear(layer_norm(x, (h,), gain), table).float().flatten(0, 1), targets)

    statistics, indices, scalar = 2 * dtype.itemsize * tokens.numel(), 8 * tokens.numel(), 4
    embedded = sum(embedding_activation_bytes(Workload(architecture, recipe, layout)).values())
    headed = sum(head_activation_bytes(Workload(architecture, recipe, layout)).values())
    assert saved_bytes(before, [table, gain]) == embedded + indices + statistics * architecture.embedding_norm
    # the scalar is the sum of the cross-entropy's weights
    assert saved_bytes(behind, [table, gain]) == headed + indices + statistics + scalar


def llama_2_70b() -> tuple[Architecture, Recipe]:
    """The shape of arXiv 2307.09288, table 1 and appendix A.2.1, trained without dropout."""
    architecture = msgspec.structs.replace(
        BLOOM.architecture,
        layers=80,
        hidden=8192,
        heads=64,
        kv_heads=8,
        head_dim=128,
        ffn_hidden=28672,
        sequence=4096,
        activation=Activation.SWIGLU,
        norm=Norm.PRE_RMS_NORM,
    )
    recipe = msgspec.structs.replace(SIXTEEN_BIT, hidden_dropout=0.0, attention_dropout=0.0)
    return architecture, recipe


def test_the_estimate_for_llama_2_70b_is_19_percent_below_the_exact_bytes() -> None:
    estimate = approximate_activation_bytes(sequence=4096, micro_batch=8, hidden=8192, layers=80)
    assert estimate == 730_144_440_320
    conventions = activation_conventions(Workload(*llama_2_70b(), Layout(micro_batch=8)))
    assert conventions["s b h L (10 + 24 / t)"] == estimate
    assert conventions["exact without scores"] / estimate == 40.5 / 34


@given(gpt_shapes(tensor_parallel=4), st.integers(1, 8), st.sampled_from([1, 2, 4]))
def test_the_estimate_is_exact_for_the_block_that_it_was_made_for(architecture: Architecture, b: int, t: int) -> None:
    conventions = activation_conventions(Workload(architecture, SIXTEEN_BIT, Layout(micro_batch=b, tensor_parallel=t)))
    assert conventions["s b h L (10 + 24 / t)"] == conventions["exact without scores"]
    if t == 1:
        assert conventions["40 s h L"] * 34 == conventions["exact without scores"] * 40


def test_forty_s_h_l_of_13b() -> None:
    assert forty_s_h_l_bytes(sequence=4096, hidden=5120, layers=40) == 33_554_432_000


def layouts(t: int) -> st.SearchStrategy[Layout]:
    return st.builds(
        Layout,
        micro_batch=st.integers(1, 4),
        tensor_parallel=st.just(t),
        sequence_parallel=st.booleans(),
        fused_attention=st.booleans(),
        checkpoint_layers=st.integers(1, 5),
        virtual_stages=st.integers(1, 3),
    )


@given(described_architectures(tensor_parallel=2), recipes(), layouts(2), st.integers(0, 12), st.integers(1, 5))
def test_recomputing_more_never_needs_more(
    architecture: Architecture, recipe: Recipe, layout: Layout, each: int, in_flight: int
) -> None:
    layers = each * layout.virtual_stages

    def needed(recomputation: Recomputation, group: int) -> int:
        chosen = msgspec.structs.replace(layout, recomputation=recomputation, checkpoint_layers=group)
        unit = micro_batch_bytes(Workload(architecture, recipe, chosen))
        kept = in_flight * unit.unit * kept_units(chosen, layers=layers)
        return kept + recomputed_bytes(unit, chosen, layers=layers)

    none, selective, full, from_input = (needed(recomputation, 1) for recomputation in Recomputation)
    assert none >= selective >= full >= from_input >= 0
    assert none >= needed(Recomputation.FULL, layout.checkpoint_layers)


@given(described_architectures(tensor_parallel=4), recipes(), layouts(1))
def test_sequence_parallelism_on_one_rank_changes_nothing(
    architecture: Architecture, recipe: Recipe, layout: Layout
) -> None:
    one, plain = (msgspec.structs.replace(layout, sequence_parallel=choice) for choice in (True, False))
    assert micro_batch_bytes(Workload(architecture, recipe, one)) == micro_batch_bytes(
        Workload(architecture, recipe, plain)
    )


@given(
    described_architectures(tensor_parallel=4),
    recipes(),
    layouts(2),
    st.sampled_from(["tensor_parallel", "context_parallel", "sequence_parallel", "partitioned_checkpoints"]),
    st.sampled_from(Recomputation),
)
def test_no_kind_grows_with_more_parallelism(
    architecture: Architecture, recipe: Recipe, layout: Layout, what: str, recomputation: Recomputation
) -> None:
    less = msgspec.structs.replace(layout, sequence_parallel=False, recomputation=recomputation)
    more = msgspec.structs.replace(less, **{what: 4 if what == "tensor_parallel" else 2})
    for bytes_by_kind in (layer_activation_bytes, embedding_activation_bytes, head_activation_bytes):
        before, after = (bytes_by_kind(Workload(architecture, recipe, chosen)) for chosen in (less, more))
        assert before.keys() == after.keys()
        assert all(0 <= after[kind] <= before[kind] for kind in before)
    assert activation_bytes(Workload(architecture, recipe, more), stage=0) <= activation_bytes(
        Workload(architecture, recipe, less), stage=0
    )


@given(described_architectures(), recipes(), layouts(1), st.integers(1, 50))
def test_every_kind_is_proportional_to_the_micro_batch(
    architecture: Architecture, recipe: Recipe, layout: Layout, samples: int
) -> None:
    one, many = (msgspec.structs.replace(layout, micro_batch=b) for b in (1, samples))
    for bytes_by_kind in (layer_activation_bytes, embedding_activation_bytes, head_activation_bytes):
        single = bytes_by_kind(Workload(architecture, recipe, one))
        assert bytes_by_kind(Workload(architecture, recipe, many)) == {
            kind: samples * size for kind, size in single.items()
        }


@given(described_architectures(), recipes(), layouts(1), st.integers(1, 9), st.sampled_from(Recomputation))
def test_the_stages_together_keep_embedding_and_head_once_and_every_layer(
    architecture: Architecture, recipe: Recipe, layout: Layout, stages: int, recomputation: Recomputation
) -> None:
    layout = msgspec.structs.replace(layout, virtual_stages=1, checkpoint_layers=1, recomputation=recomputation)
    piped = msgspec.structs.replace(layout, pipeline_stages=stages)
    together = sum(activation_bytes(Workload(architecture, recipe, piped), stage=stage) for stage in range(stages))
    alone = activation_bytes(Workload(architecture, recipe, layout), stage=0)
    if recomputation is Recomputation.FROM_INPUT:
        inputs = min(stages, architecture.layers) - 1
        alone += inputs * micro_batch_bytes(Workload(architecture, recipe, layout)).unit
    assert together == alone


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 6))
def test_units_of_full_recomputation_are_the_groups_of_each_virtual_stage(each: int, group: int, virtual: int) -> None:
    layout = Layout(recomputation=Recomputation.FULL, checkpoint_layers=group, virtual_stages=virtual)
    groups = sum(len(range(0, each, group)) for _ in range(virtual))
    assert kept_units(layout, layers=each * virtual) == groups


@given(described_architectures(tensor_parallel=4), recipes(), st.sampled_from([1, 2, 4]), st.integers(1, 4))
def test_an_input_that_is_kept_in_partitions_is_gathered_beside_them(
    architecture: Architecture, recipe: Recipe, t: int, group: int
) -> None:
    whole = Layout(tensor_parallel=t, recomputation=Recomputation.FULL, checkpoint_layers=group)
    parts = msgspec.structs.replace(whole, partitioned_checkpoints=True)

    def kept_and_again(layout: Layout) -> tuple[int, int]:
        unit = micro_batch_bytes(Workload(architecture, recipe, layout))
        return unit.unit, recomputed_bytes(unit, layout, layers=4)

    layers = group * sum(layer_activation_bytes(Workload(architecture, recipe, whole)).values())
    element = 4 if recipe.precision is Precision.FP32 else 2
    each_input = element * architecture.sequence * architecture.hidden
    assert kept_and_again(whole) == (each_input, layers - each_input)
    assert kept_and_again(parts) == (each_input // t, layers if t > 1 else layers - each_input)


@given(st.integers(1, 200), st.floats(0.1, 100), st.floats(0.1, 100), st.floats(0.01, 200))
def test_no_number_of_partitions_needs_less_than_the_square_root(
    layers: int, input_bytes: float, layer_bytes: float, other: float
) -> None:
    def kept(partitions: float) -> float:
        return partitions * input_bytes + layers / partitions * layer_bytes

    least = kept(checkpoint_partitions(layers=layers, input_bytes=input_bytes, layer_bytes=layer_bytes))
    # both are sums of two products in double precision: a few units of 1.1e-16
    assert least <= kept(other) * (1 + 1e-15)
    assert least == pytest.approx(2 * math.sqrt(layers * input_bytes * layer_bytes), rel=1e-14)


def test_96_layers_want_the_square_root_of_96_partitions() -> None:
    assert checkpoint_partitions(layers=96) == pytest.approx(9.798, abs=5e-4)


@given(described_architectures(), recipes(), st.integers(1, 5), st.integers(1, 40))
def test_the_best_group_needs_no_more_than_any_other(
    architecture: Architecture, recipe: Recipe, stages: int, micro_batches: int
) -> None:
    architecture = msgspec.structs.replace(architecture, layers=8 * stages)
    layout = Layout(pipeline_stages=stages)
    best = best_checkpoint_layers(Workload(architecture, recipe, layout), stage=0, micro_batches=micro_batches)
    element = 4 if recipe.precision is Precision.FP32 else 2
    each_input = element * architecture.sequence * architecture.hidden
    layer = sum(layer_activation_bytes(Workload(architecture, recipe, layout)).values())

    def needed(group: int) -> int:
        inputs = min(micro_batches, stages) * len(range(0, 8, group)) * each_input
        return inputs + min(group, 8) * layer - each_input

    assert 1 <= best <= 8
    assert needed(best) == min(map(needed, range(1, 9)))


@given(
    described_architectures(tensor_parallel=4),
    recipes(),
    st.sampled_from(Recomputation),
    st.booleans(),
    st.lists(
        st.tuples(*[st.sampled_from([1, 2, 4])] * 3, st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=5
    ),
)
def test_arrays_of_layouts_give_each_layouts_bytes(
    architecture: Architecture,
    recipe: Recipe,
    recomputation: Recomputation,
    sequence_parallel: bool,
    counts: list[tuple[int, int, int, int, int]],
) -> None:
    def layout(values: list[object]) -> Layout:
        t, c, b, group, virtual = values
        return msgspec.structs.replace(
            Layout(recomputation=recomputation, sequence_parallel=sequence_parallel, schedule=Schedule.ONE_F_ONE_B),
            tensor_parallel=t,
            context_parallel=c,
            micro_batch=b,
            checkpoint_layers=group,
            virtual_stages=virtual,
        )

    columns = layout([np.array(column, dtype=np.float64) for column in zip(*counts, strict=True)])
    together = activation_bytes(Workload(architecture, recipe, columns), stage=0)
    again = recomputed_bytes(micro_batch_bytes(Workload(architecture, recipe, columns)), columns, layers=6)
    for place, row in enumerate(counts):
        one = layout(list(row))
        unit = micro_batch_bytes(Workload(architecture, recipe, one))
        assert np.broadcast_to(together, len(counts))[place] == activation_bytes(
            Workload(architecture, recipe, one), stage=0
        )
        assert np.broadcast_to(again, len(counts))[place] == recomputed_bytes(unit, one, layers=6)


@given(described_architectures(), recipes())
def test_scores_are_kinds_of_the_layer(architecture: Architecture, recipe: Recipe) -> None:
    assume(architecture.sequence > 1)
    kinds = layer_activation_bytes(Workload(architecture, recipe, Layout()))
    scores = score_bytes(Workload(architecture, recipe, Layout()))
    assert scores.items() <= kinds.items()
    fused = layer_activation_bytes(Workload(architecture, recipe, Layout(fused_attention=True)))
    assert kinds.keys() - scores.keys() == fused.keys() - {"log-sum-exp"}


def test_of_groups_that_need_the_same_the_one_next_to_the_best_real_number_is_taken() -> None:
    """57 in flight, whose inputs are as large as a layer: groups of 2, 3 and 4 of 8 layers are equal.

    sqrt(8) = 2.83 partitions would be best: 8 / 3 is next to it.
    """
    architecture = msgspec.structs.replace(BLOOM.architecture, layers=2 * 8)
    layout = Layout(pipeline_stages=2, schedule=Schedule.GPIPE)
    assert best_checkpoint_layers(Workload(architecture, BLOOM.recipe, layout), stage=0, micro_batches=57) == 3


@pytest.mark.parametrize(("micro_batches", "group"), [(1, 1), (400, 2)])
def test_many_micro_batches_in_flight_want_one_group_of_all_layers(micro_batches: int, group: int) -> None:
    architecture = msgspec.structs.replace(BLOOM.architecture, layers=2 * 2)
    layout = Layout(pipeline_stages=2, schedule=Schedule.GPIPE)
    workload = Workload(architecture, BLOOM.recipe, layout)
    assert best_checkpoint_layers(workload, stage=0, micro_batches=micro_batches) == group
