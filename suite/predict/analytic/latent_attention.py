"""Multi-head latent attention: keys and values, and queries, expanded from compressed states.

Symbols: T tokens, h hidden, a heads of size d of which r are rotated, values of size w, q and c the ranks to which
queries, and keys with values, are compressed, t tensor-parallel ranks, u = t with sequence parallelism, else 1.
Source: DeepSeek-AI 2024, arXiv 2405.04434, section 2.1, equations 9 to 19.
"""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.run import Architecture


def latent_products(architecture: Architecture, *, tensor_parallel: int = 1) -> dict[str, tuple[int, int]]:
    """Rows and columns of the matrices before a layer's scores on one rank, in the order of their use.

    query compression        q x h           without a rank of queries, query is a d / t x h alone
    query expansion          a d / t x q
    key, value compression   c + r x h       r for the rotated part of the keys, which heads share
    key, value expansion     a (d - r + w) / t x c
    """
    a, t = architecture, tensor_parallel
    assert a.key_value_rank is not None
    compressed, rotated = a.key_value_rank, a.rotary_dim or 0
    products = {"query": (a.query_width // t, a.hidden)}
    if a.query_rank is not None:
        products = {
            "query compression": (a.query_rank, a.hidden),
            "query expansion": (a.query_width // t, a.query_rank),
        }
    expanded = (a.query_width - a.heads * rotated + a.context_width) // t
    return products | {
        "key, value compression": (compressed + rotated, a.hidden),
        "key, value expansion": (expanded, compressed),
    }


def compressed_width(architecture: Architecture) -> int:
    """Columns of the compressed states that are normed: q + c."""
    return (architecture.query_rank or 0) + (architecture.key_value_rank or 0)


class MoreInputs(NamedTuple):
    """By how much what enters an attention's products split by heads is more than the hidden states, a layer.

    Args:
        columns: less than 0 where compressed states are narrower than hidden ones.
        messages: of tensor parallelism, each way.
    """

    columns: int
    messages: int


def more_attention_inputs(architecture: Architecture) -> MoreInputs:
    """Columns that latent attention adds: q, or h where queries are not compressed, c and r in place of h; else 0.

    Source: Megatron-LM, core/transformer/multi_latent_attention.py (compressing matrices duplicated, compressed states
    and the keys' rotated part gathered where ranks have positions of their own).
    """
    if architecture.key_value_rank is None:
        return MoreInputs(0, 0)
    entering = (
        architecture.query_rank or architecture.hidden,
        architecture.key_value_rank,
        architecture.rotary_dim or 0,
    )
    return MoreInputs(sum(entering) - architecture.hidden, len(entering) - 1)
