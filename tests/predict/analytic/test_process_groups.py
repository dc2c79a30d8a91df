"""Bytes that a rank sends in a ring that is played through, and groups and nodes counted rank by rank."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.layout import Layout
from reference_runs.placement import coordinates
from suite.predict.analytic.process_groups import axes_in_node, group_ranks, node_crossing_share, ring_sent_bytes
from tests.support.strategies import shard_groups


def reduce_scattered(ranks: int) -> tuple[list[list[set[int]]], list[int]]:
    """Chunks of each rank as sets of the contributions they hold, and chunks sent: a ring's n - 1 steps."""
    held = [[{rank} for _ in range(ranks)] for rank in range(ranks)]
    sent = [0] * ranks
    for step in range(ranks - 1):
        messages = [(rank, (rank - step) % ranks, held[rank][(rank - step) % ranks]) for rank in range(ranks)]
        for rank, chunk, content in messages:
            held[(rank + 1) % ranks][chunk] = held[(rank + 1) % ranks][chunk] | content
            sent[rank] += 1
    return held, sent


def all_gathered(held: list[list[set[int]]], ranks: int, owned: int) -> list[int]:
    """Chunks sent while every rank passes on what it holds whole: at first chunk rank + owned, then what arrives."""
    sent = [0] * ranks
    for step in range(ranks - 1):
        messages = [
            (rank, (rank + owned - step) % ranks, held[rank][(rank + owned - step) % ranks]) for rank in range(ranks)
        ]
        for rank, chunk, content in messages:
            held[(rank + 1) % ranks][chunk] = set(content)
            sent[rank] += 1
    return sent


@pytest.mark.parametrize("ranks", range(1, 9))
def test_sent_bytes_equal_a_ring_that_is_played_through(ranks: int) -> None:
    whole = set(range(ranks))
    held, scattered = reduce_scattered(ranks)
    # rank r ends with the whole sum of chunk r + 1
    assert all(held[rank][(rank + 1) % ranks] == whole for rank in range(ranks))
    gathered = all_gathered(held, ranks, owned=1)
    assert all(chunk == whole for chunks in held for chunk in chunks)
    for rank in range(ranks):
        # of a payload of n bytes a chunk is one byte
        assert ring_sent_bytes("reduce_scatter", payload_bytes=ranks, ranks=ranks) == scattered[rank]
        assert ring_sent_bytes("all_gather", payload_bytes=ranks, ranks=ranks) == gathered[rank]
        assert ring_sent_bytes("all_reduce", payload_bytes=ranks, ranks=ranks) == scattered[rank] + gathered[rank]
    # a chunk to each of the others
    assert ring_sent_bytes("all_to_all", payload_bytes=ranks, ranks=ranks) == ranks - 1


def test_what_is_passed_on_whole_leaves_a_rank_once() -> None:
    whole = 10**20 + 1
    for operation in ("broadcast", "send"):
        assert [ring_sent_bytes(operation, payload_bytes=whole, ranks=n) for n in (1, 2, 7)] == [0, whole, whole]


PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


@given(st.sampled_from(sorted(PASSES)), st.integers(1, 1000), st.integers(0, 10**13))
def test_sent_bytes_are_within_half_a_byte_of_the_factor(operation: str, ranks: int, payload: int) -> None:
    sent = ring_sent_bytes(operation, payload_bytes=payload, ranks=ranks)
    passes = PASSES[operation]
    assert abs(2 * ranks * sent - 2 * passes * (ranks - 1) * payload) <= ranks


def test_rings_of_no_ranks_unknown_operations_and_axes_are_refused() -> None:
    for ranks in (0, -1):
        with pytest.raises(ValueError, match=f"ranks must be at least 1, got {ranks}"):
            ring_sent_bytes("all_reduce", payload_bytes=1, ranks=ranks)
    with pytest.raises(ValueError, match="no ring for 'gather'; allowed: all_reduce"):
        ring_sent_bytes("gather", payload_bytes=1, ranks=2)
    with pytest.raises(KeyError, match="sp"):
        group_ranks(Layout(), "sp")


def groups_of_axis(layout: Layout, axes: set[str]) -> list[list[int]]:
    """Ranks of every group that spans `axes`, neighbours in order: coordinates counted out rank by rank."""
    sizes = {
        "tp": layout.tensor_parallel,
        "cp": layout.context_parallel,
        "dp": layout.data_parallel,
        "pp": layout.pipeline_stages,
    }
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(layout.ranks):
        rest, fixed = rank, []
        for axis in layout.rank_order.split("-"):
            rest, coordinate = divmod(rest, sizes[axis])
            if axis not in axes:
                fixed.append(coordinate)
        groups.setdefault(tuple(fixed), []).append(rank)
    return list(groups.values())


POWERS = st.integers(0, 3).map(lambda power: 2**power)


@given(POWERS, POWERS, POWERS, POWERS, POWERS, st.permutations(["tp", "cp", "dp", "pp"]))
def test_ranks_in_a_node_equal_ranks_counted_one_by_one(
    dp: int, tp: int, cp: int, pp: int, node: int, order: list[str]
) -> None:
    layout = Layout(
        data_parallel=dp, tensor_parallel=tp, context_parallel=cp, pipeline_stages=pp, rank_order="-".join(order)
    )
    for axis, axes in {"tp": {"tp"}, "cp": {"cp"}, "dp": {"dp", "cp"}, "pp": {"pp"}}.items():
        inside = axes_in_node(layout, accelerators_per_node=node)[axis]
        share = node_crossing_share(layout, axis, accelerators_per_node=node)
        for group in groups_of_axis(layout, axes):
            nodes = [rank // node for rank in group]
            assert set(Counter(nodes).values()) == {inside}
            # a ring in the order of nodes; one rank alone sends to itself
            ring = sorted(nodes)
            links = sum(ring[place] != ring[place - 1] for place in range(len(ring)))
            assert links == share * len(ring)
    ends = [(group[0] // node, group[-1] // node) for group in groups_of_axis(layout, {"pp"})]
    together = {2 if first == last else 1 for first, last in ends}
    assert together == {axes_in_node(layout, accelerators_per_node=node)["embedding"]}


@given(POWERS, POWERS, POWERS, POWERS, POWERS, st.permutations(["tp", "cp", "dp", "pp"]), st.data())
def test_ranks_of_hybrid_sharding_in_a_node_equal_ranks_counted_one_by_one(
    dp: int, tp: int, cp: int, pp: int, node: int, order: list[str], data: st.DataObject
) -> None:
    layout = Layout(
        data_parallel=dp, tensor_parallel=tp, context_parallel=cp, pipeline_stages=pp, rank_order="-".join(order)
    )
    shards = data.draw(st.sampled_from([*shard_groups(dp, cp), None]))
    if shards is None:
        return
    layout = msgspec.structs.replace(layout, zero_stage=3, shard_ranks=shards)
    members: dict[tuple[object, ...], list[int]] = {}
    for rank in range(layout.ranks):
        index = coordinates(layout, rank)
        place = index["dp"] * cp + index["cp"]
        others = index["tp"], index["pp"]
        members.setdefault(("shard", *others, place // shards), []).append(rank)
        members.setdefault(("replicate", *others, place % shards), []).append(rank)
    inside = axes_in_node(layout, accelerators_per_node=node)
    for (axis, *_), ranks in members.items():
        assert group_ranks(layout, str(axis)) == len(ranks)
        assert set(Counter(rank // node for rank in ranks).values()) == {inside[str(axis)]}
