"""Random runs of every executed kind, and one rank of them taken apart: each tensor and each message for itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from hypothesis import strategies as st

from reference_runs.layout import Layout, Recomputation, Schedule, StageAssignment
from reference_runs.run import Architecture, Mask, Norm, Position, Precision, QueryKeyNorm, Recipe, Workload
from tests.support.strategies import recipes, shard_groups, varied_architectures

MANY = 400  # examples where choices meet, such as fp16 without masters, sequence parallelism and ZeRO-2
AXES = ["tp", "cp", "dp", "pp"]


class Run(NamedTuple):
    architecture: Architecture
    recipe: Recipe
    layout: Layout

    @property
    def workload(self) -> Workload:
        return Workload(*self)


class Place(NamedTuple):
    """A rank's index on each axis; `dp` counts all ranks with the same weights, those of one sample first."""

    dp: int
    tp: int
    pp: int


class Parameter(NamedTuple):
    """One tensor on a tensor-parallel rank; `unit` is its layer's number, or -1 outside the layers."""

    unit: int
    name: str
    shape: tuple[int, ...]


@st.composite
def executed_runs(draw: st.DrawFn) -> Run:
    """Any executed layout, up to 4 * 3 * 3 * 3 ranks, with as many layers as it needs."""
    tensor_parallel = draw(st.integers(1, 3))
    architecture = draw(varied_architectures(tensor_parallel=tensor_parallel))
    if draw(st.booleans()):  # several ranks have the same one
        architecture = msgspec.structs.replace(architecture, kv_heads=1)
    dealt = architecture.mask is Mask.CAUSAL and not architecture.top_query_layer
    contexts = draw(st.sampled_from([1, 1, 2, 3])) if dealt else 1
    if contexts > 1:
        architecture = msgspec.structs.replace(architecture, sequence=2 * contexts * architecture.sequence)
    zero_stage = draw(st.integers(0, 3))
    stages = draw(st.integers(1, 3)) if zero_stage <= 1 else 1
    virtual_stages = draw(st.integers(1, 3)) if stages > 1 else 1
    replicas = draw(st.integers(1, 4))
    layout = Layout(
        micro_batch=draw(st.integers(1, 2)),
        data_parallel=replicas,
        tensor_parallel=tensor_parallel,
        pipeline_stages=stages,
        context_parallel=contexts,
        virtual_stages=virtual_stages,
        sequence_parallel=draw(st.booleans()),
        zero_stage=zero_stage,
        schedule=draw(st.sampled_from([Schedule.GPIPE, Schedule.ONE_F_ONE_B])),
        recomputation=draw(st.sampled_from([Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL])),
        checkpoint_layers=draw(st.integers(1, 3)),
        bucket_bytes=draw(st.integers(1, 20_000)),
        rank_order="-".join(draw(st.permutations(AXES))),
        stage_assignment=draw(st.sampled_from(StageAssignment)),
        reshard_after_forward=draw(st.booleans()),
        reduce_scatter=draw(st.booleans()),
        shard_ranks=draw(st.sampled_from([None, *shard_groups(replicas, contexts)])) if zero_stage >= 2 else None,
    )
    architecture = msgspec.structs.replace(architecture, layers=max(architecture.layers, stages * virtual_stages))
    recipe = msgspec.structs.replace(
        draw(recipes()),
        precision=draw(st.sampled_from([one for one in Precision if one is not Precision.BF16_PURE])),  # not executed
        hidden_dropout=draw(st.sampled_from([0.0, 0.1])),
        global_batch=layout.data_parallel * layout.micro_batch * draw(st.integers(1, 3)),
    )
    windowed = (architecture.sliding_window or architecture.sequence) < architecture.sequence
    plain = architecture.mask is Mask.CAUSAL and architecture.position is not Position.ALIBI
    if plain and not windowed and contexts == 1:
        layout = msgspec.structs.replace(layout, fused_attention=draw(st.booleans()))
    if not dealt_layers(Run(architecture, recipe, layout))[-1]:
        architecture = msgspec.structs.replace(architecture, top_query_layer=False)
    return Run(architecture, recipe, layout)


def places(layout: Layout) -> list[Place]:
    """The place of each rank, counted up like the wheels of a mileage counter."""
    order = layout.rank_order.split("-")
    sizes = {"dp": layout.data_parallel, "tp": layout.tensor_parallel, "pp": layout.pipeline_stages}
    sizes["cp"] = layout.context_parallel
    counter = dict.fromkeys(order, 0)
    seen = []
    for _ in range(layout.ranks):
        seen.append(Place(counter["dp"] * sizes["cp"] + counter["cp"], counter["tp"], counter["pp"]))
        for axis in order:
            counter[axis] += 1
            if counter[axis] < sizes[axis]:
                break
            counter[axis] = 0
    return seen


def copies(layout: Layout) -> int:
    """Ranks with the same weights."""
    return layout.data_parallel * layout.context_parallel


def micro_batches(run: Run) -> int:
    return run.recipe.global_batch // (run.layout.data_parallel * run.layout.micro_batch)


def dealt_layers(run: Run) -> list[list[int]]:
    """Layers of each chunk; tables are put into the row of layers where they count as one."""
    row = list(range(run.architecture.layers))
    if run.layout.stage_assignment is StageAssignment.LAYERS_AND_TABLES:
        row = [-1, *row, -1]
    chunks = []
    for left in range(run.layout.pipeline_stages * run.layout.virtual_stages, 0, -1):
        share = -(-len(row) // left)
        chunks.append([layer for layer in row[:share] if layer >= 0])
        row = row[share:]
    return chunks


def own_chunks(run: Run, place: Place) -> list[int]:
    return [chunk for chunk in range(len(dealt_layers(run))) if chunk % run.layout.pipeline_stages == place.pp]


def _norm(shape: Architecture, unit: int, name: str) -> list[Parameter]:
    tensors = [Parameter(unit, f"{name}.weight", (shape.hidden,))] if shape.norm_gain else []
    has_bias = shape.biases if shape.norm_bias is None else shape.norm_bias
    if has_bias and shape.norm_gain and shape.norm not in (Norm.PRE_RMS_NORM, Norm.OUTPUT_RMS_NORM):
        tensors.append(Parameter(unit, f"{name}.bias", (shape.hidden,)))
    return tensors


def _linear(unit: int, name: str, rows: int, columns: int, *, bias: bool) -> list[Parameter]:
    tensors = [Parameter(unit, f"{name}.weight", (rows, columns))]
    return [*tensors, Parameter(unit, f"{name}.bias", (rows,))] if bias else tensors


def layer_parameters(shape: Architecture, t: int, unit: int) -> list[Parameter]:
    h, f = shape.hidden, shape.ffn_hidden
    own, keys = shape.heads // t * shape.head_dim, max(shape.kv_heads // t, 1) * shape.head_dim
    of_attention, of_projection, of_feed_forward = (
        shape.biases if given is None else given
        for given in (shape.attention_bias, shape.projection_bias, shape.feed_forward_bias)
    )
    if shape.top_query_layer and unit == shape.layers - 1:
        attention = _linear(unit, "query", own, h, bias=of_attention)
        attention += _linear(unit, "key_value", 2 * keys, h, bias=of_attention)
    else:
        attention = _linear(unit, "query_key_value", own + 2 * keys, h, bias=of_attention)
    if shape.query_key_norm is not QueryKeyNorm.NONE:
        by_head = shape.query_key_norm is QueryKeyNorm.HEAD
        for name, width in (("query_norm", own), ("key_norm", keys)):
            attention.append(Parameter(unit, f"{name}.weight", (shape.head_dim if by_head else width,)))
    attention += _linear(unit, "projection", h, own, bias=of_projection)
    expanded = (2 if shape.activation.gated else 1) * (f // t)
    feed_forward = _linear(unit, "expansion", expanded, h, bias=of_feed_forward)
    feed_forward += _linear(unit, "contraction", h, f // t, bias=of_feed_forward)
    norms = _norm(shape, unit, "attention_norm"), _norm(shape, unit, "feed_forward_norm")
    if shape.shared_norm:
        return [*norms[0], *attention, *feed_forward]
    if shape.norm in (Norm.DEEP_NORM, Norm.OUTPUT_RMS_NORM):
        return [*attention, *norms[0], *feed_forward, *norms[1]]
    return [*norms[0], *attention, *norms[1], *feed_forward]


def chunk_parameters(run: Run, chunk: int) -> list[Parameter]:
    """Tensors of one chunk in the order in which its forward pass reads them first."""
    shape, t = run.architecture, run.layout.tensor_parallel
    table = (shape.padded_vocabulary // t, shape.hidden)
    chunks = dealt_layers(run)
    tensors: list[Parameter] = []
    if chunk == 0:
        tensors.append(Parameter(-1, "embedding.weight", table))
        if shape.position is Position.LEARNED:
            tensors.append(Parameter(-1, "position.weight", (shape.sequence + shape.extra_positions, shape.hidden)))
        if shape.embedding_norm:
            tensors += _norm(shape, -1, "embedding_norm")
    for layer in chunks[chunk]:
        top = shape.top_query_layer and layer == shape.layers - 1
        if top:
            tensors += _norm(shape, -1, "final_norm")
            tensors.append(Parameter(-1, "query_position.weight", (shape.sequence, shape.hidden)))
        tensors += layer_parameters(shape, t, layer)
    if chunk == len(chunks) - 1:
        tensors += [] if shape.top_query_layer else _norm(shape, -1, "final_norm")
        if not shape.tied_embeddings or chunk > 0:
            tensors.append(Parameter(-1, "head.weight", table))
        if shape.head_bias:
            tensors.append(Parameter(-1, "head.bias", table[:1]))
    return tensors


def rank_parameters(run: Run, place: Place) -> list[Parameter]:
    return [tensor for chunk in own_chunks(run, place) for tensor in chunk_parameters(run, chunk)]


def stops_early(run: Run) -> bool:
    """Whether nothing after a layer's last product is needed: no dropout mask, no norm's input."""
    return run.recipe.hidden_dropout == 0 and run.architecture.norm not in (Norm.DEEP_NORM, Norm.OUTPUT_RMS_NORM)


def groups(run: Run, chunk: int) -> Iterator[list[int]]:
    """Layers that are recomputed together, each group from its own kept input."""
    layers = dealt_layers(run)[chunk]
    while layers:
        yield layers[: run.layout.checkpoint_layers]
        layers = layers[run.layout.checkpoint_layers :]
