"""Memory of serving a model: the key-value cache of a sequence, and what a forward pass of a chunk of prefill holds."""

from __future__ import annotations

from reference_runs.run import Architecture
from suite.predict.analytic.elementwise import larger, smaller
from suite.predict.analytic.linear_attention import linear_state_bytes
from suite.predict.analytic.process_groups import key_width
from suite.predict.analytic.stage_layers import layer_kinds
from suite.predict.analytic.weight_formats import ELEMENT_BYTES

LOGIT_BYTES = ELEMENT_BYTES + 4  # 16 bits as the head computes them, fp32 as they are sampled


def token_cache_bytes(
    architecture: Architecture, *, element_bytes: int = ELEMENT_BYTES, tensor_parallel: int = 1
) -> int:
    """Bytes of key-value cache that a token adds on one tensor-parallel rank.

    With L layers, k key-value heads of size d, t ranks and e bytes an element:
        grouped queries     L e max(k / t, 1) 2 d     multi-query attention has k = 1, multi-head attention k = a
        latent attention    L e (c + r)               compressed keys and values of width c, and r rotated dimensions
        linear attention    0                         a state that no token enlarges

    Fewer key-value heads than ranks are stored on t / k ranks each; the latent state is on every rank.
    Source: Kwon et al. 2023, arXiv 2309.06180, section 3 (800 KB a token of OPT-13B); DeepSeek-AI 2024, arXiv
    2405.04434, table 1 ((d_c + d_R) l elements a token).
    """
    if architecture.key_value_rank is not None:
        columns = architecture.key_value_rank + (architecture.rotary_dim or 0)
    else:
        columns = 2 * key_width(architecture, tensor_parallel=tensor_parallel)
    layers = architecture.layers if architecture.linear_heads is None else architecture.full_layers
    return layers * element_bytes * columns


def held_positions(architecture: Architecture, *, context: int) -> int:
    """Positions that a cache holds of a sequence between two tokens: all, or the window's without the next token."""
    window = architecture.sliding_window
    return context if window is None else smaller(context, window - 1)


def sequence_cache_bytes(
    architecture: Architecture, *, context: int, element_bytes: int = ELEMENT_BYTES, tensor_parallel: int = 1
) -> int:
    """Bytes of key-value cache of one sequence of `context` tokens on one tensor-parallel rank.

    `token_cache_bytes` times the positions that are held: all of them in layers without a window. Blocks of a paged
    cache add less than one block a sequence (vLLM: 16 tokens).
    """
    token = token_cache_bytes(architecture, element_bytes=element_bytes, tensor_parallel=tensor_parallel)
    if architecture.linear_heads is not None:
        state = linear_state_bytes(
            architecture.other_kind, element_bytes=element_bytes, tensor_parallel=tensor_parallel
        )
        return token * context + (architecture.layers - architecture.full_layers) * state
    full, layers = architecture.full_layers, architecture.layers
    return token * (full * context + (layers - full) * held_positions(architecture, context=context)) // layers


def prefill_bytes(architecture: Architecture, *, tokens: int, tensor_parallel: int = 1) -> int:
    """Bytes of activations at the fullest moment of a forward pass of `tokens` tokens without gradients, in 16 bits.

    With T tokens, e = 2 and t ranks, the larger of:
        attention       e T (3 h + (a + 2 k) d / t + a w / t)    residual, normed input and output; query, key, value
                                                                 and context (w: a value's size)
        latent          e T (3 h + q + c + r + (2 a d + a w + a w) / t)   compressed states; query, expanded key, value
        feed-forward    e T (3 h + (g + 1) f / t)                expansion (g = 2 gated), and its activated half
        experts         the same, and e k T (h + (g + 1) x / t)  rows of the k experts of a token, of width x

    Attention is fused and stores no scores; each part's temporaries are freed before the next one. The logits of the
    last token of each sequence are apart (`logit_bytes`). Follows from the order of operators in vLLM's models (known,
    not read again): residual and normed input live beside a part's own tensors. Eager modules hold more: norms and
    rotary positions in fp32.
    """
    h, t = architecture.hidden, tensor_parallel
    context = architecture.context_width // t
    if architecture.key_value_rank is not None:
        compressed = architecture.key_value_rank + (architecture.rotary_dim or 0) + (architecture.query_rank or 0)
        attention = 3 * h + compressed + 2 * architecture.query_width // t + 2 * context
    else:
        attention = 3 * h + architecture.query_width // t + 2 * key_width(architecture, tensor_parallel=t) + context
    halves = (2 if architecture.activation.gated else 1) + 1
    most = attention
    for kind, _ in layer_kinds(architecture):
        if kind.experts is None:
            wide = halves * kind.ffn_hidden // t
        else:
            shared = kind.shared_experts * halves * kind.expert_width // t
            wide = shared + (kind.experts_per_token or 0) * (h + halves * kind.expert_width // t)
        most = larger(most, 3 * h + wide)
    return ELEMENT_BYTES * tokens * most


def logit_bytes(vocabulary: int) -> int:
    """Bytes of the logits of one token: 16 bits from the head, and fp32 for sampling; every rank gathers all."""
    return LOGIT_BYTES * vocabulary
