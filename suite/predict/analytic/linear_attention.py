"""Linear attention by the gated delta rule, in chunks of positions: products, bytes and what it keeps.

Symbols: T tokens of a micro-batch on a rank, v heads of values of size w and keys of size d (several share one head of
keys, of which there are K columns in all, as of queries), V = v w, C = 64 positions of a chunk, n of the convolution,
t tensor-parallel ranks, e bytes of an element.
Source: Yang et al. 2024, arXiv 2412.06464 (Gated DeltaNet), section 3.3; flash-linear-attention, ops/gated_delta_rule
(known code), and transformers 5, models/qwen3_next/modeling_qwen3_next.py, torch_chunk_gated_delta_rule.
"""

from __future__ import annotations

from reference_runs.run import Architecture
from suite.predict.analytic.elementwise import ceil_division

CHUNK = 64  # positions: of flash-linear-attention's kernels and of transformers' code
FP32 = 4


def linear_input_columns(architecture: Architecture) -> int:
    """Columns of the products before the rule: 2 K + 2 V, and 2 v scalars."""
    return 2 * architecture.query_width + 2 * architecture.context_width + 2 * (architecture.linear_heads or 0)


def linear_products(architecture: Architecture, *, samples: int, heads: int) -> dict[str, tuple[int, int, int, int]]:
    """Products of the rule on so many heads of `samples` sequences: how many, M, N and K, by part.

        attention scores     2 of C x d by d x C     keys with keys, queries with keys
        attention context    C x C by C x w
        attention state      2 of C x d by d x w     what the state predicts, and what it answers
        attention update     d x C by C x w

    of each chunk and head; a sequence has ceil(s / C) chunks. The triangular systems of a chunk, C^2 (d + w) flop by
    substitution, are not counted.
    """
    a = architecture
    d, w = a.linear_key_dim or 0, a.linear_value_dim or 0
    chunks = samples * heads * ceil_division(a.sequence, CHUNK)
    return {
        "attention scores": (2 * chunks, CHUNK, CHUNK, d),
        "attention context": (chunks, CHUNK, w, CHUNK),
        "attention state": (2 * chunks, CHUNK, w, d),
        "attention update": (chunks, d, w, CHUNK),
    }


def linear_forward_flop(architecture: Architecture, *, samples: int) -> dict[str, int]:
    """Flop of `linear_products` in the forward pass of `samples` sequences through one layer, by part."""
    products = linear_products(architecture, samples=samples, heads=architecture.linear_heads or 0)
    return {part: 2 * number * rows * columns * depth for part, (number, rows, columns, depth) in products.items()}


def linear_operator_bytes(architecture: Architecture, *, tokens: int, element: int, ranks: int) -> dict[str, int]:
    """Least bytes of the memory-bound operators of one layer in the forward pass, by operator.

    convolution    2 e T (2 K + V) / t    with its activation
    gated norm     3 e T V / t            context and gate read, their product written
    """
    inputs = (2 * architecture.query_width + architecture.context_width) // ranks
    return {
        "convolution": 2 * element * tokens * inputs,
        "gated norm": 3 * element * tokens * architecture.context_width // ranks,
    }


def linear_activation_bytes(architecture: Architecture, *, tokens: int, element: int, ranks: int) -> dict[str, int]:
    """Bytes that a layer keeps besides queries, keys, values and context, by kind.

    convolution input    e T (2 K + V) / t
    output gate          e T V / t
    gated context        e T V / t           what the projection reads
    chunk systems        e T C v / t         the solved systems of the chunks; states are computed again
    decays and rates     2 * 4 T v / t
    """
    a, heads = architecture, (architecture.linear_heads or 0) // ranks
    values = element * tokens * a.context_width // ranks
    return {
        "convolution input": element * tokens * (2 * a.query_width + a.context_width) // ranks,
        "output gate": values,
        "gated context": values,
        "chunk systems": element * tokens * CHUNK * heads,
        "decays and rates": 2 * FP32 * tokens * heads,
    }


def linear_state_bytes(architecture: Architecture, *, element_bytes: int, tensor_parallel: int = 1) -> int:
    """Bytes of a sequence's state in one layer on one rank: v d w / t, and n - 1 positions of 2 K + V columns."""
    a = architecture
    states = (a.linear_heads or 0) * (a.linear_key_dim or 0) * (a.linear_value_dim or 0)
    inputs = ((a.linear_convolution or 1) - 1) * (2 * a.query_width + a.context_width)
    return element_bytes * (states + inputs) // tensor_parallel
