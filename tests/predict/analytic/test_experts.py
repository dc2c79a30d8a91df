from __future__ import annotations

import itertools
import math

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from reference_runs.architecture import Activation, Architecture, Balancing, Gate, Norm
from reference_runs.catalog import reference_run
from reference_runs.layout import Layout, Recomputation
from reference_runs.run import Precision, Recipe, Workload
from suite.predict.analytic.activations import layer_activation_bytes
from suite.predict.analytic.experts import (
    dispatched_tokens,
    expert_forward_flop,
    expert_operator_bytes,
    expert_products,
    node_copies_share,
)
from suite.predict.analytic.flop import layer_forward_flop, model_flop
from suite.predict.analytic.layer_products import layer_products
from suite.predict.analytic.memory_bound_operators import layer_operator_bytes
from suite.predict.analytic.parameters import (
    Spread,
    active_parameter_count,
    chunk_tensors,
    layer_tensors,
    parameter_count,
    parameter_counts,
    rank_parameters,
)
from suite.predict.analytic.process_groups import group_ranks
from suite.predict.analytic.stage_layers import layer_kinds
from suite.predict.analytic.traffic import expert_traffic, step_traffic
from tests.support.mixture import Experts, Latent
from tests.support.saved_tensors import saved_storage_bytes
from tests.support.strategies import BLOOM, described_architectures, recipes, routed_architectures


def kept_by_experts(shape: Architecture, recipe: Recipe, layout: Layout) -> dict[str, int]:
    """Bytes by kind of a layer's experts alone, without the input that its norm puts out."""
    kept = layer_activation_bytes(Workload(shape, recipe, layout))
    return {kind: size for kind, size in kept.items() if "expert" in kind or kind == "gates"}


def elements(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@given(routed_architectures(tensor_parallel=2, expert_parallel=2))
def test_the_experts_of_a_model_and_of_a_rank_have_the_elements_of_modules(shape: Architecture) -> None:
    routed = shape.layers - shape.dense_layers
    counts = parameter_counts(shape)
    with torch.device("meta"):
        whole, part = Experts(shape), Experts(shape, tensor_parallel=2, expert_parallel=2)
    assert counts["router"] == routed * elements(whole.router)
    assert counts["experts"] == routed * sum(
        elements(part) for part in (whole.experts, whole.shared, whole.shared_gate)
    )
    rank = rank_parameters(shape, Layout(tensor_parallel=2, expert_parallel=2), stage=0)
    assert rank.experts == routed * elements(part.experts)
    if shape.key_value_rank is not None:
        with torch.device("meta"):
            assert counts["attention"] == shape.layers * elements(Latent(shape))


@given(st.data(), st.sampled_from([1, 2]), st.sampled_from([1, 2, 3]), st.integers(1, 4))
def test_all_ranks_together_have_every_parameter_once_but_for_what_is_replicated(
    data: st.DataObject, t: int, n: int, stages: int
) -> None:
    shape = data.draw(routed_architectures(tensor_parallel=t, expert_parallel=n))
    layout = Layout(tensor_parallel=t, expert_parallel=n, pipeline_stages=min(stages, shape.layers))
    whole = Layout(pipeline_stages=layout.pipeline_stages)
    for stage in range(layout.pipeline_stages):
        rank, stored = (rank_parameters(shape, each, stage=stage) for each in (layout, whole))
        split = rank.all - rank.replicated - rank.experts
        assert stored.all == t * n * rank.experts + t * split + rank.replicated


@given(routed_architectures(tensor_parallel=2, expert_parallel=2), st.integers(1, 3))
def test_the_tensors_of_every_chunk_are_a_ranks_parameters(shape: Architecture, stages: int) -> None:
    layout = Layout(tensor_parallel=2, expert_parallel=2, pipeline_stages=min(stages, shape.layers))
    for stage in range(layout.pipeline_stages):
        tensors = chunk_tensors(shape, layout, chunk=stage)
        rank = rank_parameters(shape, layout, stage=stage)
        assert sum(tensor.elements for tensor in tensors if tensor.matrix) == rank.matrices
        assert sum(tensor.elements for tensor in tensors if not tensor.matrix) == rank.vectors


@given(described_architectures(), recipes(), st.integers(1, 3))
def test_one_expert_that_every_token_passes_is_the_dense_model_with_a_router(
    dense: Architecture, recipe: object, b: int
) -> None:
    dense = msgspec.structs.replace(dense, biases=False, top_query_layer=False)
    one = msgspec.structs.replace(dense, experts=1, experts_per_token=1, gate=Gate.SOFTMAX, balancing=Balancing.NONE)
    one.check("here")
    router = dense.layers * dense.hidden
    assert parameter_count(one) == parameter_count(dense) + router
    assert active_parameter_count(one) == parameter_count(one)
    tokens = b * dense.sequence
    assert model_flop(one, samples=b) == model_flop(dense, samples=b) + 6 * tokens * router
    layout = Layout(micro_batch=b)
    here, there = (Workload(shape, BLOOM.recipe, layout) for shape in (one, dense))
    kept, plain = layer_activation_bytes(here), layer_activation_bytes(there)
    dispatch = 2 * tokens * dense.hidden
    extra = {"gates": 4 * tokens, "expert input": dispatch, "expert output": dispatch}
    assert sum(kept.values()) == sum(plain.values()) + sum(extra.values())
    moved, before = layer_operator_bytes(here), layer_operator_bytes(there)
    assert {name: moved[name] for name in before} == before
    assert layer_products(here) == layer_products(there) | {"router": (1, tokens, 1, dense.hidden)}
    assert step_traffic(here, stage=0, micro_batches=1) == step_traffic(there, stage=0, micro_batches=1)


@given(routed_architectures(), st.integers(1, 5))
def test_the_flop_of_a_token_are_those_of_the_experts_that_it_passes(shape: Architecture, samples: int) -> None:
    """Counted by PyTorch: each of k experts with all tokens, as if every token had chosen it."""
    module, x = Experts(shape), torch.zeros(samples * shape.sequence, shape.hidden)
    half = shape.expert_width
    with FlopCounterMode(display=False) as counter:
        module.router(x)
        for gate in module.shared_gate:
            gate(x)
        for expansion, contraction in [*module.experts[: shape.experts_per_token], *module.shared]:
            contraction(expansion(x)[:, :half])
    flop = expert_forward_flop(shape, tokens=x.shape[0])
    assert sum(flop.values()) == counter.get_total_flops()
    layer = layer_forward_flop(shape, samples=samples)
    assert {part: layer[part] for part in flop} == flop


@given(routed_architectures(), st.integers(1, 5))
def test_latent_attentions_flop_equal_the_flop_counter(shape: Architecture, samples: int) -> None:
    if shape.key_value_rank is None:
        return
    module, tokens = Latent(shape), samples * shape.sequence
    x = torch.zeros(tokens, shape.hidden)
    with FlopCounterMode(display=False) as counter:
        queries = x
        for step in module.queries:
            queries = step(queries)
        compressed = module.norm(module.compression(x)[:, : shape.key_value_rank])
        module.keys(compressed)
        context = module.values(compressed)
        module.projection(context)
    layer = layer_forward_flop(shape, samples=samples)
    assert layer["query, key, value"] + layer["projection"] == counter.get_total_flops()


@pytest.mark.parametrize("activation", [Activation.SWIGLU, Activation.RELU_SQUARED, Activation.RELU, Activation.GELU])
def test_an_eager_mixture_keeps_the_predicted_bytes(activation: Activation) -> None:
    """Balanced by hand: token i goes to experts i and i + 1, in fp32."""
    experts, tokens, h, f = 4, 16, 12, 10
    shape = msgspec.structs.replace(
        BLOOM.architecture,
        hidden=h,
        ffn_hidden=f,
        biases=False,
        norm=Norm.PRE_RMS_NORM,
        activation=activation,
        experts=experts,
        experts_per_token=2,
        gate=Gate.SOFTMAX,
        balancing=Balancing.NONE,
    )
    module = Experts(shape)
    x = torch.randn(tokens, h, requires_grad=True)
    owner = torch.cat([torch.arange(tokens) % experts, (torch.arange(tokens) + 1) % experts])
    order = owner.argsort(stable=True)
    source, back = order % tokens, order.argsort()

    def run() -> Tensor:
        gates = torch.softmax(module.router(x), -1)
        parts = x[source].split(2 * tokens // experts)
        made = []
        for (expansion, contraction), part in zip(module.experts, parts, strict=True):
            wide = expansion(part)
            if activation.gated:
                gate, up = wide.chunk(2, -1)
                made.append(contraction(nn.functional.silu(gate) * up))
            elif activation is Activation.RELU_SQUARED:
                made.append(contraction(torch.relu(wide).square()))
            else:
                plain = torch.relu if activation is Activation.RELU else nn.functional.gelu
                made.append(contraction(plain(wide)))
        out = torch.cat(made)
        weight = gates[source, owner[order]].unsqueeze(1)
        return (out * weight)[back].view(2, tokens, h).sum(0)

    in_fp32 = msgspec.structs.replace(BLOOM.recipe, precision=Precision.FP32)
    kinds = kept_by_experts(msgspec.structs.replace(shape, sequence=tokens), in_fp32, Layout())
    indices = 3 * 8 * 2 * tokens  # source, the expert of each, and the way back
    weights = 4 * 2 * tokens  # a chosen gate for each token sent
    layers_input = 4 * tokens * h
    assert saved_storage_bytes(run, module) == sum(kinds.values()) + layers_input + indices + weights


@given(routed_architectures(), st.integers(1, 3), st.sampled_from([1, 2, 4]), st.booleans())
def test_all_to_alls_carry_each_chosen_token_out_and_back_in_both_directions(
    shape: Architecture, b: int, n: int, again: bool
) -> None:
    shape = msgspec.structs.replace(shape, experts=4 * (shape.experts or 1))
    recomputation = Recomputation.FULL if again else Recomputation.NONE
    layout = Layout(micro_batch=b, expert_parallel=n, recomputation=recomputation)
    entry = expert_traffic(Workload(shape, BLOOM.recipe, layout), stage=0, micro_batches=3)
    routed = shape.layers - shape.dense_layers
    sent = b * shape.sequence * (shape.experts_per_token or 0) * shape.hidden * 2
    messages = 3 * routed * (6 if again else 4) * (n > 1)
    assert entry == ("ep", "all_to_all", messages * sent, messages)


@pytest.mark.parametrize(("nodes", "chosen"), [(1, 1), (1, 4), (2, 1), (2, 3), (4, 2), (4, 6), (8, 4), (3, 8)])
def test_a_node_gets_one_copy_of_a_token_however_many_of_its_experts_it_has(nodes: int, chosen: int) -> None:
    """Counted over all ways in which a token's experts lie on the nodes."""
    shape = msgspec.structs.replace(BLOOM.architecture, experts=64, experts_per_token=chosen)
    ways = list(itertools.product(range(nodes), repeat=chosen))
    copies = sum(len(set(way)) for way in ways) / len(ways)
    assert node_copies_share(shape, nodes=nodes) == pytest.approx(copies / chosen, rel=1e-12)


def test_groups_of_experts_limit_the_nodes_that_a_token_reaches() -> None:
    shape = reference_run("deepseek-v3").architecture  # 8 experts of 4 of 8 groups
    anywhere = msgspec.structs.replace(shape, expert_groups=None, groups_per_token=None)
    assert node_copies_share(shape, nodes=8) == node_copies_share(anywhere, nodes=4)
    assert node_copies_share(shape, nodes=32) == node_copies_share(anywhere, nodes=16)  # a group stands on 4 of them
    assert node_copies_share(shape, nodes=2) == node_copies_share(anywhere, nodes=2)


WHOLE = Layout(tensor_parallel=2, expert_parallel=2, sequence_parallel=True, whole_experts=True)


@given(routed_architectures(tensor_parallel=2, expert_parallel=4), st.integers(1, 4))
def test_whole_experts_are_shared_out_over_tensor_parallel_ranks_too(shape: Architecture, b: int) -> None:
    tokens = 4 * b * (shape.experts or 1) * shape.sequence
    layout = msgspec.structs.replace(WHOLE, micro_batch=b)
    split = msgspec.structs.replace(layout, whole_experts=False)
    whole, parts = (expert_products(Workload(shape, BLOOM.recipe, of), tokens=tokens) for of in (layout, split))
    for part in ("expansion", "contraction"):
        (count, M, N, K), (count_of_parts, *rest) = whole[part], parts[part]
        assert 2 * count == count_of_parts
        assert count * M * N * K == count_of_parts * math.prod(rest)
        assert rest[0] == M
    assert {part: size for part, size in whole.items() if part.startswith(("shared", "router"))} == {
        part: size for part, size in parts.items() if part.startswith(("shared", "router"))
    }
    assert group_ranks(layout, "ep") == 4
    ranks = [rank_parameters(shape, of, stage=0).experts for of in (layout, split)]
    assert ranks[0] == ranks[1]


@given(routed_architectures(tensor_parallel=2, expert_parallel=4))
def test_nothing_is_gathered_for_whole_experts(shape: Architecture) -> None:
    shape = msgspec.structs.replace(shape, dense_layers=0)
    split = msgspec.structs.replace(WHOLE, whole_experts=False)
    gathered = []
    for layout in (WHOLE, split):
        entries = step_traffic(Workload(shape, BLOOM.recipe, layout), stage=0, micro_batches=1)
        sizes = {(entry.axis, entry.operation): entry.payload_bytes for entry in entries}
        gathered.append((sizes["tp", "all_gather"], sizes["ep", "all_to_all"]))
    (whole, exchanged), (parts, as_much) = gathered
    states = shape.sequence * shape.hidden * 2  # once forward, and for gradients of input and weights
    assert parts - whole == 3 * shape.layers * (shape.experts_per_token or 0) * states
    assert exchanged == as_much  # each rank sends its own tokens, to twice as many ranks


@given(routed_architectures(expert_parallel=2), st.integers(0, 3), st.integers(1, 4))
def test_gradients_of_dense_parts_and_of_experts_are_reduced_in_groups_of_their_own(
    shape: Architecture, zero: int, dp: int
) -> None:
    layout = Layout(data_parallel=dp, expert_parallel=2, zero_stage=zero)
    rank = rank_parameters(shape, layout, stage=0)
    entries = step_traffic(Workload(shape, BLOOM.recipe, layout), stage=0, micro_batches=1)
    operation = "all_reduce" if zero < 2 else "reduce_scatter"
    payload = {entry.axis: entry.payload_bytes for entry in entries if entry.operation == operation}
    dense, ranks = rank.all - rank.experts, 2 * dp
    padding = 0 if zero < 2 else 4 * 2 * ranks
    assert 4 * dense <= payload["dp"] <= 4 * dense + padding
    if dp > 1:
        assert 4 * rank.experts <= payload["edp"] <= 4 * rank.experts + padding
    else:
        assert "edp" not in payload


@given(routed_architectures(tensor_parallel=2, expert_parallel=2), st.integers(1, 4))
def test_the_products_of_all_ranks_have_the_flop_of_the_experts(shape: Architecture, b: int) -> None:
    tokens = 4 * b * (shape.experts or 1) * shape.sequence
    layout = Layout(micro_batch=b, tensor_parallel=2, expert_parallel=2, sequence_parallel=True)
    products = expert_products(Workload(shape, BLOOM.recipe, layout), tokens=tokens)
    flop = expert_forward_flop(shape, tokens=2 * tokens)  # of two expert-parallel ranks
    ranks = 4
    computed = {part: ranks * count * 2 * M * N * K for part, (count, M, N, K) in products.items()}
    for part in ("router", "shared gate") if shape.shared_gate else ("router",):
        assert computed.pop(part) == flop[part]
    assert sum(computed.values()) == flop["feed-forward"]


@given(routed_architectures(), st.integers(1, 50), st.sampled_from([None, 0.25, 0.5, 1.0, 1.25]))
def test_capacity_below_an_equal_share_drops_the_rest(shape: Architecture, tokens: int, capacity: float | None) -> None:
    shape = msgspec.structs.replace(shape, capacity_factor=capacity)
    chosen = tokens * (shape.experts_per_token or 0)
    sent = dispatched_tokens(shape, tokens=tokens)
    if capacity is None or capacity >= 1:
        assert sent == chosen
    else:
        assert capacity * chosen <= sent < capacity * chosen + 1


@given(routed_architectures(tensor_parallel=2), st.integers(1, 3))
def test_operators_move_the_tensors_that_they_read_and_write(shape: Architecture, b: int) -> None:
    layout = Layout(micro_batch=b, tensor_parallel=2)
    tokens, k = b * shape.sequence, shape.experts_per_token or 0
    moved = expert_operator_bytes(Workload(shape, BLOOM.recipe, layout), tokens=tokens, element=2)
    x, sent = torch.empty(tokens, shape.hidden, dtype=torch.bfloat16), torch.empty(tokens * k, shape.hidden).bfloat16()
    scores = torch.empty(tokens, shape.experts or 0)
    gates = 3 if shape.activation.gated else 2
    inner = torch.empty(tokens * (k + shape.shared_experts), shape.expert_width // 2, dtype=torch.bfloat16)
    assert moved == {
        "activation": gates * inner.nbytes,
        "dispatch": 2 * sent.nbytes,
        "sort": 0,
        "combine": sent.nbytes + x.nbytes,
        "router": 2 * scores.nbytes,
        **({"shared gate": 2 * x.nbytes} if shape.shared_gate else {}),
    }


@given(routed_architectures())
def test_the_active_parameters_are_whole_and_less_by_the_experts_that_a_token_passes_by(shape: Architecture) -> None:
    """Counted tensor by tensor: each expert's share of a tensor, for those that the token does not pass."""
    active = active_parameter_count(shape)
    assert isinstance(active, int)
    passed_by = sum(
        layers * (tensor.elements // shape.experts) * (shape.experts - (shape.experts_per_token or 0))
        for kind, layers in layer_kinds(shape)
        for tensor in layer_tensors(kind)
        if tensor.spread is Spread.EXPERTS
    )
    assert active == parameter_count(shape) - passed_by


def test_a_worked_example_of_experts_and_a_gated_shared_one() -> None:
    """6 tokens of 8 columns, 2 of 4 experts of width 10 each and a shared one, over 2 ranks of either kind."""
    shape = msgspec.structs.replace(
        BLOOM.architecture,
        hidden=8,
        sequence=6,
        experts=4,
        experts_per_token=2,
        expert_ffn_hidden=10,
        shared_experts=1,
        shared_gate=True,
        activation=Activation.SWIGLU,
    )
    layout = Layout(tensor_parallel=2, expert_parallel=2, sequence_parallel=True)
    kept = kept_by_experts(shape, BLOOM.recipe, layout)
    assert kept == {
        "gates": 4 * 6 * 4 // 2,
        "expert input": 2 * 12 * 8,
        "expert output": 2 * 12 * 8 // 2,
        "expert contraction input": 2 * 12 * 5,
        "expert activation input": 2 * 12 * 10,
        "expert activated half": 2 * 12 * 5,
        "shared expert contraction input": 2 * 6 * 5,
        "shared expert activation input": 2 * 6 * 10,
        "shared expert activated half": 2 * 6 * 5,
        "shared expert output": 2 * 6 * (8 + 1) // 2,
    }
    assert {type(size) for size in kept.values()} == {int}  # bytes stay exact beyond 2^53
    two = msgspec.structs.replace(shape, shared_experts=2)
    of_two = kept_by_experts(two, BLOOM.recipe, layout)
    wider = {kind for kind in kept if kind.startswith("shared expert") and kind != "shared expert output"}
    assert of_two == {kind: size * (2 if kind in wider else 1) for kind, size in kept.items()}
    of_whole = kept_by_experts(shape, BLOOM.recipe, WHOLE)
    assert of_whole == kept | {"expert input": kept["expert input"] // 2}
    workload = Workload(shape, BLOOM.recipe, layout)
    assert expert_operator_bytes(workload, tokens=6, element=2) == {
        "activation": 3 * 2 * (12 + 6) * 5,
        "dispatch": 2 * 2 * 12 * 8 // 2,
        "sort": 4 * 2 * 12 * 8 // 2,  # 2 experts a rank: there and back
        "combine": 2 * (12 + 6) * 8 // 2,
        "router": 8 * 6 * 4 // 2,
        "shared gate": 2 * 2 * 6 * 8 // 2,
    }
    assert expert_products(workload, tokens=6) == {
        "router": (1, 3, 4, 8),
        "expansion": (2, 6, 10, 8),  # 6 tokens of either rank go to 4 experts, twice each
        "contraction": (2, 6, 8, 5),
        "shared expansion": (1, 6, 10, 8),
        "shared contraction": (1, 6, 8, 5),
        "shared gate": (1, 3, 1, 8),
    }
    flop = expert_forward_flop(shape, tokens=6)
    assert flop == {"router": 2 * 6 * 8 * 4, "shared gate": 2 * 6 * 8, "feed-forward": 2 * 3 * 6 * 8 * 10 * 3}
