"""Parameters of an architecture: by part, by rank and stage, and tensor by tensor in the order of their use."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from reference_runs.layout import Layout
from reference_runs.placement import chunk_layers, head_stage
from reference_runs.run import Architecture, Position, Workload
from suite.predict.analytic.layer_parameters import ParameterTensor as ParameterTensor
from suite.predict.analytic.layer_parameters import Spread as Spread
from suite.predict.analytic.layer_parameters import known_layer_sums, layer_sums, norm_tensors, summed_elements
from suite.predict.analytic.layer_parameters import layer_tensors as layer_tensors
from suite.predict.analytic.stage_layers import layer_kinds, stage_layer_kinds


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
                             biases; 2 d L more for norms of each query and key head, (a + k) d L of the projections;
                             a L for attention sinks
        feed-forward         L ((g + 1) h f + g f + h), with biases
        norm                 (2 L + 1) n: two norms a layer and the last one; L + 1 where both branches share theirs
        head                 V h where it is not the embedding itself, and V where it has a bias
    With D layers before L - D with E experts of width x and y shared ones:
        feed-forward         of the D layers alone
        router               (L - D) (h E, and E where a bias balances it; with biases of experts E more)
        experts              (L - D) (E + y) (g + 1) h x, and h where the shared ones have a gate; with biases of
                             experts (L - D) E (g x + h) more
    Linear attention of K columns of queries and V of values, v value heads of size w, a convolution of n positions:
        attention            L (h (2 K + 2 V + 2 v) + n (2 K + V) + 2 v + w + V h); others with a gate h a d more
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


def trained_parameters(workload: Workload, *, stage: int) -> RankParameters:
    """Parameters of a rank of pipeline stage `stage` that are trained: all, or those of adapters alone.

    Adapters of a split matrix are taken to be split too: r (m + n) / t of one of m rows and n columns.
    Source: NVIDIA NeMo, collections/llm/peft, ParallelLinearAdapter (known code, not re-read for this file).
    """
    architecture, recipe, layout = workload
    if recipe.adapter_rank is None:
        return rank_parameters(architecture, layout, stage=stage)
    from suite.predict.analytic.adapters import trained_matrices  # other predictions start without it

    kinds = stage_layer_kinds(architecture, layout, stage=stage)
    elements = sum(
        layers * sum(each.parameters(recipe.adapter_rank) for each in trained_matrices(kind, recipe))
        for kind, layers in kinds
    )
    return RankParameters(elements // layout.tensor_parallel, 0, 0, 0, 0)


def frozen_parameters(workload: Workload, *, stage: int) -> int:
    """Parameters of a rank that are not trained: 0, but all of the model's where adapters are beside them."""
    if workload.recipe.adapter_rank is None:
        return 0
    return rank_parameters(workload.architecture, workload.layout, stage=stage).all


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
    of_layer, outer = (known_layer_sums, _known_outer_sums) if t.__class__ is int else (layer_sums, _outer_sums)
    stored = list(zip(outer(architecture, t), (first, last, last * (1 - first)), strict=True))
    kinds = stage_layer_kinds(architecture, layout, stage=stage)
    stored += [(of_layer(kind, t, layout.expert_parallel), layers) for kind, layers in kinds]
    copied = 0
    if (shared_head := t > architecture.kv_heads) is not False:  # a bool of one layout, or one a row of many
        of_head = 2 * architecture.head_dim * (architecture.hidden + architecture.bias.attention)
        copied = sum(layers for kind, layers in kinds if not kind.linear) * (shared_head * of_head)
    matrices = vectors = replicated = experts = 0
    for sums, times in stored:
        matrices, vectors = matrices + times * sums[0], vectors + times * sums[1]
        replicated, experts = replicated + times * sums[2], experts + times * sums[3]
    return RankParameters(matrices, vectors, replicated, copied, experts)


def _outer_sums(architecture: Architecture, t: int) -> list[tuple[int, int, int, int]]:
    before, after = _outer_tensors(architecture, t)
    return [
        summed_elements(before),
        summed_elements(after),
        summed_elements(before[:1] if architecture.tied_embeddings else []),
    ]


_known_outer_sums = lru_cache(maxsize=256)(_outer_sums)


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
        before += norm_tensors(architecture, "embedding_norm")
    after = norm_tensors(architecture, "final_norm")
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
            is_first = architecture.is_of_first_kind(number)
            kind = architecture.first_kind if is_first else architecture.other_kind
            layer = layer_tensors(kind, tensor_parallel=t, expert_parallel=layout.expert_parallel, top_query=top_query)
            tensors += [tensor._replace(name=f"blocks.{number}.{tensor.name}") for tensor in layer]
        return tensors

    numbers = dealt[chunk]
    top = numbers[-1:] if last and architecture.top_query_layer else numbers[:0]
    tensors = before if chunk == 0 else []
    tensors = tensors + layers(numbers[: len(numbers) - len(top)], top_query=False)
    return tensors + after + layers(top, top_query=True) + head if last else tensors
