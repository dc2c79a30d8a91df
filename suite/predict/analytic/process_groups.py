"""Groups of ranks that communicate: their size, what leaves a rank in a ring, and which of them share a node.

Among tensor-parallel ranks too: the width of key-value heads on each, and ranks that have the same one.
"""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.layout import Layout
from reference_runs.run import Architecture
from suite.predict.analytic.elementwise import chosen, larger, smaller


def key_width(architecture: Architecture, *, tensor_parallel: int = 1) -> int:
    """Columns of the keys, and of the values, that one tensor-parallel rank has: max(k / t, 1) d.

    Where there are fewer key-value heads than ranks, each head is on t / k of them. Linear attention has as many
    columns of keys as of queries.
    """
    if architecture.linear:
        return architecture.query_width // tensor_parallel
    return larger(architecture.kv_heads // tensor_parallel, 1) * architecture.head_dim


def key_value_copies(architecture: Architecture, *, tensor_parallel: int) -> int:
    """Tensor-parallel ranks that have the same key-value head: max(t / k, 1)."""
    return larger(tensor_parallel // architecture.kv_heads, 1)


class Traffic(NamedTuple):
    """One kind of collective of one rank in one step."""

    axis: str
    operation: str
    payload_bytes: int
    messages: int


def group_ranks(layout: Layout, axis: str, *, head_copies: int = 1) -> int:
    """Ranks of the group in which an axis communicates: the axis's size, but 2 for "embedding".

    The ranks that hold the same parameters are dp * ep * cp for "dp", and dp * cp for "edp", those of experts. Whole
    experts are shared out over the ranks of tp too, so that these belong to the group of "ep". Hybrid
    sharding divides them into groups: "shard" are the ranks of one, "replicate" those with the same shard in all. Of tp
    ranks, `head_copies` hold the same key-value head, "kv" (see `key_value_copies`). Where stages differ in replicas
    "pp" has all ranks, "embedding" those of both ends, and "dp" those of the stage that is asked for.

    Raises:
        KeyError: an unknown axis.
    """
    sizes = _axis_sizes(layout)
    sizes |= {"edp": sizes["dp"] * sizes["cp"], "embedding": 2, "kv": head_copies}
    sizes["dp"] = sizes["edp"] * sizes["ep"]
    sizes["ep"] = layout.expert_ranks
    if layout.stage_replicas is not None:
        sizes |= {"pp": layout.ranks, "embedding": layout.stage_replicas[0] + layout.stage_replicas[-1]}
    sizes |= {"shard": layout.sharding_ranks, "replicate": layout.shard_copies}
    return sizes[axis]


def _axis_sizes(layout: Layout) -> dict[str, int]:
    return {
        "tp": layout.tensor_parallel,
        "cp": layout.context_parallel,
        "ep": layout.expert_parallel,
        "dp": layout.data_parallel,
        "pp": layout.pipeline_stages,
    }


_PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}  # n - 1 chunks of S / n each
_WHOLE = ("broadcast", "send")


def ring_sent_bytes(operation: str, *, payload_bytes: int, ranks: int) -> int:
    """Bytes that one rank sends for a payload of S bytes in collectives over n ranks, to the nearest byte.

    all_reduce        2 (n - 1) S / n   reduce-scatter, then all-gather: n - 1 chunks of S / n each
    all_gather        (n - 1) S / n     of the output
    reduce_scatter    (n - 1) S / n     of the input
    all_to_all        (n - 1) S / n     of the input: a chunk to each other rank, in no ring
    broadcast, send   S                 passed on once (the last of a broadcast's ring sends nothing); 0 for one rank

    Exact for integers of any size.
    Source: nccl-tests, doc/PERFORMANCE.md.
    Differs from the often quoted 2 S by (n - 1) / n: half at n = 2, 1.6 % at n = 64.

    Raises:
        ValueError: ranks < 1 (not checked in arrays) or an operation without a ring form here.
    """
    if isinstance(ranks, int) and ranks < 1:
        raise ValueError(f"ranks must be at least 1, got {ranks}")
    if operation in _WHOLE:
        return (ranks > 1) * payload_bytes
    if operation not in _PASSES:
        raise ValueError(f"no ring for {operation!r}; allowed: {', '.join((*_PASSES, *_WHOLE))}")
    return (2 * _PASSES[operation] * payload_bytes * (ranks - 1) + ranks) // (2 * ranks)


def sent_bytes(traffic: Traffic, layout: Layout, *, head_copies: int = 1) -> int:
    """Bytes that one rank sends for `traffic` in rings over the group of its axis, to the nearest byte."""
    ranks = group_ranks(layout, traffic.axis, head_copies=head_copies)
    return ring_sent_bytes(traffic.operation, payload_bytes=traffic.payload_bytes, ranks=ranks)


def axes_in_node(layout: Layout, *, accelerators_per_node: int, head_copies: int = 1) -> dict[str, int]:
    """By axis, the ranks of a group that stand in one node.

    min(max(node / stride, 1), size), where stride is the product of the axes before this one in layout.rank_order: the
    distance of neighbours. Exact where strides and node divide one another; otherwise some groups are cut further.
        dp, edp     times those of cp, and dp times those of ep, which the groups span
        ep          times those of tp, which share out whole experts too
        kv          of those of tp, at most the `head_copies` that hold one key-value head
        shard       with hybrid sharding, of dp the first n neighbours, all cp ranks of a sample among them
        replicate   with hybrid sharding, every n-th of dp's
        embedding   2 where all stages stand in the node, else 1

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 3.2 (tensor parallelism inside a node first).

    Raises:
        KeyError: layout.rank_order lacks an axis.
    """
    sizes = _axis_sizes(layout)
    inside: dict[str, int] = {}
    stride = 1
    for name in layout.axis_order:
        inside[name] = smaller(larger(accelerators_per_node // stride, 1), sizes[name])
        stride = stride * sizes[name]
    inside["embedding"] = 1 + (inside["pp"] == sizes["pp"]) * 1
    inside["kv"] = smaller(inside["tp"], head_copies)
    inside.setdefault("ep", 1)
    inside["edp"] = inside["dp"] * inside["cp"]
    inside["dp"] = inside["edp"] * inside["ep"]
    inside["ep"] = inside["ep"] * (inside["tp"] if layout.whole_experts else 1)
    if layout.shard_ranks is not None:
        samples = layout.sharding_ranks // layout.context_parallel
        of_group = smaller(inside["dp"] // inside["cp"], samples)
        inside["shard"] = inside["cp"] * of_group
        inside["replicate"] = larger(inside["dp"] // inside["cp"] // samples, 1)
    return inside


def nearest_in_node(layout: Layout, *, accelerators_per_node: int, head_copies: int = 1) -> dict[str, int]:
    """By axis of `axes_in_node`, the most ranks of a group that any order of ranks puts into one node: min(node, n).

    Of n ranks; those of dp with the axes that their group spans. All stages stand in a node where p <= node.
    """
    axes = ["tp", "cp", "ep", "dp", "pp", "edp"] + (["shard", "replicate"] if layout.shard_ranks is not None else [])
    found = {axis: smaller(accelerators_per_node, group_ranks(layout, axis)) for axis in axes}
    found["embedding"] = 1 + (layout.pipeline_stages <= accelerators_per_node) * 1
    found["kv"] = smaller(found["tp"], head_copies)
    return found


def node_crossing_share(layout: Layout, axis: str, *, accelerators_per_node: int, head_copies: int = 1) -> float:
    """Share of the links of an axis's ring that leave the node: 1 / g with g ranks in a node, 0 where all stand in one.

    A ring of n ranks passes its n / g nodes one after the other, and leaves each once.
    Pipeline stages that do not interleave form a chain: of its p - 1 links p / g - 1 leave the node.
    """
    inside = axes_in_node(layout, accelerators_per_node=accelerators_per_node, head_copies=head_copies)[axis]
    return chosen(inside < group_ranks(layout, axis, head_copies=head_copies), 1 / inside, 0.0)
