"""Parameters of an architecture: by part, by rank and stage, and tensor by tensor in the order of their use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from reference_runs.layout import Layout, StageAssignment
from reference_runs.placement import chunk_layers
from reference_runs.run import Architecture, Norm, Position, QueryKeyNorm
from suite.predict.analytic.elementwise import larger


class ParameterTensor(NamedTuple):
    """One parameter tensor on a rank: `matrix` tensors decay, vectors (biases, norms) are distinguished from them.

    Args:
        rows: its size along dim 0, on which it can be sharded.
    """

    name: str
    elements: int
    matrix: bool
    rows: int


class RankParameters(NamedTuple):
    """Parameters that one rank stores.

    Args:
        matrices: elements of weight matrices and tables.
        vectors: elements of biases and norms.
        replicated: of both, elements that every tensor-parallel rank stores.
        copied: of both, elements of key and value heads that several tensor-parallel ranks store, though not all
            have the same: t / k ranks each, where there are fewer key-value heads than ranks.
    """

    matrices: int
    vectors: int
    replicated: int
    copied: int

    @property
    def all(self) -> int:
        """Elements of all tensors."""
        return self.matrices + self.vectors


def key_width(architecture: Architecture, *, tensor_parallel: int = 1) -> int:
    """Columns of the keys, and of the values, that one tensor-parallel rank has: max(k / t, 1) d.

    Where there are fewer key-value heads than ranks, each head is on t / k of them.
    """
    return larger(architecture.kv_heads // tensor_parallel, 1) * architecture.head_dim


def _widths(architecture: Architecture, *, tensor_parallel: int = 1) -> tuple[int, int]:
    """Rows of the fused query, key, value projection, and of the expansion (twice f where it is gated), on one rank."""
    rows = architecture.query_width // tensor_parallel + 2 * key_width(architecture, tensor_parallel=tensor_parallel)
    return rows, (2 if architecture.activation.gated else 1) * architecture.ffn_hidden // tensor_parallel


def _norm_elements(architecture: Architecture) -> int:
    """Elements of one norm: its gain and its bias, where it has them."""
    return architecture.hidden * (architecture.norm_gain + architecture.bias.norm)


def _query_key_norm_widths(architecture: Architecture) -> tuple[int, int]:
    """Elements of the norm of queries, and of that of keys."""
    if architecture.query_key_norm is QueryKeyNorm.NONE:
        return 0, 0
    if architecture.query_key_norm is QueryKeyNorm.HEAD:
        return architecture.head_dim, architecture.head_dim
    return architecture.query_width, architecture.kv_heads * architecture.head_dim


def _layer_norms(architecture: Architecture) -> int:
    """Norms of hidden states in a layer."""
    return 1 if architecture.shared_norm else 2


def _position_rows(architecture: Architecture) -> tuple[int, int]:
    """Rows of the learned position table before the layers, and of the query table of a top-query layer."""
    learned = architecture.sequence + architecture.extra_positions if architecture.position is Position.LEARNED else 0
    return learned, architecture.sequence if architecture.top_query_layer else 0


def parameter_counts(architecture: Architecture) -> dict[str, int]:
    """Parameters by part; their sum is the model's parameter count.

    With h hidden, L layers, V stored vocabulary rows, f feed-forward width, s positions, a heads and k key-value heads
    of size d, g = 2 for a gated activation and 1 otherwise, n = 2 h for a LayerNorm (h without bias, and for an
    RMSNorm; 0 without a gain):
        embedding            V h
        position             (s + extra) h (learned positions), s h more for a top-query layer, 0 (ALiBi, rotary)
        embedding norm       n, where there is one
        attention            L (2 h a d + 2 h k d + a d + h + 2 k d): fused query, key, value, and projection, with
                             biases; 2 d L more for norms of each query and key head, (a + k) d L of the projections
        feed-forward         L ((g + 1) h f + g f + h), with biases
        norm                 (2 L + 1) n: two norms a layer and the last one; L + 1 where both branches share theirs
        head                 V h where it is not the embedding itself, and V where it has a bias

    The sum with f = 4 h, a d = k d = h, tied embeddings and LayerNorms is L (12 h^2 + 13 h) + V h + positions + 2 h.
    Source: BigScience, train/tr11-176B-ml/README.md, layer-size formula; the paper prints 176,247M.
    Differs from the often quoted 12 L h^2 by the embedding and the 13 h: 2.0 % for BLOOM-176B.
    """
    h, f, v = architecture.hidden, architecture.ffn_hidden, architecture.padded_vocabulary
    bias, norm = architecture.bias, _norm_elements(architecture)
    attention_rows, expansion_rows = _widths(architecture)
    attention = h * (attention_rows + architecture.query_width) + sum(_query_key_norm_widths(architecture))
    attention += bias.attention * attention_rows + bias.projection * h
    feed_forward = h * (expansion_rows + f) + bias.feed_forward * (expansion_rows + h)
    return {
        "embedding": v * h,
        "position": sum(_position_rows(architecture)) * h,
        "embedding norm": norm if architecture.embedding_norm else 0,
        "attention": architecture.layers * attention,
        "feed-forward": architecture.layers * feed_forward,
        "norm": architecture.layers * _layer_norms(architecture) * norm + norm,
        "head": (0 if architecture.tied_embeddings else v * h) + bias.head * v,
    }


def parameter_count(architecture: Architecture) -> int:
    """Parameters of the whole model, stored vocabulary rows included (see `parameter_counts`)."""
    return sum(parameter_counts(architecture).values())


def padding_parameters(architecture: Architecture) -> int:
    """Parameters of stored vocabulary rows that no token has: (V - v) h, twice with untied embeddings.

    With V stored rows and v tokens; V - v more with a bias of the head. Published counts leave them out where padding
    is the framework's: GPT-2 124M has 124,439,808 parameters without and 124,475,904 with them.
    """
    tables = 1 if architecture.tied_embeddings else 2
    row = tables * architecture.hidden + architecture.head_bias
    return row * (architecture.padded_vocabulary - architecture.vocabulary)


def stage_layers(architecture: Architecture, layout: Layout, *, stage: int) -> int:
    """Layers on pipeline stage `stage` (counted from 0) of p stages.

    layers             L / p each; the first L mod p stages have one more
    layers and tables  as if embedding and head were a layer each: (L + 2) / p slots, the first (L + 2) mod p stages
                       have one more, less one on the first and one on the last stage
    counted            `layout.stage_layer_counts`, where they are given

    Source of the second: BigScience, train/tr11-176B-ml/README.md (--pp-partition-method type:transformer|embedding);
    Zeng et al. 2022, arXiv 2210.02414, section 2.3 (9 * 8 - 2 layers).
    """
    if layout.stage_layer_counts is not None:
        return layout.stage_layer_counts[stage]
    stages = layout.pipeline_stages
    with_tables = layout.stage_assignment is StageAssignment.LAYERS_AND_TABLES
    slots = architecture.layers + (2 if with_tables else 0)
    layers = slots // stages + (stage < slots % stages)
    if with_tables:
        layers = layers - (stage == 0) - (stage == stages - 1)
    return layers


def rank_parameters(architecture: Architecture, layout: Layout, *, stage: int) -> RankParameters:
    """Parameters that one rank of pipeline stage `stage` stores before any sharding over data parallelism.

    With t tensor-parallel ranks and l layers on the stage, over t: query, key, value and expansion with their biases
    (split by columns), projection and contraction (split by rows), embedding and head (split by vocabulary).
    On every rank: norms, biases of projection and contraction, learned positions. With k < t key-value heads each is
    on t / k ranks. Norms of queries and keys are on every rank, but those of whole projections split with these.
    The last stage stores a tied embedding again where it is not the first stage too.

    Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3; Narayanan et al. 2021, arXiv 2104.04473, section 2.3.
    Differs from N / (t p) by the replicated part and by the tables on the outer stages: the fullest rank of BLOOM-176B
    stores 8.5 % more than N / (t p).
    """
    h, v, t = architecture.hidden, architecture.padded_vocabulary, layout.tensor_parallel
    bias, norm = architecture.bias, _norm_elements(architecture)
    attention_rows, expansion_rows = _widths(architecture, tensor_parallel=t)
    layers = stage_layers(architecture, layout, stage=stage)
    first, last = stage == 0, stage == layout.pipeline_stages - 1
    tables = first * 1 + last * (1 if not architecture.tied_embeddings else 1 - first * 1)
    columns = (architecture.query_width + architecture.ffn_hidden) // t
    matrices = layers * (h * (attention_rows + expansion_rows + columns)) + tables * (v * h // t)
    before, after = _position_rows(architecture)
    positions = first * (before * h) + last * (after * h)
    norms, query_key = _layer_norms(architecture) * norm, sum(_query_key_norm_widths(architecture))
    split_norms = architecture.query_key_norm is QueryKeyNorm.PROJECTION
    in_layer = norms + (bias.projection + bias.feed_forward) * h + (0 if split_norms else query_key)
    replicated = layers * in_layer + last * norm + first * (norm if architecture.embedding_norm else 0)
    split = bias.attention * attention_rows + bias.feed_forward * expansion_rows
    split += query_key // t if split_norms else 0
    vectors = replicated + layers * split + last * (bias.head * v // t)
    copied = layers * ((t > architecture.kv_heads) * (2 * architecture.head_dim * (h + bias.attention)))
    return RankParameters(matrices + positions, vectors, replicated + positions, copied)


def layer_tensors(
    architecture: Architecture, *, tensor_parallel: int = 1, top_query: bool = False
) -> list[ParameterTensor]:
    """The parameter tensors of one layer on one tensor-parallel rank, in the order in which it reads them first.

    Args:
        top_query: whether it is a top-query layer, which has its query's matrix apart.
    """
    h, t, bias = architecture.hidden, tensor_parallel, architecture.bias
    attention_rows, expansion_rows = _widths(architecture, tensor_parallel=t)
    queries = architecture.query_width // t
    if top_query:
        attention = _linear("attention.query", queries, h, bias=bias.attention)
        attention += _linear("attention.key_value", attention_rows - queries, h, bias=bias.attention)
    else:
        attention = _linear("attention.query_key_value", attention_rows, h, bias=bias.attention)
    split = t if architecture.query_key_norm is QueryKeyNorm.PROJECTION else 1
    for name, width in zip(("query", "key"), _query_key_norm_widths(architecture), strict=True):
        if width:
            attention.append(ParameterTensor(f"attention.{name}_norm.weight", width // split, False, width // split))
    attention += _linear("attention.projection", h, queries, bias=bias.projection)
    feed_forward = _linear("feed_forward.expansion", expansion_rows, h, bias=bias.feed_forward)
    feed_forward += _linear("feed_forward.contraction", h, architecture.ffn_hidden // t, bias=bias.feed_forward)
    attention_norm, feed_forward_norm = _norm(architecture, "attention_norm"), _norm(architecture, "feed_forward_norm")
    if architecture.shared_norm:
        return attention_norm + attention + feed_forward
    if architecture.norm is Norm.DEEP_NORM:
        return attention + attention_norm + feed_forward + feed_forward_norm
    return attention_norm + attention + feed_forward_norm + feed_forward


def _norm(architecture: Architecture, name: str) -> list[ParameterTensor]:
    h, parts = architecture.hidden, {"weight": architecture.norm_gain, "bias": architecture.bias.norm}
    return [ParameterTensor(f"{name}.{part}", h, False, h) for part, is_there in parts.items() if is_there]


def _linear(name: str, rows: int, columns: int, *, bias: bool) -> list[ParameterTensor]:
    weight = ParameterTensor(f"{name}.weight", rows * columns, True, rows)
    return [weight, ParameterTensor(f"{name}.bias", rows, False, rows)] if bias else [weight]


def outer_tensors(
    architecture: Architecture, *, tensor_parallel: int = 1
) -> tuple[list[ParameterTensor], list[ParameterTensor]]:
    """The parameter tensors before and after the layers on one tensor-parallel rank; a tied embedding comes first.

    A top-query layer comes after the final norm and its query table, before the head.
    """
    h, rows = architecture.hidden, architecture.padded_vocabulary // tensor_parallel
    learned, queries = _position_rows(architecture)
    before = [ParameterTensor("embedding.weight", rows * h, True, rows)]
    if learned:
        before.append(ParameterTensor("position.weight", learned * h, True, learned))
    if architecture.embedding_norm:
        before += _norm(architecture, "embedding_norm")
    after = _norm(architecture, "final_norm")
    if queries:
        after.append(ParameterTensor("query_position.weight", queries * h, True, queries))
    if not architecture.tied_embeddings:
        after.append(ParameterTensor("head.weight", rows * h, True, rows))
    if architecture.head_bias:
        after.append(ParameterTensor("head.bias", rows, False, rows))
    return before, after


def total_elements(tensors: Iterable[ParameterTensor]) -> int:
    """Elements of all of these tensors."""
    return sum(tensor.elements for tensor in tensors)


def chunk_tensors(architecture: Architecture, layout: Layout, *, chunk: int) -> list[ParameterTensor]:
    """The parameter tensors of one chunk on one tensor-parallel rank, in the order in which it reads them first.

    Layers have their numbers in the whole model. A last chunk that is not the first has a copy of a tied embedding,
    `head.weight`. A linear layer reads its weight before its bias; a norm its gain before its bias.
    """
    dealt = chunk_layers(architecture.layers, layout)
    t, last = layout.tensor_parallel, chunk == len(dealt) - 1
    before, after = outer_tensors(architecture, tensor_parallel=t)
    head = [tensor for tensor in after if tensor.name.startswith("head.")]
    after = after[: len(after) - len(head)]
    if architecture.tied_embeddings and chunk > 0:
        head.insert(0, before[0]._replace(name="head.weight"))

    def layers(numbers: Iterable[int], *, top_query: bool) -> list[ParameterTensor]:
        layer = layer_tensors(architecture, tensor_parallel=t, top_query=top_query)
        return [tensor._replace(name=f"blocks.{number}.{tensor.name}") for number in numbers for tensor in layer]

    numbers = dealt[chunk]
    top = numbers[-1:] if last and architecture.top_query_layer else numbers[:0]
    tensors = before if chunk == 0 else []
    tensors = tensors + layers(numbers[: len(numbers) - len(top)], top_query=False)
    return tensors + after + layers(top, top_query=True) + head if last else tensors
