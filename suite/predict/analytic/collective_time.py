"""Seconds of collectives: steps of a latency each, and bytes over the link that the slowest step crosses.

The link that limits each axis is of a layout's order of ranks, the best of any order, or of many orders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from reference_runs.layout import Layout
from reference_runs.run import Architecture
from suite.predict.analytic.elementwise import chosen, larger, log2, smaller
from suite.predict.analytic.experts import node_copies_share
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.process_groups import axes_in_node, group_ranks, nearest_in_node

LEAST_SECONDS = 1e-300  # no time, but not 0
_RING_PASSES = ("all_gather", "reduce_scatter", "all_to_all")


class Group(NamedTuple):
    """Ranks that communicate, and what the slowest of their links can do for one of them, one way."""

    ranks: int
    bytes_per_second: float
    latency_seconds: float


def group(machine: Machine, *, ranks: int, ranks_in_node: int) -> Group:
    """The group of `ranks`, of which `ranks_in_node` share a node, and the link that limits it.

    Inside one node, the achievable bandwidth of an accelerator's links. Between nodes, with r of its ranks in a node of
    a accelerators, a / r such groups leave the node over the same interfaces, one rank of each sending out at a time:
        min(link, network r / a / (1 + c log2(n / r)))
    where contention c slows a network down with every doubling of the group's nodes.

    Source: derived here. One group over whole nodes (r = a) has all interfaces: NCCL runs a ring through each of them.
    """
    inside = ranks_in_node >= ranks
    link = machine.achievable_link_bytes_per_second
    shared = ranks_in_node * _own_network_bytes_per_second(machine, nodes=ranks / ranks_in_node)
    return Group(
        ranks,
        chosen(inside, link, smaller(link, shared)),
        chosen(inside, machine.link_latency_seconds, machine.network_latency_seconds),
    )


def _own_network_bytes_per_second(machine: Machine, *, nodes: float) -> float:
    """An accelerator's part of its node's interfaces, in a group over so many nodes."""
    contention = 1 + machine.network_contention * log2(larger(nodes, 1.0))
    return machine.achievable_network_bytes_per_second / machine.accelerators_per_node / contention


def exchanging_group(machine: Machine, *, ranks: int, ranks_in_node: int, mixture: Architecture | None = None) -> Group:
    """The group of `ranks` in an all-to-all, with the rate at which one of them sends n - 1 parts to the others.

    (n - 1) / ((r - 1) / link + (n - r) / out), with r of n ranks in a node of a accelerators, where every rank sends
    at once:
        (r - 1) / link    parts for the other ranks of its node, over its own link
        (n - r) / out     parts for other nodes, over its part of their interfaces: network / a, as far as its link
                          carries it, slowed down by contention as in `group`. Where the stack sends a token once to
                          each node (`mixture`), times `node_copies_share`

    Source: derived here. Differs from a ring, which leaves each node once for all ranks in it, by up to r.
    """
    of_ring = group(machine, ranks=ranks, ranks_in_node=ranks_in_node)
    link = machine.achievable_link_bytes_per_second
    out = smaller(link, _own_network_bytes_per_second(machine, nodes=ranks / ranks_in_node))
    copies = 1.0
    if mixture is not None and mixture.experts and machine.stack.sends_once_to_nodes:
        copies = node_copies_share(mixture, nodes=larger(ranks / ranks_in_node, 1.0))
    seconds = (ranks_in_node - 1) / link + copies * (ranks - ranks_in_node) / out
    rate = larger(ranks - 1, 1) / larger(seconds, LEAST_SECONDS)
    return of_ring._replace(bytes_per_second=chosen(ranks_in_node >= ranks, link, rate))


def tree_depth(ranks: int) -> int:
    """Levels below the root of a binary tree over up to 2^20 ranks: ceil(log2 n)."""
    number: Any = ranks
    if isinstance(number, int):
        return (number - 1).bit_length()
    return sum(ranks > 2**level for level in range(20))


def all_reduce_seconds(group: Group, *, payload_bytes: float, messages: float) -> float:
    """Seconds in which n ranks add up `messages` messages of `payload_bytes` together: ring or tree, what is faster.

    ring     2 (n - 1) m a + 2 (n - 1) / n S / B     m messages, a seconds of latency, B bytes a second
    tree     2 log2(n) m a + 2 S / B                 reduce up and broadcast down, in a pipeline of chunks

    Source: nccl-tests, doc/PERFORMANCE.md (ring); Sanders et al. 2009, Parallel Computing 35 (12) (two trees, each rank
    an inner node of one). Rings win large messages by 1 / n of the bytes, trees small ones.
    """
    n = group.ranks
    transfer = 2 * payload_bytes / group.bytes_per_second
    latency = 2 * messages * group.latency_seconds
    return smaller((n - 1) * latency + (n - 1) / n * transfer, tree_depth(n) * latency + transfer)


def ring_pass_seconds(group: Group, *, payload_bytes: float, messages: float) -> float:
    """Seconds of all-gathers (S: their output) or reduce-scatters (S: their input): (n - 1) m a + (n - 1) / n S / B.

    With n ranks, m messages of S bytes together, a seconds of latency and B bytes a second. An all-to-all of S input
    bytes sends as much and, pairwise, in as many steps.
    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    steps = group.ranks - 1
    return steps * messages * group.latency_seconds + steps / group.ranks * payload_bytes / group.bytes_per_second


def send_seconds(group: Group, *, payload_bytes: float, messages: float) -> float:
    """Seconds in which a rank sends `messages` messages of `payload_bytes` together to the next one: m a + S / B."""
    return messages * group.latency_seconds + payload_bytes / group.bytes_per_second


def collective_seconds(operation: str, group: Group, *, payload_bytes: float, messages: float) -> float:
    """Seconds of `messages` collectives of this name; a group of one rank takes none.

    Raises:
        ValueError: an operation without a time here.
    """
    if operation == "all_reduce":
        return all_reduce_seconds(group, payload_bytes=payload_bytes, messages=messages)
    if operation in _RING_PASSES:
        return ring_pass_seconds(group, payload_bytes=payload_bytes, messages=messages)
    if operation == "send":
        seconds = send_seconds(group, payload_bytes=payload_bytes, messages=messages)
        return chosen(group.ranks > 1, seconds, 0.0)
    raise ValueError(f"no time for {operation!r}; allowed: all_reduce, {', '.join(_RING_PASSES)}, send")


def taken_share(machine: Machine, group: Group) -> float:
    """Time that a second of a group's hidden messages takes from computation, over that at usual rates.

    Collectives take multiprocessors and memory's bandwidth by the bytes that they move in a second: over a network
    slower than the usual one of such accelerators, at which `overlap_cost` was fitted, in proportion less. 1 inside a
    node, and on a faster network, whose messages end sooner.

    Source: derived here. Public rates of Llama 2 34B and 70B with FSDP on 128 A100 at 400 Gbit/s a node
    (foundation-model-stack/fms-fsdp, README, 2024) are met to 6 %; taking as much a second as at 1,600 Gbit/s the steps
    were 12 and 14 % longer than published.
    """
    if machine.usual_network_bytes_per_second is None:
        return 1.0
    usual = machine.accelerators_per_node * machine.usual_network_bytes_per_second
    crosses = group.bytes_per_second < machine.achievable_link_bytes_per_second
    return chosen(crosses, smaller(machine.network_bytes_per_second / usual, 1.0), 1.0)


def axis_groups(
    layout: Layout, machine: Machine, *, head_copies: int = 1, mixture: Architecture | None = None
) -> dict[str, Group]:
    """By axis, the ranks that it joins and the link that limits them; `mixture`: the model, where it has experts.

    The two stages that store a tied embedding are neighbours in a node only where all stages are; otherwise the group
    is as far apart as the pipeline.
    """
    per_node = machine.accelerators_per_node
    inside = axes_in_node(layout, accelerators_per_node=per_node, head_copies=head_copies)
    return _groups(layout, machine, inside, head_copies, mixture)


def _groups(
    layout: Layout, machine: Machine, inside: dict[str, int], head_copies: int, mixture: Architecture | None
) -> dict[str, Group]:
    """By axis, the group of which so many ranks stand in a node."""
    sizes = {axis: group_ranks(layout, axis, head_copies=head_copies) for axis in inside}
    if machine.stack.one_ring:  # each group leaves its nodes as if one of its ranks stood in each
        inside = {axis: chosen(ranks >= sizes[axis], ranks, 1) for axis, ranks in inside.items()}
    groups = {axis: group(machine, ranks=sizes[axis], ranks_in_node=ranks) for axis, ranks in inside.items()}
    exchange = exchanging_group(machine, ranks=sizes["ep"], ranks_in_node=inside["ep"], mixture=mixture)
    return groups | {"ep": exchange}


def best_links(
    layout: Layout, machine: Machine, *, head_copies: int = 1, mixture: Architecture | None = None
) -> dict[str, Group]:
    """By axis, the best link that any order of ranks gives it: no order makes a step shorter than these do.

    No order need give every axis its best link at once.
    """
    nearest = nearest_in_node(layout, accelerators_per_node=machine.accelerators_per_node, head_copies=head_copies)
    return _groups(layout, machine, nearest, head_copies, mixture)


def joined_links(of_orders: Sequence[Mapping[str, Group]], *, layouts: int) -> dict[str, Group]:
    """By axis, arrays with the links of the first order for so many layouts, then those of the second, and so on."""
    import numpy

    def joined(axis: str) -> Group:
        def column(field: str) -> Any:
            return numpy.concatenate([numpy.broadcast_to(getattr(links[axis], field), layouts) for links in of_orders])

        return Group(column("ranks"), column("bytes_per_second"), column("latency_seconds"))

    return {axis: joined(axis) for axis in of_orders[0]}
