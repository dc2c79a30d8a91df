"""Parameters of an architecture: by part, by rank and stage, and tensor by tensor in the order of their use."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from reference_runs.layout import Layout
from reference_runs.placement import chunk_layers, head_stage
from reference_runs.run import Architecture, Balancing, Position, QueryKeyNorm
from suite.predict.analytic.process_groups import key_width
from suite.predict.analytic.stage_layers import layer_kinds, stage_layer_kinds


class Spread(enum.StrEnum):
    """Which ranks of a stage have a tensor: each tensor-parallel one a part; each the whole; each expert-parallel one
    its experts, of which tensor-parallel ranks have a part.
    """

    SPLIT = "split"
    REPLICATED = "replicated"
    EXPERTS = "experts"


class ParameterTensor(NamedTuple):
    """One parameter tensor on a rank: `matrix` tensors decay, vectors (biases, norms) are distinguished from them.

    Args:
        rows: its size along dim 0, on which it can be sharded.
        learned: whether it has a gradient; the bias that balances experts is moved by their rows.
    """

    name: str
    elements: int
    matrix: bool
    rows: int
    spread: Spread = Spread.SPLIT
    learned: bool = True


class RankParameters(NamedTuple):
    """Parameters that one rank stores.

    Args:
        matrices: elements of weight matrices and tables.
        vectors: elements of biases and norms.
        replicated: of both, elements that every tensor-parallel rank stores.
        copied: of both, elements of key and value heads that several tensor-parallel ranks store, though not all
            have the same: t / k ranks each, where there are fewer key-value heads than ranks.
        experts: of the matrices, elements of experts, which expert-parallel ranks share out.
    """

    matrices: int
    vectors: int
    replicated: int
    copied: int
    experts: int

    @property
    def all(self) -> int:
        """Elements of all tensors."""
        return self.matrices + self.vectors


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
    With D layers before L - D with E experts of width x and y shared ones:
        feed-forward         of the D layers alone
        router               (L - D) (h E, and E where a bias balances it)
        experts              (L - D) (E + y) (g + 1) h x, and h where the shared ones have a gate
    Under latent attention, with ranks q and c, of d dimensions r rotated, and values of size w:
        attention            L (h q + q + q a d + h (c + r) + c + c a (d - r + w) + a w h); without q h a d first

    The sum with f = 4 h, a d = k d = h, tied embeddings and LayerNorms is L (12 h^2 + 13 h) + V h + positions + 2 h.
    Source: BigScience, train/tr11-176B-ml/README.md, layer-size formula; the paper prints 176,247M.
    Differs from the often quoted 12 L h^2 by the embedding and the 13 h: 2.0 % for BLOOM-176B.
    """
    return {**_parameter_counts(architecture)}


@lru_cache(maxsize=256)
def _parameter_counts(architecture: Architecture) -> dict[str, int]:
    counts = dict.fromkeys(("embedding", "position", "embedding norm", "attention", "feed-forward"), 0)
    if architecture.experts is not None:
        counts |= {"router": 0, "experts": 0}
    counts |= {"norm": 0, "head": 0}
    before, after = outer_tensors(architecture)
    layers = [(layer_tensors(kind), layers) for kind, layers in layer_kinds(architecture)]
    for tensors, times in ((before, 1), *layers, (after, 1)):
        for tensor in tensors:
            counts[_part(tensor.name)] += times * tensor.elements
    return counts


def _part(name: str) -> str:
    """The part of the model that a tensor of a layer, or outside of them, belongs to."""
    owner, _, rest = name.partition(".")
    if owner == "feed_forward":
        first = rest.partition(".")[0]
        of_experts = dict.fromkeys(("experts", "shared_experts", "shared_gate"), "experts")
        return ({"router": "router"} | of_experts).get(first, "feed-forward")
    if owner.endswith("_norm"):
        return "embedding norm" if owner == "embedding_norm" else "norm"
    return "position" if owner == "query_position" else owner


def parameter_count(architecture: Architecture) -> int:
    """Parameters of the whole model, stored vocabulary rows included (see `parameter_counts`)."""
    return sum(parameter_counts(architecture).values())


def active_parameter_count(architecture: Architecture) -> int:
    """Parameters that take part in computing one token: all, but of E experts the k that it passes."""
    routed = sum(
        layers * tensor.elements
        for kind, layers in layer_kinds(architecture)
        for tensor in layer_tensors(kind)
        if tensor.spread is Spread.EXPERTS
    )
    if architecture.experts is None:
        return parameter_count(architecture)
    of_token = routed * (architecture.experts_per_token or 0) // architecture.experts
    return parameter_count(architecture) - routed + of_token


def padding_parameters(architecture: Architecture) -> int:
    """Parameters of stored vocabulary rows that no token has: (V - v) h, twice with untied embeddings.

    With V stored rows and v tokens; V - v more with a bias of the head. Published counts leave them out where padding
    is the framework's: GPT-2 124M has 124,439,808 parameters without and 124,475,904 with them.
    """
    tables = 1 if architecture.tied_embeddings else 2
    row = tables * architecture.hidden + architecture.head_bias
    return row * (architecture.padded_vocabulary - architecture.vocabulary)


def rank_parameters(architecture: Architecture, layout: Layout, *, stage: int) -> RankParameters:
    """Parameters that one rank of pipeline stage `stage` stores before any sharding over data parallelism.

    With t tensor-parallel ranks and l layers on the stage, over t: query, key, value and expansion with their biases
    (split by columns), projection and contraction (split by rows), embedding and head (split by vocabulary).
    On every rank: norms, biases of projection and contraction, learned positions. With k < t key-value heads each is
    on t / k ranks. Norms of queries and keys are on every rank, but those of whole projections split with these.
    Routers and latent attention's compressing matrices are on every rank; experts go to n expert-parallel ranks, E / n
    each, and each of them over t.
    The stage with the head stores a tied embedding again where it is not the first stage too.

    Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3; Narayanan et al. 2021, arXiv 2104.04473, section 2.3.
    Differs from N / (t p) by the replicated part and by the tables on the outer stages: the fullest rank of BLOOM-176B
    stores 8.5 % more than N / (t p).
    """
    t = layout.tensor_parallel
    first, last = (stage == 0) * 1, (stage == head_stage(layout)) * 1
    of_layer, outer = (_known_layer_sums, _known_outer_sums) if t.__class__ is int else (_layer_sums, _outer_sums)
    stored = list(zip(outer(architecture, t), (first, last, last * (1 - first)), strict=True))
    kinds = stage_layer_kinds(architecture, layout, stage=stage)
    stored += [(of_layer(kind, t, layout.expert_parallel), layers) for kind, layers in kinds]
    copied = 0
    if (shared_head := t > architecture.kv_heads) is not False:  # a bool of one layout, or one a row of many
        of_head = 2 * architecture.head_dim * (architecture.hidden + architecture.bias.attention)
        copied = sum(layers for _, layers in kinds) * (shared_head * of_head)
    matrices = vectors = replicated = experts = 0
    for sums, times in stored:
        matrices, vectors = matrices + times * sums[0], vectors + times * sums[1]
        replicated, experts = replicated + times * sums[2], experts + times * sums[3]
    return RankParameters(matrices, vectors, replicated, copied, experts)


def _sums(tensors: Iterable[ParameterTensor]) -> tuple[int, int, int, int]:
    """Elements of the matrices, of the vectors, of what is replicated, and of experts."""
    matrices = vectors = replicated = experts = 0
    for _, elements, is_matrix, _, spread, _ in tensors:
        if is_matrix:
            matrices = matrices + elements
        else:
            vectors = vectors + elements
        if spread is Spread.REPLICATED:
            replicated = replicated + elements
        elif spread is Spread.EXPERTS:
            experts = experts + elements
    return matrices, vectors, replicated, experts


def _layer_sums(architecture: Architecture, t: int, expert_parallel: int) -> tuple[int, int, int, int]:
    return _sums(_layer_tensors(architecture, t, expert_parallel, False))


def _outer_sums(architecture: Architecture, t: int) -> list[tuple[int, int, int, int]]:
    before, after = _outer_tensors(architecture, t)
    return [_sums(before), _sums(after), _sums(before[:1] if architecture.tied_embeddings else [])]


_known_layer_sums = lru_cache(maxsize=256)(_layer_sums)
_known_outer_sums = lru_cache(maxsize=256)(_outer_sums)


def layer_tensors(
    architecture: Architecture, *, tensor_parallel: int = 1, expert_parallel: int = 1, top_query: bool = False
) -> list[ParameterTensor]:
    """The parameter tensors of one layer on one rank, in the order in which it reads them first.

    Args:
        top_query: whether it is a top-query layer, which has its query's matrix apart.
    """
    if tensor_parallel.__class__ is int:
        return [*_known_layer_tensors(architecture, tensor_parallel, expert_parallel, top_query)]
    return _layer_tensors(architecture, tensor_parallel, expert_parallel, top_query)


def _layer_tensors(a: Architecture, t: int, expert_parallel: int, top_query: bool) -> list[ParameterTensor]:
    attention = _attention(a, t, top_query=top_query) if a.key_value_rank is None else _latent_attention(a, t)
    attention += _linear("attention.projection", a.hidden, a.context_width // t, bias=a.bias.projection, summed=True)
    if a.experts is not None:
        feed_forward = _experts(a, t, expert_parallel)
    else:
        feed_forward = _feed_forward(a, "feed_forward", width=a.ffn_hidden // t)
    attention_norm, feed_forward_norm = _norm(a, "attention_norm"), _norm(a, "feed_forward_norm")
    if a.shared_norm:
        return attention_norm + attention + feed_forward
    if not a.norm.before:
        return attention + attention_norm + feed_forward + feed_forward_norm
    return attention_norm + attention + feed_forward_norm + feed_forward


_known_layer_tensors = lru_cache(maxsize=256)(_layer_tensors)


def _attention(a: Architecture, t: int, *, top_query: bool) -> list[ParameterTensor]:
    """Queries, keys and values, and the norms of queries and keys."""
    queries, keys = a.query_width // t, key_width(a, tensor_parallel=t)
    if top_query:
        tensors = _linear("attention.query", queries, a.hidden, bias=a.bias.attention)
        tensors += _linear("attention.key_value", 2 * keys, a.hidden, bias=a.bias.attention)
    else:
        tensors = _linear("attention.query_key_value", queries + 2 * keys, a.hidden, bias=a.bias.attention)
    for name, width in (("query", a.heads), ("key", a.kv_heads)):
        if a.query_key_norm is QueryKeyNorm.HEAD:
            tensors.append(_gain(f"attention.{name}_norm", a.head_dim))
        elif a.query_key_norm is QueryKeyNorm.PROJECTION:
            tensors.append(_gain(f"attention.{name}_norm", width * a.head_dim // t, Spread.SPLIT))
    return tensors


def _latent_attention(a: Architecture, t: int) -> list[ParameterTensor]:
    """Compression of queries, and of keys and values with the keys' rotated part, their norms, and expansion."""
    h, compressed, rotated = a.hidden, a.key_value_rank or 0, a.rotary_dim or 0
    if a.query_rank is None:
        tensors = _linear("attention.query", a.query_width // t, h, bias=False)
    else:
        tensors = _whole("attention.query_compression", a.query_rank, h)
        tensors += [_gain("attention.query_compression_norm", a.query_rank)]
        tensors += _linear("attention.query_expansion", a.query_width // t, a.query_rank, bias=False)
    tensors += _whole("attention.key_value_compression", compressed + rotated, h)
    tensors += [_gain("attention.key_value_compression_norm", compressed)]
    expanded = (a.query_width - a.heads * rotated + a.context_width) // t
    return tensors + _linear("attention.key_value_expansion", expanded, compressed, bias=False)


def _feed_forward(a: Architecture, name: str, *, width: int) -> list[ParameterTensor]:
    expanded = (2 if a.activation.gated else 1) * width
    tensors = _linear(f"{name}.expansion", expanded, a.hidden, bias=a.bias.feed_forward)
    return tensors + _linear(f"{name}.contraction", a.hidden, width, bias=a.bias.feed_forward, summed=True)


def _experts(a: Architecture, t: int, expert_parallel: int) -> list[ParameterTensor]:
    """Router with the bias that balances it, this rank's experts, and the shared ones."""
    experts, width = a.experts or 0, a.expert_width // t
    tensors = _whole("feed_forward.router", experts, a.hidden)
    if a.balancing is Balancing.BIAS:
        name = "feed_forward.router.bias"
        tensors.append(ParameterTensor(name, experts, False, experts, Spread.REPLICATED, learned=False))
    own = experts // expert_parallel
    expanded = (2 if a.activation.gated else 1) * width
    for name, rows, columns in (("expansion", expanded, a.hidden), ("contraction", a.hidden, width)):
        rows = own * rows
        name = f"feed_forward.experts.{name}.weight"
        tensors.append(ParameterTensor(name, rows * columns, True, rows, Spread.EXPERTS))
    if a.shared_experts:
        tensors += _feed_forward(a, "feed_forward.shared_experts", width=a.shared_experts * width)
    if a.shared_gate:
        tensors += _whole("feed_forward.shared_gate", 1, a.hidden)
    return tensors


def _gain(name: str, width: int, spread: Spread = Spread.REPLICATED) -> ParameterTensor:
    return ParameterTensor(f"{name}.weight", width, False, width, spread)


def _norm(architecture: Architecture, name: str) -> list[ParameterTensor]:
    h, parts = architecture.hidden, {"weight": architecture.norm_gain, "bias": architecture.bias.norm}
    names = [f"{name}.{part}" for part, is_there in parts.items() if is_there]
    return [ParameterTensor(name, h, False, h, Spread.REPLICATED) for name in names]


def _whole(name: str, rows: int, columns: int) -> list[ParameterTensor]:
    """A matrix that every tensor-parallel rank has whole."""
    return [ParameterTensor(f"{name}.weight", rows * columns, True, rows, Spread.REPLICATED)]


def _linear(name: str, rows: int, columns: int, *, bias: bool, summed: bool = False) -> list[ParameterTensor]:
    """A split matrix, and its bias, which every rank has where outputs of the ranks are summed before it is added."""
    weight = ParameterTensor(f"{name}.weight", rows * columns, True, rows)
    spread = Spread.REPLICATED if summed else Spread.SPLIT
    return [weight, ParameterTensor(f"{name}.bias", rows, False, rows, spread)] if bias else [weight]


def outer_tensors(
    architecture: Architecture, *, tensor_parallel: int = 1
) -> tuple[list[ParameterTensor], list[ParameterTensor]]:
    """The parameter tensors before and after the layers on one tensor-parallel rank; a tied embedding comes first.

    A top-query layer comes after the final norm and its query table, before the head.
    """
    if tensor_parallel.__class__ is int:
        before, after = _known_outer_tensors(architecture, tensor_parallel)
        return [*before], [*after]
    return _outer_tensors(architecture, tensor_parallel)


def _outer_tensors(
    architecture: Architecture, tensor_parallel: int
) -> tuple[list[ParameterTensor], list[ParameterTensor]]:
    h, rows = architecture.hidden, architecture.padded_vocabulary // tensor_parallel
    learned, queries = _position_rows(architecture)
    before = [ParameterTensor("embedding.weight", rows * h, True, rows)]
    if learned:
        before.append(ParameterTensor("position.weight", learned * h, True, learned, Spread.REPLICATED))
    if architecture.embedding_norm:
        before += _norm(architecture, "embedding_norm")
    after = _norm(architecture, "final_norm")
    if queries:
        after.append(ParameterTensor("query_position.weight", queries * h, True, queries, Spread.REPLICATED))
    if not architecture.tied_embeddings:
        after.append(ParameterTensor("head.weight", rows * h, True, rows))
    if architecture.head_bias:
        after.append(ParameterTensor("head.bias", rows, False, rows))
    return before, after


_known_outer_tensors = lru_cache(maxsize=256)(_outer_tensors)


def total_elements(tensors: Iterable[ParameterTensor]) -> int:
    """Elements of all of these tensors."""
    return sum(tensor.elements for tensor in tensors)


def chunk_tensors(architecture: Architecture, layout: Layout, *, chunk: int) -> list[ParameterTensor]:
    """The parameter tensors of one chunk on one tensor-parallel rank, in the order in which it reads them first.

    Layers have their numbers in the whole model. A last chunk that is not on the first one's stage has a copy of a
    tied embedding, `head.weight`. A linear layer reads its weight before its bias; a norm its gain before its bias.
    """
    dealt = chunk_layers(architecture.layers, layout)
    t, last = layout.tensor_parallel, chunk == len(dealt) - 1
    before, after = outer_tensors(architecture, tensor_parallel=t)
    head = [tensor for tensor in after if tensor.name.startswith("head.")]
    after = after[: len(after) - len(head)]
    if architecture.tied_embeddings and chunk > 0 and head_stage(layout) > 0:
        head.insert(0, before[0]._replace(name="head.weight"))

    def layers(numbers: Iterable[int], *, top_query: bool) -> list[ParameterTensor]:
        tensors = []
        for number in numbers:
            kind = architecture.of_dense_layers if number < architecture.dense_layers else architecture
            layer = layer_tensors(kind, tensor_parallel=t, expert_parallel=layout.expert_parallel, top_query=top_query)
            tensors += [tensor._replace(name=f"blocks.{number}.{tensor.name}") for tensor in layer]
        return tensors

    numbers = dealt[chunk]
    top = numbers[-1:] if last and architecture.top_query_layer else numbers[:0]
    tensors = before if chunk == 0 else []
    tensors = tensors + layers(numbers[: len(numbers) - len(top)], top_query=False)
    return tensors + after + layers(top, top_query=True) + head if last else tensors
