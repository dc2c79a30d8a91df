"""Key-value heads of tensor-parallel ranks: their width on each, and ranks that have the same one."""

from __future__ import annotations

from reference_runs.run import Architecture
from suite.predict.analytic.elementwise import larger


def key_width(architecture: Architecture, *, tensor_parallel: int = 1) -> int:
    """Columns of the keys, and of the values, that one tensor-parallel rank has: max(k / t, 1) d.

    Where there are fewer key-value heads than ranks, each head is on t / k of them.
    """
    return larger(architecture.kv_heads // tensor_parallel, 1) * architecture.head_dim


def key_value_copies(architecture: Architecture, *, tensor_parallel: int) -> int:
    """Tensor-parallel ranks that have the same key-value head: max(t / k, 1)."""
    return larger(tensor_parallel // architecture.kv_heads, 1)
