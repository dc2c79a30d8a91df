"""Linear attention, in chunks of positions: products, bytes and what it keeps.

Its rule is the gated delta rule, or that of a state-space model with a scalar decay a head (Mamba-2), whose B, C and x
are keys, queries and values.
Symbols: T tokens of a micro-batch on a rank, v heads of values of size w and keys of size d (several share one head of
keys, of which there are k, K columns in all, as of queries), V = v w, C positions of a chunk (64; of a state-space
model 128), n of the convolution, t tensor-parallel ranks, e bytes of an element.
Source: Yang et al. 2024, arXiv 2412.06464 (Gated DeltaNet), section 3.3; flash-linear-attention, ops/gated_delta_rule
(known code), and transformers 5, models/qwen3_next/modeling_qwen3_next.py, torch_chunk_gated_delta_rule. Dao and Gu
2024, arXiv 2405.21060 (Mamba-2), sections 6 and 7; mamba_ssm, ops/triton/ssd_combined.py (known code, not re-read);
transformers 5, models/nemotron_h/modeling_nemotron_h.py, NemotronHMamba2Mixer.
"""

from __future__ import annotations

from reference_runs.architecture_choices import LinearRule
from reference_runs.run import Architecture
from suite.predict.analytic.elementwise import ceil_division

# positions: of flash-linear-attention's kernels and of transformers' code; chunk_size of Nemotron-H
CHUNKS = {LinearRule.GATED_DELTA: 64, LinearRule.STATE_SPACE: 128}
FP32 = 4


def linear_scalars(architecture: Architecture) -> int:
    """Scalars of a token and head of values that the rule reads: decay and rate; of a state-space model the step."""
    return 1 if architecture.linear_rule is LinearRule.STATE_SPACE else 2


def linear_input_columns(architecture: Architecture) -> int:
    """Columns of the products before the rule: 2 K + 2 V, and `linear_scalars` of v heads."""
    scalars = linear_scalars(architecture) * (architecture.linear_heads or 0)
    return 2 * architecture.query_width + 2 * architecture.context_width + scalars


def linear_products(architecture: Architecture, *, samples: int, heads: int) -> dict[str, tuple[int, int, int, int]]:
    """Products of the rule on so many heads of `samples` sequences: how many, M, N and K, by part.

        attention scores     2 of C x d by d x C     keys with keys, queries with keys
        attention context    C x C by C x w
        attention state      2 of C x d by d x w     what the state predicts, and what it answers
        attention update     d x C by C x w

    of each chunk and head; a sequence has ceil(s / C) chunks. The triangular systems of a chunk, C^2 (d + w) flop by
    substitution, are not counted. A state-space model has scores of queries with keys alone, once for the heads of
    values that share them, and one product with the state, what it answers.
    """
    a, is_delta = architecture, architecture.linear_rule is LinearRule.GATED_DELTA
    d, w, chunk = a.linear_key_dim or 0, a.linear_value_dim or 0, CHUNKS[a.linear_rule]
    chunks = samples * ceil_division(a.sequence, chunk)
    scores = 2 * heads if is_delta else heads * (a.linear_key_heads or 0) // (a.linear_heads or 1)
    return {
        "attention scores": (chunks * scores, chunk, chunk, d),
        "attention context": (chunks * heads, chunk, w, chunk),
        "attention state": ((2 if is_delta else 1) * chunks * heads, chunk, w, d),
        "attention update": (chunks * heads, d, w, chunk),
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


def linear_rule_bytes(architecture: Architecture, *, tokens: int, element: int) -> int:
    """Least bytes that the kernels of the rule read and write in the forward pass: 2 e T (K + V) of tensors.

    Those of a state-space model write the states of all chunks, pass them on and read them, in fp32: 4 * 4 T v d w / C
    more. Source: mamba_ssm, ops/triton/ssd_combined.py, _mamba_chunk_scan_combined_fwd (known code, not re-read).
    """
    a = architecture
    moved = 2 * element * tokens * (a.query_width + a.context_width)
    if a.linear_rule is LinearRule.STATE_SPACE:
        moved += 4 * FP32 * tokens * a.context_width * (a.linear_key_dim or 0) // CHUNKS[a.linear_rule]
    return moved


def linear_activation_bytes(architecture: Architecture, *, tokens: int, element: int, ranks: int) -> dict[str, int]:
    """Bytes that a layer keeps besides its context, by kind.

    convolution input    e T (2 K + V) / t
    output gate          e T V / t
    gated context        e T V / t           what the projection reads
    query, key           e T K / t each
    value                e T V / t
    chunk systems        e T C v / t         the solved systems of the chunks; states are computed again
    decays and rates     2 * 4 T v / t

    Kernels of a state-space model convolve again in the backward pass, and have no systems: in place of the last four
    kinds they keep the step of each head, e T v / t.
    Source: mamba_ssm, ops/triton/ssd_combined.py, MambaSplitConv1dScanCombinedFn (known code, not re-read).
    """
    a, heads = architecture, (architecture.linear_heads or 0) // ranks
    of_token = element * tokens
    keys, values = of_token * a.query_width // ranks, of_token * a.context_width // ranks
    kept = {"convolution input": 2 * keys + values, "output gate": values, "gated context": values}
    if a.linear_rule is LinearRule.STATE_SPACE:
        return kept | {"steps": of_token * heads}
    systems = of_token * CHUNKS[a.linear_rule] * heads
    kept |= {"query": keys, "key": keys, "value": values}
    return kept | {"chunk systems": systems, "decays and rates": 2 * FP32 * tokens * heads}


def linear_state_bytes(architecture: Architecture, *, element_bytes: int, tensor_parallel: int = 1) -> int:
    """Bytes of a sequence's state in one layer on one rank: v d w / t, and n - 1 positions of 2 K + V columns."""
    a = architecture
    states = (a.linear_heads or 0) * (a.linear_key_dim or 0) * (a.linear_value_dim or 0)
    inputs = ((a.linear_convolution or 1) - 1) * (2 * a.query_width + a.context_width)
    return element_bytes * (states + inputs) // tensor_parallel
