"""Payload that leaves the nodes of a launch, or stays inside them, by the groups' places; and bytes on wires."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reference_runs.layout import Layout
from reference_runs.placement import coordinates
from suite.job.launch_nodes import LaunchNode
from suite.metrics.figures import Figure, Quantity

BETWEEN, INSIDE = "between nodes", "inside nodes"  # terms of the figures
WIRE_TOLERANCE = 0.03
WIRE_REASON = "what the nodes' interfaces sent; the tolerance is for the backend's own bytes"
_SPANNED = {"dp": ("dp", "cp", "ep"), "edp": ("dp", "cp"), "tp": ("tp",), "cp": ("cp",), "ep": ("ep",), "pp": ("pp",)}


def group_of(layout: Layout, axis: str, rank: int) -> list[int] | None:
    """The ranks with which a rank communicates on an axis, in order; None where this is not described.

    Those whose coordinates differ on the axes that the group spans alone; of "embedding" the first and last stage. Of
    stages with different numbers of replicas only "dp".
    """
    if layout.stage_replicas is not None and axis != "dp":
        return None
    here = coordinates(layout, rank)
    spanned = ("pp",) if axis == "embedding" else _SPANNED.get(axis)
    if spanned is None:
        return None
    fixed = {name: value for name, value in here.items() if name not in spanned}
    places = [coordinates(layout, other) for other in range(layout.ranks)]
    group = [n for n, place in enumerate(places) if all(place[name] == value for name, value in fixed.items())]
    if axis == "embedding":
        group = [n for n in group if places[n]["pp"] in (0, layout.pipeline_stages - 1)]
    return group


def node_numbers(nodes: Sequence[LaunchNode]) -> list[int]:
    """By rank, the number of its node."""
    return [number for number, node in enumerate(nodes) for _ in range(node.ranks)]


def crossing_share(layout: Layout, axis: str, operation: str, rank: int, places: Sequence[int]) -> float | None:
    """Share of what a rank sends in a collective that leaves its node; None where this is not described.

    ring         1 where the next rank of the group is on another node, else 0
    all_to_all   ranks of the group on other nodes, over all others of it
    send         of a pipeline: neighbouring stages on other nodes, over the neighbours; passes forward and backward
                 have as many bytes
    """
    group = group_of(layout, axis, rank)
    if group is None or rank not in group:
        return None
    index, count = group.index(rank), len(group)
    if operation == "all_to_all":
        others = [other for other in group if other != rank]
    elif operation == "send":
        others = [group[n] for n in (index - 1, index + 1) if 0 <= n < count]
    else:
        others = [group[(index + 1) % count]]
    away = sum(places[other] != places[rank] for other in others)
    return away / len(others) if others else 0.0


def payload_by_place(figures: Iterable[Figure], layout: Layout, nodes: Sequence[LaunchNode]) -> list[Figure]:
    """Payload bytes over all ranks, of groups that span nodes and of groups inside one, apart.

    Of predicted figures and of counted ones alike. Empty where a group's place is not described.
    """
    places, sums = node_numbers(nodes), {BETWEEN: 0, INSIDE: 0}
    for figure in figures:
        if figure.quantity is not Quantity.PAYLOAD_BYTES or figure.rank is None or figure.axis is None:
            continue
        group = group_of(layout, figure.axis, figure.rank)
        if group is None:
            return []
        spans = len({places[rank] for rank in group}) > 1
        sums[BETWEEN if spans else INSIDE] += round(figure.value)
    return [Figure(Quantity.PAYLOAD_BYTES, value, term=term) for term, value in sums.items()]


def wire_bytes(figures: Iterable[Figure], layout: Layout, nodes: Sequence[LaunchNode]) -> list[Figure]:
    """Predicted bytes that leave all nodes in a step, from what ranks send in rings; empty where not described."""
    places, total = node_numbers(nodes), 0.0
    for figure in figures:
        if figure.quantity is not Quantity.SENT_BYTES or None in (figure.rank, figure.axis, figure.operation):
            continue
        assert figure.rank is not None
        assert figure.axis is not None
        share = crossing_share(layout, figure.axis, str(figure.operation), figure.rank, places)
        if share is None:
            return []
        total += share * figure.value
    wire = Figure(
        Quantity.SENT_BYTES, round(total), term=BETWEEN, convention="ring", tolerance=WIRE_TOLERANCE, why=WIRE_REASON
    )
    return [wire]
