"""Parameters of an architecture: by part, by rank and stage, and tensor by tensor in the order of their use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from reference_runs.layout import Layout, StageAssignment
from reference_runs.placement import chunk_layers
from reference_runs.run import Architecture, Norm, Position


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
    """

    matrices: int
    vectors: int
    replicated: int

    @property
    def all(self) -> int:
        """Elements of all tensors."""
        return self.matrices + self.vectors


def _widths(architecture: Architecture) -> tuple[int, int]:
    """Rows of the fused query, key, value projection, and of the expansion (twice f where it is gated)."""
    rows = architecture.hidden + 2 * architecture.kv_heads * architecture.head_dim
    return rows, (2 if architecture.activation.gated else 1) * architecture.ffn_hidden


def _norm_elements(architecture: Architecture) -> int:
    """Elements of one norm: gain, and bias where it is a LayerNorm and the model has biases."""
    with_bias = architecture.biases and architecture.norm is not Norm.PRE_RMS_NORM
    return architecture.hidden * (2 if with_bias else 1)


def _position_rows(architecture: Architecture) -> tuple[int, int]:
    """Rows of the learned position table before the layers, and of the query table of a top-query layer."""
    learned = architecture.sequence + architecture.extra_positions if architecture.position is Position.LEARNED else 0
    return learned, architecture.sequence if architecture.top_query_layer else 0


def parameter_counts(architecture: Architecture) -> dict[str, int]:
    """Parameters by part; their sum is the model's parameter count.

    With h hidden, L layers, V stored vocabulary rows, f feed-forward width, s positions, k key-value heads of size d,
    g = 2 for a gated activation and 1 otherwise, n = 2 h for a LayerNorm (h without bias, and for an RMSNorm):
        embedding            V h
        position             (s + extra) h (learned positions), s h more for a top-query layer, 0 (ALiBi, rotary)
        embedding norm       n, where there is one
        attention            L (2 h^2 + 2 h k d + 2 h + 2 k d): fused query, key, value, and projection, with biases
        feed-forward         L ((g + 1) h f + g f + h), with biases
        norm                 (2 L + 1) n: two norms a layer and the last one
        head                 V h where it is not the embedding itself

    The sum with f = 4 h, k d = h, tied embeddings and LayerNorms is L (12 h^2 + 13 h) + V h + positions + 2 h.
    Source: BigScience, train/tr11-176B-ml/README.md, layer-size formula; the paper prints 176,247M.
    Differs from the often quoted 12 L h^2 by the embedding and the 13 h: 2.0 % for BLOOM-176B.
    """
    h, f, v = architecture.hidden, architecture.ffn_hidden, architecture.padded_vocabulary
    bias = 1 if architecture.biases else 0
    norm = _norm_elements(architecture)
    attention_rows, expansion_rows = _widths(architecture)
    return {
        "embedding": v * h,
        "position": sum(_position_rows(architecture)) * h,
        "embedding norm": norm if architecture.embedding_norm else 0,
        "attention": architecture.layers * (h * attention_rows + h * h + bias * (attention_rows + h)),
        "feed-forward": architecture.layers * (h * expansion_rows + f * h + bias * (expansion_rows + h)),
        "norm": architecture.layers * 2 * norm + norm,
        "head": 0 if architecture.tied_embeddings else v * h,
    }


def parameter_count(architecture: Architecture) -> int:
    """Parameters of the whole model, stored vocabulary rows included (see `parameter_counts`)."""
    return sum(parameter_counts(architecture).values())


def padding_parameters(architecture: Architecture) -> int:
    """Parameters of stored vocabulary rows that no token has: (V - v) h, twice with untied embeddings.

    With V stored rows and v tokens. Published counts leave them out where padding is the framework's: GPT-2 124M has
    124,439,808 parameters without and 124,475,904 with them.
    """
    tables = 1 if architecture.tied_embeddings else 2
    return tables * (architecture.padded_vocabulary - architecture.vocabulary) * architecture.hidden


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
    On every rank: norms, biases of projection and contraction, learned positions.
    The last stage stores a tied embedding again where it is not the first stage too.

    Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3; Narayanan et al. 2021, arXiv 2104.04473, section 2.3.
    Differs from N / (t p) by the replicated part and by the tables on the outer stages: the fullest rank of BLOOM-176B
    stores 8.5 % more than N / (t p).
    """
    h, v, t = architecture.hidden, architecture.padded_vocabulary, layout.tensor_parallel
    bias = 1 if architecture.biases else 0
    norm = _norm_elements(architecture)
    attention_rows, expansion_rows = _widths(architecture)
    layers = stage_layers(architecture, layout, stage=stage)
    first, last = stage == 0, stage == layout.pipeline_stages - 1
    tables = first * 1 + last * (1 if not architecture.tied_embeddings else 1 - first * 1)
    matrices = layers * (h * (attention_rows + h + expansion_rows + architecture.ffn_hidden) // t) + tables * (
        v * h // t
    )
    before, after = _position_rows(architecture)
    positions = first * (before * h) + last * (after * h)
    replicated = layers * (2 * norm + bias * 2 * h) + last * norm + first * (norm if architecture.embedding_norm else 0)
    vectors = replicated + layers * (bias * (attention_rows + expansion_rows) // t)
    return RankParameters(matrices + positions, vectors, replicated + positions)


def layer_tensors(
    architecture: Architecture, *, tensor_parallel: int = 1, top_query: bool = False
) -> list[ParameterTensor]:
    """The parameter tensors of one layer on one tensor-parallel rank, in the order in which it reads them first.

    Args:
        top_query: whether it is a top-query layer, which has its query's matrix apart.
    """
    h, t = architecture.hidden, tensor_parallel
    attention_rows, expansion_rows = _widths(architecture)
    if top_query:
        attention = _linear(architecture, "attention.query", h // t, h)
        attention += _linear(architecture, "attention.key_value", (attention_rows - h) // t, h)
    else:
        attention = _linear(architecture, "attention.query_key_value", attention_rows // t, h)
    attention += _linear(architecture, "attention.projection", h, h // t)
    feed_forward = _linear(architecture, "feed_forward.expansion", expansion_rows // t, h)
    feed_forward += _linear(architecture, "feed_forward.contraction", h, architecture.ffn_hidden // t)
    attention_norm, feed_forward_norm = _norm(architecture, "attention_norm"), _norm(architecture, "feed_forward_norm")
    if architecture.norm is Norm.DEEP_NORM:
        return attention + attention_norm + feed_forward + feed_forward_norm
    return attention_norm + attention + feed_forward_norm + feed_forward


def _norm(architecture: Architecture, name: str) -> list[ParameterTensor]:
    h, norm = architecture.hidden, _norm_elements(architecture)
    gain = ParameterTensor(f"{name}.weight", h, False, h)
    return [gain, ParameterTensor(f"{name}.bias", norm - h, False, norm - h)] if norm > h else [gain]


def _linear(architecture: Architecture, name: str, rows: int, columns: int) -> list[ParameterTensor]:
    weight = ParameterTensor(f"{name}.weight", rows * columns, True, rows)
    return [weight, ParameterTensor(f"{name}.bias", rows, False, rows)] if architecture.biases else [weight]


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
    head = [] if architecture.tied_embeddings else [after.pop()]
    if architecture.tied_embeddings and chunk > 0:
        head.append(before[0]._replace(name="head.weight"))

    def layers(numbers: Iterable[int], *, top_query: bool) -> list[ParameterTensor]:
        layer = layer_tensors(architecture, tensor_parallel=t, top_query=top_query)
        return [tensor._replace(name=f"blocks.{number}.{tensor.name}") for number in numbers for tensor in layer]

    numbers = dealt[chunk]
    top = numbers[-1:] if last and architecture.top_query_layer else numbers[:0]
    tensors = before if chunk == 0 else []
    tensors = tensors + layers(numbers[: len(numbers) - len(top)], top_query=False)
    return tensors + after + layers(top, top_query=True) + head if last else tensors
