from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.predict.analytic.collective_time import (
    Group,
    all_reduce_seconds,
    collective_seconds,
    exchanging_group,
    group,
    ring_pass_seconds,
    send_seconds,
    tree_depth,
)
from suite.predict.analytic.process_groups import ring_sent_bytes
from tests.support.machines import A100

RANKS = st.integers(1, 5000)
PAYLOADS = st.integers(0, 10**12)
MESSAGES = st.integers(0, 10**5)
SPLIT = ["all_gather", "reduce_scatter", "all_to_all"]
OPERATIONS = st.sampled_from(["all_reduce", "send", *SPLIT])


def test_a_tree_is_as_deep_as_ranks_can_be_halved() -> None:
    def halvings(ranks: int) -> int:
        return 0 if ranks == 1 else 1 + halvings(-(-ranks // 2))

    assert [tree_depth(ranks) for ranks in range(1, 70)] == [halvings(ranks) for ranks in range(1, 70)]


def played_ring_seconds(ranks: int, passes: int, payload: float, latency: float, bandwidth: float) -> float:
    """A ring that is played through: in each step every rank sends a chunk to the next, which then holds it too.

    After j steps a rank holds the chunks of the j ranks before it, and its own.
    """
    seconds = 0.0
    for _ in range(passes):
        held = [{rank} for rank in range(ranks)]
        while any(len(chunks) < ranks for chunks in held):
            held = [held[rank] | held[rank - 1] for rank in range(ranks)]
            seconds += latency + payload / ranks / bandwidth
    return seconds


@pytest.mark.parametrize("ranks", range(1, 9))
def test_collectives_take_as_long_as_rings_that_are_played_through(ranks: int) -> None:
    """One pass each, and two of a large all-reduce."""
    members = Group(ranks, bytes_per_second=1e9, latency_seconds=1e-9)
    # 14 steps are summed up, and rounded, one by one
    for operation in (*SPLIT, "all_reduce"):
        played = played_ring_seconds(ranks, 2 if operation == "all_reduce" else 1, 1e9, 1e-9, 1e9)
        found = collective_seconds(operation, members, payload_bytes=10**9, messages=1)
        assert found == pytest.approx(played, rel=1e-14, abs=0), operation


@given(st.sampled_from([(8, 8), (8, 4), (16, 4), (64, 8), (64, 1), (2, 1), (1, 1)]), st.floats(1e8, 1e13))
def test_an_exchange_sends_each_part_over_the_link_that_it_crosses(sizes: tuple[int, int], network: float) -> None:
    ranks, in_node = sizes
    machine = msgspec.structs.replace(A100, network_bytes_per_second=network, network_contention=0.0)
    link, interface = machine.achievable_link_bytes_per_second, machine.achievable_network_bytes_per_second / 8
    seconds = sum(
        1e9 / ranks / (link if other < in_node else min(link, interface)) for other in range(1, ranks)
    )  # rank 0 sends a part to each other one, and all ranks of a node do so at once
    members = exchanging_group(machine, ranks=ranks, ranks_in_node=in_node)._replace(latency_seconds=0.0)
    found = collective_seconds("all_to_all", members, payload_bytes=1e9, messages=1)
    assert found == pytest.approx(seconds, rel=1e-12, abs=0)


def test_an_exchange_inside_a_node_is_as_fast_as_a_ring_and_between_nodes_it_is_slower() -> None:
    for ranks, in_node in ((8, 8), (4, 4)):
        assert exchanging_group(A100, ranks=ranks, ranks_in_node=in_node) == group(
            A100, ranks=ranks, ranks_in_node=in_node
        )
    rates = [exchanging_group(A100, ranks=64, ranks_in_node=r).bytes_per_second for r in (1, 2, 4, 8)]
    assert rates == sorted(rates)
    # 64 ranks on 8 nodes send 56 of 63 parts over an eighth of the interfaces, a ring leaves each node once
    ring = group(A100, ranks=64, ranks_in_node=8).bytes_per_second
    assert 6 < ring / rates[-1] < 8


def test_a_small_all_reduce_is_a_tree() -> None:
    # 64 ranks: up 6 levels and down 6, not 126 steps of a ring
    members = Group(64, bytes_per_second=math.inf, latency_seconds=1.0)
    assert all_reduce_seconds(members, payload_bytes=8, messages=1) == 12.0
    # and 2 or 3 ranks are a ring of 2 or 4 steps, a tree of 2 or 4
    assert all_reduce_seconds(members._replace(ranks=2), payload_bytes=8, messages=1) == 2.0
    assert all_reduce_seconds(members._replace(ranks=3), payload_bytes=8, messages=1) == 4.0


@given(OPERATIONS, RANKS, PAYLOADS)
def test_without_latency_seconds_are_the_bytes_that_a_ring_sends_over_the_bandwidth(
    operation: str, ranks: int, payload: int
) -> None:
    seconds = collective_seconds(operation, Group(ranks, 1e9, 0.0), payload_bytes=payload, messages=3)
    # a tree sends 2 S where a ring sends less, so it never wins; four roundings on either side
    sent = ring_sent_bytes(operation, payload_bytes=payload * ranks, ranks=ranks) / ranks
    assert seconds == pytest.approx(sent / 1e9, rel=1e-15 * 8, abs=0)


@given(OPERATIONS, PAYLOADS, MESSAGES)
def test_a_group_of_one_rank_takes_no_time(operation: str, payload: int, messages: int) -> None:
    assert collective_seconds(operation, Group(1, 1e9, 1.0), payload_bytes=payload, messages=messages) == 0


@given(OPERATIONS, RANKS, PAYLOADS, MESSAGES, st.floats(0, 1), st.floats(1e3, 1e13), st.floats(1e3, 1e13))
def test_a_collective_is_never_slower_over_a_faster_link(
    operation: str, ranks: int, payload: int, messages: int, latency: float, a: float, b: float
) -> None:
    slow, fast = (Group(ranks, bandwidth, latency) for bandwidth in sorted((a, b)))
    assert (
        0
        <= collective_seconds(operation, fast, payload_bytes=payload, messages=messages)
        <= collective_seconds(operation, slow, payload_bytes=payload, messages=messages)
        < math.inf
    )
    quick = slow._replace(latency_seconds=latency / 2)
    assert collective_seconds(operation, quick, payload_bytes=payload, messages=messages) <= collective_seconds(
        operation, slow, payload_bytes=payload, messages=messages
    )


@given(OPERATIONS, st.lists(st.tuples(RANKS, PAYLOADS, MESSAGES), min_size=1, max_size=5))
def test_arrays_of_groups_give_what_each_group_gives(operation: str, rows: list[tuple[int, int, int]]) -> None:
    columns: list[Any] = [numpy.array(column, dtype=float) for column in zip(*rows, strict=True)]
    ranks, payloads, messages = columns
    found: Any = collective_seconds(operation, Group(ranks, 1e9, 1e-6), payload_bytes=payloads, messages=messages)
    each = [collective_seconds(operation, Group(n, 1e9, 1e-6), payload_bytes=s, messages=m) for n, s, m in rows]
    assert list(found) == each


def test_an_operation_without_a_time_is_refused() -> None:
    with pytest.raises(ValueError, match="no time for 'gossip'; allowed: all_reduce, all_gather"):
        collective_seconds("gossip", Group(2, 1.0, 1.0), payload_bytes=1, messages=1)


def test_a_group_inside_a_node_has_the_accelerators_own_links() -> None:
    members = group(A100, ranks=8, ranks_in_node=8)
    assert members == (8, A100.achievable_link_bytes_per_second, A100.link_latency_seconds)


@pytest.mark.parametrize("inside", [1, 2, 4, 8])
def test_groups_that_leave_a_node_share_its_interfaces(inside: int) -> None:
    members = group(A100, ranks=64, ranks_in_node=inside)
    # 8 / inside groups stand in each node, and a rank of each sends out
    assert members.bytes_per_second == A100.achievable_network_bytes_per_second * inside / 8
    assert members.latency_seconds == A100.network_latency_seconds
    wide = msgspec.structs.replace(A100, network_bytes_per_second=1e30)  # no faster than the links that lead to it
    assert group(wide, ranks=64, ranks_in_node=inside).bytes_per_second == wide.achievable_link_bytes_per_second


def test_a_send_waits_once_a_message() -> None:
    members = Group(4, bytes_per_second=100.0, latency_seconds=1.0)
    assert send_seconds(members, payload_bytes=700, messages=3) == 3 + 7
    assert ring_pass_seconds(members, payload_bytes=400, messages=5) == 3 * 5 + 3
