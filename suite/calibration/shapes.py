"""The shapes that the miniatures' operators have on one rank, from their Architecture and Layout."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import msgspec

from reference_runs.catalog import miniatures, reference_run
from reference_runs.layout import Layout
from reference_runs.miniature import miniature
from reference_runs.run import Architecture
from suite.predict.analytic.parameters import parameter_count


class Linear(NamedTuple):
    """A linear layer on one rank: tokens of a micro-batch, output and input features."""

    tokens: int
    outputs: int
    inputs: int


class Shapes(NamedTuple):
    """Sizes of the operators of one rank.

    Args:
        block_layers: linear layers of the transformer blocks.
        output_layers: linear layers from the hidden size to the vocabulary.
        attentions: micro-batch times heads, sequence, head size.
        norms: tokens, hidden size; those of an embedding's rows too.
        softmaxes: micro-batch times heads times sequence, sequence.
        losses: tokens, vocabulary rows.
        activations: elements of the expanded and of the hidden states.
        parameters: of the whole model.
    """

    block_layers: frozenset[Linear]
    output_layers: frozenset[Linear]
    attentions: frozenset[tuple[int, int, int]]
    norms: frozenset[tuple[int, int]]
    softmaxes: frozenset[tuple[int, int]]
    losses: frozenset[tuple[int, int]]
    activations: frozenset[int]
    parameters: frozenset[int]


def shapes(architecture: Architecture, layout: Layout) -> Shapes:
    """The shapes of one rank; the tensor-parallel axis divides what it splits (shards are rounded up)."""
    a, shards = architecture, layout.tensor_parallel
    tokens = layout.micro_batch * a.sequence
    width, heads, kv_heads, rows = (
        -(-size // shards) for size in (a.ffn_hidden, a.heads, a.kv_heads, a.padded_vocabulary)
    )
    norm_tokens = tokens // shards if layout.sequence_parallel else tokens
    attended, inner = layout.micro_batch * heads, heads * a.head_dim
    expanded = (2 if a.activation.gated else 1) * width
    block_layers = {
        Linear(tokens, inner + 2 * kv_heads * a.head_dim, a.hidden),
        Linear(tokens, a.hidden, inner),
        Linear(tokens, expanded, a.hidden),
        Linear(tokens, a.hidden, width),
    }
    if a.top_query_layer:
        block_layers |= {Linear(tokens, inner, a.hidden), Linear(tokens, 2 * inner, a.hidden)}
    return Shapes(
        block_layers=frozenset(block_layers),
        output_layers=frozenset({Linear(tokens, rows, a.hidden)}),
        attentions=frozenset({(attended, a.sequence, a.head_dim)}),
        norms=frozenset({(norm_tokens, a.hidden)}),
        softmaxes=frozenset({(attended * a.sequence, a.sequence)}),
        losses=frozenset({(tokens, rows)}),
        activations=frozenset({tokens * expanded, norm_tokens * a.hidden}),
        parameters=frozenset({parameter_count(a)}),
    )


def miniature_layouts(device: str, *, ranks: int) -> Iterator[tuple[str, Architecture, Layout]]:
    """Every miniature in its default layout on 1 to `ranks` ranks, and with as much tensor parallelism as divides its
    heads, feed-forward width and vocabulary."""
    for name, run in miniatures().items():
        for count in range(1, ranks + 1):
            small = miniature(reference_run(run), device, ranks=count)
            a = small.architecture
            yield name, a, small.layout
            if a.experts is not None:
                continue  # with them the quick calibration of 8 GPUs would take longer than it may
            if count > 1 and not any(size % count for size in (a.heads, a.ffn_hidden, a.padded_vocabulary, a.sequence)):
                split = {"tensor_parallel": count, "sequence_parallel": True}
                rest = {"data_parallel": 1, "pipeline_stages": 1, "zero_stage": 0}
                yield name, a, msgspec.structs.replace(small.layout, **split, **rest)


@cache
def miniature_shapes(device: str, *, ranks: int) -> Shapes:
    """The union of all shapes of the miniatures on 1 to `ranks` ranks of a device kind, "cpu" or "cuda"."""
    each = [shapes(architecture, layout) for _, architecture, layout in miniature_layouts(device, ranks=ranks)]
    return Shapes(*(frozenset[object]().union(*kind) for kind in zip(*each, strict=True)))  # type: ignore[arg-type]  # each keeps its kind
