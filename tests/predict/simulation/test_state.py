from __future__ import annotations

import math

import msgspec
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.layout import Layout
from reference_runs.run import Architecture, Precision, Recipe, Workload
from suite.job.options import DEFAULT_OPTIONS, Update
from suite.predict.analytic.parameters import ParameterTensor
from suite.predict.simulation.state import (
    ExecutedState,
    executed_state,
    local_shard_elements,
    optimizer_groups,
    padded_shard_elements,
    parameter_tensors_of_rank,
    rank_position,
    sharded_units,
    unlearned_tensors_of_rank,
    update_bytes,
)
from tests.support.examples import examples
from tests.support.executed_runs import MANY, Place, Run, copies, executed_runs, places, rank_parameters
from tests.support.strategies import recipes, routed_architectures

# What an element of a parameter costs: read weight, gradient, and copies for the optimizer besides two moments of 4.
WEIGHT = {"fp32": 4, "bf16": 2, "fp16": 2, "fp16-gradient-copy": 2, "fp16-no-master": 2}
GRADIENT = {"fp32": 4, "bf16": 4, "fp16": 2, "fp16-gradient-copy": 2, "fp16-no-master": 2}
MASTER = {"fp32": 0, "bf16": 4, "fp16": 4, "fp16-gradient-copy": 4, "fp16-no-master": 0}
COPY = {"fp32": 0, "bf16": 0, "fp16": 0, "fp16-gradient-copy": 4, "fp16-no-master": 0}


def stored(run: Run, place: Place) -> ExecutedState:
    """State of one rank from its tensors, one after the other."""
    precision, n = run.recipe.precision, copies(run.layout)
    tensors = rank_parameters(run, place)
    if run.layout.zero_stage >= 2 and n > 1:
        element = 2 if precision is Precision.FP16_NO_MASTER else 4
        own = padded = 0
        n = run.layout.shard_ranks or n
        for tensor in tensors:
            shards = torch.empty(tensor.shape, device="meta").chunk(n)
            padded += shards[0].numel()
            own += shards[place.dp % n].numel() if place.dp % n < len(shards) else 0
        moments = (4 + 4 + COPY[precision]) * own
        return ExecutedState(own, element * padded, element * padded, moments + 4 * len(tensors))
    groups: dict[bool, int] = {}
    whole = n == 1 or run.layout.zero_stage == 0
    for tensor in tensors:
        decays = len(tensor.shape) > 1 or run.recipe.decay_of_vectors
        groups[decays] = groups.get(decays, 0) + math.prod(tensor.shape)
    shards_of_group = n if run.layout.zero_stage == 1 else 1
    weights = optimizer = padded = 0
    for elements in groups.values():
        while elements % shards_of_group:
            elements += 1
        share = elements // shards_of_group
        weights += WEIGHT[precision] * elements
        padded += elements
        optimizer += (4 + 4 + MASTER[precision] + COPY[precision]) * share
    counters = len(tensors if whole else groups)
    elements = sum(math.prod(tensor.shape) for tensor in tensors)
    gradients = padded if run.layout.zero_stage == 1 and run.layout.reduce_scatter else elements
    return ExecutedState(elements, weights, GRADIENT[precision] * gradients, optimizer + 4 * counters)


@examples(MANY)
@given(executed_runs())
def test_the_state_of_every_rank_equals_its_tensors_one_by_one(run: Run) -> None:
    for place in set(places(run.layout)):
        state = executed_state(Workload(*run), stage=place.pp, replica=place.dp)
        assert state == stored(run, place)


@given(executed_runs())
def test_a_foreach_update_holds_the_square_roots_of_the_largest_group_of_weight_decay(run: Run) -> None:
    training = msgspec.structs.replace(DEFAULT_OPTIONS, update=Update.FOREACH)
    for stage in range(run.layout.pipeline_stages):
        groups: dict[bool, int] = {}
        for tensor in rank_parameters(run, Place(0, 0, stage)):
            decays = len(tensor.shape) > 1 or run.recipe.decay_of_vectors
            groups[decays] = groups.get(decays, 0) + math.prod(tensor.shape)
        assert update_bytes(Workload(*run), training, stage=stage) == [4 * max(groups.values())]


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 12))
def test_rows_are_sharded_like_torch_chunks(rows: int, columns: int, ranks: int) -> None:
    tensor = ParameterTensor("weight", rows * columns, True, rows)
    chunks = torch.empty(rows, columns, device="meta").chunk(ranks)
    own = [local_shard_elements(tensor, ranks, replica=replica) for replica in range(ranks)]
    assert own == [chunk.numel() for chunk in chunks] + [0] * (ranks - len(chunks))
    assert padded_shard_elements(tensor, ranks) == chunks[0].numel()


@given(executed_runs())
def test_units_are_the_layers_and_the_rest(run: Run) -> None:
    layout = msgspec.structs.replace(run.layout, pipeline_stages=1, virtual_stages=1)
    one = run._replace(layout=layout)
    n = layout.shard_ranks or copies(layout)

    def padded(shapes: list[tuple[int, ...]]) -> int:
        return sum(torch.empty(shape, device="meta").chunk(n)[0].numel() for shape in shapes)

    tensors = rank_parameters(one, Place(0, 0, 0))
    outside = [tensor.shape for tensor in tensors if tensor.unit < 0]
    layers = [tensor.shape for tensor in tensors if tensor.unit >= 0]
    assert sharded_units(run.architecture, layout) == (padded(layers), 0, 0, padded(outside))


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3)).flatmap(
        lambda sizes: st.tuples(
            st.just(sizes), routed_architectures(tensor_parallel=sizes[0], expert_parallel=sizes[1])
        )
    ),
    recipes(),
    st.integers(1, 3),
    st.integers(0, 1),
)
def test_expert_parallel_ranks_share_out_experts_and_the_state_of_all_else(
    drawn: tuple[tuple[int, int], Architecture], recipe: Recipe, data_parallel: int, zero_stage: int
) -> None:
    (t, n), architecture = drawn
    layout = Layout(tensor_parallel=t, data_parallel=data_parallel, expert_parallel=n, zero_stage=zero_stage)
    groups = optimizer_groups(Workload(architecture, recipe, layout), stage=0)
    alone = msgspec.structs.replace(layout, expert_parallel=1)
    whole = optimizer_groups(Workload(architecture, recipe, alone), stage=0)
    assert [group.axis for group in whole] == ["dp"] * len(whole)
    of_axis = {axis: sum(group.elements for group in groups if group.axis == axis) for axis in ("dp", "edp")}
    experts = sum(t.elements for t in parameter_tensors_of_rank(architecture, alone, stage=0) if ".experts." in t.name)
    assert of_axis["edp"] == (experts // n if n > 1 else 0)
    assert of_axis["dp"] + (n * of_axis["edp"] if n > 1 else 0) == sum(group.elements for group in whole)
    for group in groups:
        copies = data_parallel * (1 if group.axis == "edp" else n)
        assert group.shards == (copies if zero_stage else 1)
        assert 0 <= group.padded - group.elements < group.shards


@given(
    routed_architectures(expert_parallel=2),
    recipes(),
    st.integers(1, 3),
    st.sampled_from([2, 3]),
    st.sampled_from(["tp-cp-dp-pp", "ep-tp-cp-dp-pp", "tp-cp-dp-ep-pp"]),
    st.integers(1, 2),
)
def test_fully_sharded_experts_and_the_rest_are_stored_once_over_all_ranks(
    architecture: Architecture, recipe: Recipe, data_parallel: int, zero_stage: int, order: str, contexts: int
) -> None:
    layout = Layout(
        data_parallel=data_parallel,
        expert_parallel=2,
        context_parallel=contexts,
        zero_stage=zero_stage,
        rank_order=order,
    )
    workload = Workload(architecture, recipe, layout)
    places = [rank_position(layout, rank).replica for rank in range(layout.ranks)]
    assert sorted(places) == list(range(layout.ranks))
    stored = sum(executed_state(workload, stage=0, replica=place).parameters for place in places)
    biases = sum(tensor.elements for tensor in unlearned_tensors_of_rank(architecture, layout, stage=0))
    assert stored - layout.ranks * biases == sum(
        tensor.elements for tensor in parameter_tensors_of_rank(architecture, Layout(), stage=0)
    )
