"""The shapes that the miniatures' operators have on one rank, from their Architecture and Layout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from reference_runs.catalog import miniatures, reference_run
from reference_runs.layout import Layout
from reference_runs.miniature import miniature
from reference_runs.run import Architecture
from suite.predict.analytic.parameters import parameter_count


class Linear(NamedTuple):
    """One linear layer on one rank: tokens of a micro-batch, columns that it gives and takes."""

    tokens: int
    outputs: int
    inputs: int


class Shapes(NamedTuple):
    """What one rank computes, as sizes.

    Args:
        blocks: linear layers of the blocks.
        heads: linear layers to the vocabulary.
        attentions: micro-batch times heads, sequence, head size.
        norms: tokens, hidden size; those of a table's rows too.
        softmaxes: micro-batch times heads times sequence, sequence.
        losses: tokens, vocabulary rows.
        activations: elements between the expansion and the contraction, and of hidden states.
        parameters: of the whole model.
    """

    blocks: frozenset[Linear]
    heads: frozenset[Linear]
    attentions: frozenset[tuple[int, int, int]]
    norms: frozenset[tuple[int, int]]
    softmaxes: frozenset[tuple[int, int]]
    losses: frozenset[tuple[int, int]]
    activations: frozenset[int]
    parameters: frozenset[int]


def shapes(architecture: Architecture, layout: Layout) -> Shapes:
    """The shapes of one rank; the tensor-parallel axis divides what it splits (parts are rounded up)."""
    a, parts = architecture, layout.tensor_parallel
    tokens = layout.micro_batch * a.sequence
    width, heads, rows = (-(-size // parts) for size in (a.ffn_hidden, a.heads, a.padded_vocabulary))
    own_tokens = tokens // parts if layout.sequence_parallel else tokens
    inner = heads * a.head_dim
    expanded = (2 if a.activation.gated else 1) * width
    blocks = {
        Linear(tokens, 3 * inner, a.hidden),
        Linear(tokens, a.hidden, inner),
        Linear(tokens, expanded, a.hidden),
        Linear(tokens, a.hidden, width),
    }
    if a.top_query_layer:
        blocks |= {Linear(tokens, inner, a.hidden), Linear(tokens, 2 * inner, a.hidden)}
    attended = layout.micro_batch * heads
    return Shapes(
        blocks=frozenset(blocks),
        heads=frozenset({Linear(tokens, rows, a.hidden)}),
        attentions=frozenset({(attended, a.sequence, a.head_dim)}),
        norms=frozenset({(own_tokens, a.hidden)}),
        softmaxes=frozenset({(attended * a.sequence, a.sequence)}),
        losses=frozenset({(tokens, rows)}),
        activations=frozenset({tokens * expanded, own_tokens * a.hidden}),
        parameters=frozenset({parameter_count(a)}),
    )


def miniature_layouts(device: str, *, ranks: int) -> Iterator[tuple[str, Architecture, Layout]]:
    """Every miniature in its default layout on 1 to `ranks` ranks, and with as much tensor parallelism as divides its
    heads, feed-forward width and vocabulary."""
    for name, run in miniatures().items():
        recorded = reference_run(run)
        for count in range(1, ranks + 1):
            small = miniature(recorded, device, ranks=count)
            a = small.architecture
            yield name, a, small.layout
            divided = (a.heads, a.ffn_hidden, a.padded_vocabulary, a.sequence)
            if count > 1 and all(size % count == 0 for size in divided):
                yield (
                    name,
                    a,
                    msgspec.structs.replace(
                        small.layout,
                        data_parallel=1,
                        pipeline_stages=1,
                        tensor_parallel=count,
                        sequence_parallel=True,
                        zero_stage=0,
                    ),
                )


def miniature_shapes(device: str, *, ranks: int) -> Shapes:
    """All shapes of the seven miniatures on 1 to `ranks` ranks of a device kind, "cpu" or "cuda"."""
    return united(shapes(architecture, layout) for _, architecture, layout in miniature_layouts(device, ranks=ranks))


def united(several: Iterable[Shapes]) -> Shapes:
    """The union, kind by kind."""
    return Shapes(*(frozenset[object]().union(*kind) for kind in zip(*several, strict=True)))  # type: ignore[arg-type]  # each keeps its kind
