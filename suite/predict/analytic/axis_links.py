"""The link that limits each axis: of a layout's order of ranks, the best of any order, and those of many orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reference_runs.layout import Layout
from suite.predict.analytic.collective_time import Group, group
from suite.predict.analytic.elementwise import chosen
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.process_groups import axes_in_node, group_ranks, nearest_in_node


def axis_groups(layout: Layout, machine: Machine, *, head_copies: int = 1) -> dict[str, Group]:
    """By axis, the ranks that it joins and the link that limits them.

    The two stages that store a tied embedding are neighbours in a node only where all stages are; otherwise the group
    is as far apart as the pipeline.
    """
    per_node = machine.accelerators_per_node
    inside = axes_in_node(layout, accelerators_per_node=per_node, head_copies=head_copies)
    return _groups(layout, machine, inside, head_copies)


def _groups(layout: Layout, machine: Machine, inside: dict[str, int], head_copies: int) -> dict[str, Group]:
    """By axis, the group of which so many ranks stand in a node."""
    sizes = {axis: group_ranks(layout, axis, head_copies=head_copies) for axis in inside}
    if machine.stack.one_ring:  # each group leaves its nodes as if one of its ranks stood in each
        inside = {axis: chosen(ranks >= sizes[axis], ranks, 1) for axis, ranks in inside.items()}
    return {axis: group(machine, ranks=sizes[axis], ranks_in_node=ranks) for axis, ranks in inside.items()}


def best_links(layout: Layout, machine: Machine, *, head_copies: int = 1) -> dict[str, Group]:
    """By axis, the best link that any order of ranks gives it: no order makes a step shorter than these do.

    No order need give every axis its best link at once.
    """
    nearest = nearest_in_node(layout, accelerators_per_node=machine.accelerators_per_node, head_copies=head_copies)
    return _groups(layout, machine, nearest, head_copies)


def joined_links(of_orders: Sequence[Mapping[str, Group]], *, layouts: int) -> dict[str, Group]:
    """By axis, arrays with the links of the first order for so many layouts, then those of the second, and so on."""
    import numpy

    def joined(axis: str) -> Group:
        def column(field: str) -> Any:
            return numpy.concatenate([numpy.broadcast_to(getattr(links[axis], field), layouts) for links in of_orders])

        return Group(column("ranks"), column("bytes_per_second"), column("latency_seconds"))

    return {axis: joined(axis) for axis in of_orders[0]}
