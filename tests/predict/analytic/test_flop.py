from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from reference_runs.catalog import reference_run, run_names
from reference_runs.layout import Layout, Recomputation, StageAssignment
from reference_runs.run import Architecture, Norm, Position, Precision, Recipe, Workload
from suite.execute.measure.counters import LocalFlopCounter
from suite.execute.model.decoder import Decoder
from suite.predict.analytic.flop import (
    executed_flop,
    executed_model_flop,
    forward_flop,
    groups_stopped_early,
    hardware_flop,
    layer_forward_flop,
    model_flop,
    rank_executed_flop,
    rank_model_flop,
    redundant_flop,
)
from suite.predict.analytic.stage_layers import stage_layers
from tests.support.eager_block import EagerBlock
from tests.support.examples import examples
from tests.support.executed_runs import (
    MANY,
    Place,
    Run,
    dealt_layers,
    executed_runs,
    groups,
    own_chunks,
    places,
    stops_early,
)
from tests.support.strategies import (
    BLOOM,
    architectures,
    described_architectures,
    dropouts,
    recipes,
    routed_architectures,
    varied_architectures,
)

PLAIN = [position for position in Position if position is not Position.ALIBI]
RECOMPUTATIONS = st.sampled_from([Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL])


def counted_flop(
    architecture: Architecture, recipe: Recipe, *, samples: int, layout: Layout, counter: FlopCounterMode
) -> int:
    model = Decoder(architecture, recipe, fused_attention=layout.fused_attention)
    model.recompute(layout.recomputation, checkpoint_layers=layout.checkpoint_layers)
    tokens = torch.randint(architecture.vocabulary, (samples, architecture.sequence + 1))
    with counter:
        model(tokens[:, :-1], tokens[:, 1:]).backward()
    return int(counter.get_total_flops())


@given(architectures(), recipes(), st.integers(1, 3), RECOMPUTATIONS, st.integers(1, 3))
def test_executed_flop_equal_the_flop_counter_and_model_flop_without_recomputation(
    architecture: Architecture, recipe: Recipe, samples: int, recomputation: Recomputation, group: int
) -> None:
    layout = Layout(recomputation=recomputation, checkpoint_layers=group)
    counter = FlopCounterMode(display=False)
    counted = counted_flop(architecture, recipe, samples=samples, layout=layout, counter=counter)
    assert counted == executed_flop(Workload(architecture, recipe, layout), samples=samples)
    if recomputation is Recomputation.NONE:
        assert counted == model_flop(architecture, samples=samples)


@given(architectures(positions=PLAIN), recipes(), st.integers(1, 3), RECOMPUTATIONS, st.integers(1, 3))
def test_flop_of_a_fused_attention_equal_the_flop_counter(
    architecture: Architecture, recipe: Recipe, samples: int, recomputation: Recomputation, group: int
) -> None:
    recipe = msgspec.structs.replace(recipe, attention_dropout=0.0)
    layout = Layout(recomputation=recomputation, checkpoint_layers=group, fused_attention=True)
    counted = counted_flop(architecture, recipe, samples=samples, layout=layout, counter=LocalFlopCounter())
    assert counted == executed_flop(Workload(architecture, recipe, layout), samples=samples)
    needed, plain = LocalFlopCounter(recomputes=False), Layout(fused_attention=True)
    counted = counted_flop(architecture, recipe, samples=samples, layout=plain, counter=needed)
    assert counted == model_flop(architecture, samples=samples)


@given(varied_architectures(), st.integers(1, 3))
def test_model_flop_of_any_described_shape_equal_the_flop_counter(architecture: Architecture, samples: int) -> None:
    layout = Layout(micro_batch=samples)
    recipe = msgspec.structs.replace(BLOOM.recipe, precision=Precision.FP32)
    blocks = nn.Sequential(*(EagerBlock(architecture, recipe, layout) for _ in range(architecture.layers)))
    head = nn.Linear(architecture.hidden, architecture.padded_vocabulary, bias=False)
    x = EagerBlock(architecture, recipe, layout).input()
    with FlopCounterMode(display=False) as counter:
        head(blocks(x)).sum().backward()
    assert counter.get_total_flops() == model_flop(architecture, samples=samples)


def forward_products(shape: Architecture) -> list[tuple[int, int, int]]:
    """Rows, depth and columns of every product of a sample's forward pass."""
    tokens, products = shape.sequence, []
    values = shape.value_head_dim or shape.head_dim
    expansions = 2 if shape.activation.gated else 1

    def feed_forward(width: int) -> list[tuple[int, int, int]]:
        return expansions * [(tokens, shape.hidden, width)] + [(tokens, width, shape.hidden)]

    for layer in range(shape.layers):
        if shape.key_value_rank is None:
            products.append((tokens, shape.hidden, (shape.heads + 2 * shape.kv_heads) * shape.head_dim))
        else:
            assert shape.query_rank is not None
            assert shape.rotary_dim is not None
            products.append((tokens, shape.hidden, shape.query_rank))
            products.append((tokens, shape.query_rank, shape.heads * shape.head_dim))
            products.append((tokens, shape.hidden, shape.key_value_rank + shape.rotary_dim))
            unrotated = shape.head_dim - shape.rotary_dim
            products.append((tokens, shape.key_value_rank, shape.heads * (unrotated + values)))
        products += shape.heads * [(tokens, shape.head_dim, tokens), (tokens, tokens, values)]
        products.append((tokens, shape.heads * values, shape.hidden))
        if shape.experts is None or layer < shape.dense_layers:
            products += feed_forward(shape.ffn_hidden)
        else:
            assert shape.experts_per_token is not None
            width = shape.expert_ffn_hidden or shape.ffn_hidden
            products.append((tokens, shape.hidden, shape.experts))
            products += (shape.experts_per_token + shape.shared_experts) * feed_forward(width)
    return [*products, (tokens, shape.hidden, shape.padded_vocabulary)]


def test_flop_of_every_recorded_run_equal_a_count_product_by_product() -> None:
    """Linear attention is compared with traces (tests/execute/trace/test_sources.py)."""
    shapes = {name: reference_run(name).architecture for name in run_names()}
    shapes = {name: shape for name, shape in shapes.items() if shape.linear_heads is None}
    counted = {name: 7 * 3 * sum(2 * m * k * n for m, k, n in forward_products(shapes[name])) for name in shapes}
    assert {name: model_flop(shape, samples=7) for name, shape in shapes.items()} == counted


@given(described_architectures(), st.integers(1, 9), st.sampled_from(StageAssignment))
def test_restarting_from_each_stages_input_equals_the_sum_over_stages(
    architecture: Architecture, stages: int, assignment: StageAssignment
) -> None:
    layout = Layout(
        pipeline_stages=min(stages, architecture.layers),
        stage_assignment=assignment,
        recomputation=Recomputation.FROM_INPUT,
    )
    forward = sum(layer_forward_flop(architecture, samples=1).values())
    restarts = 0
    for stage in range(layout.pipeline_stages):
        for layer in range(stage_layers(architecture, layout, stage=stage)):
            restarts += 1 + layer
    again = hardware_flop(architecture, layout, samples=1) - model_flop(architecture, samples=1)
    assert again == restarts * forward


@given(described_architectures(), dropouts(), st.integers(1, 5))
def test_the_early_stop_takes_one_product_off_each_group(
    architecture: Architecture, dropout: float, group: int
) -> None:
    layout = Layout(recomputation=Recomputation.FULL, checkpoint_layers=group)
    recipe = msgspec.structs.replace(BLOOM.recipe, hidden_dropout=dropout)
    saved = hardware_flop(architecture, layout, samples=1)
    saved -= executed_flop(Workload(architecture, recipe, layout), samples=1)
    product = 2 * architecture.sequence * architecture.hidden * architecture.ffn_hidden
    groups = len(range(0, architecture.layers, group))
    stops = dropout == 0 and architecture.norm in (Norm.PRE_LAYER_NORM, Norm.PRE_RMS_NORM)
    assert saved == (groups * product if stops else 0)


class FedForward(nn.Module):
    """A norm before a feed-forward part, after it, or after its sum with the residual stream."""

    def __init__(self, *, place: str, bias: bool) -> None:
        super().__init__()
        self.place = place
        self.norm = nn.LayerNorm(8, bias=bias)
        self.expansion, self.contraction = nn.Linear(8, 32, bias=bias), nn.Linear(32, 8, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fed = self.contraction(self.expansion(self.norm(x) if self.place == "before" else x).relu())
        if self.place == "of the output":
            return x + self.norm(fed)
        return self.norm(x + fed) if self.place == "of the sum" else x + fed


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("norm", "place"),
    [(Norm.PRE_LAYER_NORM, "before"), (Norm.DEEP_NORM, "of the sum"), (Norm.OUTPUT_RMS_NORM, "of the output")],
)
def test_pytorch_stops_before_the_last_product_unless_a_norm_after_it_keeps_its_input(
    norm: Norm, place: str, bias: bool
) -> None:
    blocks = [FedForward(place=place, bias=bias) for _ in range(3)]

    def executed(*, recomputed: bool) -> int:
        x = torch.randn(4, 8, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            for block in blocks:
                x = checkpoint(block, x, use_reentrant=False) if recomputed else block(x)
            x.sum().backward()
        return counter.get_total_flops()

    again = executed(recomputed=True) - executed(recomputed=False)
    product = 2 * 4 * 8 * 32
    shape = msgspec.structs.replace(BLOOM.architecture, layers=3, norm=norm)
    recipe = msgspec.structs.replace(BLOOM.recipe, hidden_dropout=0.0)
    workload = Workload(shape, recipe, Layout(recomputation=Recomputation.FULL))
    stopped = groups_stopped_early(workload, layers=3)
    assert again == (2 * 3 - stopped) * product


def rank_products(run: Run, place: Place, *, again: bool) -> int:
    """Flop of every product of one rank in a step of one sample, or of those that are computed again."""
    shape, layout, t = run.architecture, run.layout, run.layout.tensor_parallel
    tokens, f = shape.sequence // layout.context_parallel, shape.ffn_hidden // t
    heads, kv_heads = shape.heads // t, max(shape.kv_heads // t, 1)
    scores = heads * [(tokens, shape.head_dim, shape.sequence)]
    context = heads * [(tokens, shape.sequence, shape.head_dim)]
    contraction = [(tokens, f, shape.hidden)]
    others = [(tokens, shape.hidden, (heads + 2 * kv_heads) * shape.head_dim)]
    others.append((tokens, heads * shape.head_dim, shape.hidden))
    others += (2 if shape.activation.gated else 1) * [(tokens, shape.hidden, f)]
    layer = [*scores, *context, *others, *contraction]
    products = []
    for chunk in own_chunks(run, place):
        if again:
            if layout.fused_attention:  # by its backward pass
                products += len(dealt_layers(run)[chunk]) * scores
            for group in groups(run, chunk):
                for number in range(1, len(group) + 1):
                    if layout.recomputation is Recomputation.SELECTIVE:
                        products += [*scores, *context] if layout.fused_attention else scores
                    elif layout.recomputation is Recomputation.FULL:
                        products += [*scores, *context, *others]
                        products += [] if number == len(group) and stops_early(run) else contraction
            continue
        products += len(dealt_layers(run)[chunk]) * layer
        if chunk == layout.pipeline_stages * layout.virtual_stages - 1:
            products.append((tokens, shape.hidden, shape.padded_vocabulary // t))
    return sum(2 * m * k * n for m, k, n in products)


@examples(MANY)
@given(executed_runs(), st.integers(1, 9))
def test_the_flop_of_every_rank_equal_a_count_product_by_product(run: Run, samples: int) -> None:
    for place in set(places(run.layout)):
        forward = samples * rank_products(run, place, again=False)
        again = samples * rank_products(run, place, again=True)
        needed = rank_model_flop(Workload(*run), stage=place.pp, samples=samples)
        executed = rank_executed_flop(Workload(*run), stage=place.pp, samples=samples)
        assert (needed, executed) == (3 * forward, 3 * forward + again)


@given(executed_runs())
def test_the_ranks_of_a_replica_share_its_flop(run: Run) -> None:
    workload = Workload(*run)
    stages, t = range(run.layout.pipeline_stages), run.layout.tensor_parallel * run.layout.context_parallel
    needed = sum(rank_model_flop(workload, stage=stage, samples=7) for stage in stages)
    executed = sum(rank_executed_flop(workload, stage=stage, samples=7) for stage in stages)
    assert t * needed == executed_model_flop(workload, samples=7)
    shape = run.architecture
    more = max(run.layout.tensor_parallel - shape.kv_heads, 0) * shape.head_dim  # of all ranks
    tokens = 7 * shape.sequence
    assert executed_model_flop(workload, samples=7) - model_flop(shape, samples=7) == (
        3 * shape.layers * 2 * (2 * tokens * shape.hidden * more)
    )
    assert t * executed == executed_flop(workload, samples=7)


@given(
    st.integers(1, 4).flatmap(lambda t: st.tuples(st.just(t), routed_architectures(tensor_parallel=t))),
    st.sampled_from([Recomputation.NONE, Recomputation.FULL]),
)
def test_tensor_parallel_ranks_share_the_flop_of_a_mixture_but_for_its_routers_and_compressed_states(
    drawn: tuple[int, Architecture], recomputation: Recomputation
) -> None:
    ranks, architecture = drawn
    layout = Layout(micro_batch=1, tensor_parallel=ranks, recomputation=recomputation)
    split = Workload(architecture, BLOOM.recipe, layout)
    whole = split._replace(layout=msgspec.structs.replace(layout, tensor_parallel=1))
    passes = 3 + (recomputation is Recomputation.FULL)
    layers = architecture.layers - architecture.dense_layers
    rows = ((architecture.experts or 0) + architecture.shared_gate) * layers
    if architecture.key_value_rank is not None:
        compressed = (architecture.query_rank or 0) + architecture.key_value_rank + (architecture.rotary_dim or 0)
        rows += compressed * architecture.layers
    twice = 2 * 7 * architecture.sequence * architecture.hidden * rows
    assert executed_model_flop(split, samples=7) == model_flop(architecture, samples=7) + 3 * (ranks - 1) * twice
    again = executed_flop(split, samples=7) - executed_flop(whole, samples=7)
    assert again == passes * (ranks - 1) * twice


def test_bloom_flop_equal_the_rate_and_step_time_that_the_log_prints() -> None:
    assert BLOOM.reported.hardware_flop_per_second is not None
    assert BLOOM.reported.step_seconds is not None
    assert BLOOM.cluster is not None
    logged = BLOOM.reported.hardware_flop_per_second * BLOOM.cluster.accelerators * BLOOM.reported.step_seconds
    predicted = hardware_flop(BLOOM.architecture, BLOOM.layout, samples=BLOOM.recipe.global_batch)
    # both are printed to two decimals, so half a unit of the last place each: 0.005 / 149.02 + 0.005 / 105.22 = 8.1e-5
    assert predicted == pytest.approx(logged, rel=0.005 / 149.02 + 0.005 / 105.22)


def test_a_step_is_three_forward_passes_of_all_parts() -> None:
    parts = forward_flop(BLOOM.architecture, samples=2)
    assert 3 * sum(parts.values()) == model_flop(BLOOM.architecture, samples=2)
    assert parts["head"] == 2 * 2 * 2048 * 14336 * BLOOM.architecture.padded_vocabulary


def test_empty_places_of_experts_cost_as_much_for_each_sample() -> None:
    shape = msgspec.structs.replace(
        BLOOM.architecture, experts=4, experts_per_token=2, expert_ffn_hidden=64, capacity_factor=1.5
    )
    once = redundant_flop(shape, Layout(), samples=1, at_once=1)
    # each of 4 experts has 1.5 times the 2048 * 2 / 4 places of an equal share; half as many again as rows stay empty
    assert once == 2 * shape.hidden * 2 * 64 * (2048 * 2 // 2)
    assert redundant_flop(shape, Layout(), samples=6, at_once=1) == 6 * once
