"""A rank's messages in a step, with the link that each axis communicates over and the seconds that they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reference_runs.run import Workload
from suite.predict.analytic.collective_time import axis_groups, collective_seconds
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.process_groups import Traffic, axes_in_node, group_ranks, key_value_copies


class LinkTraffic(NamedTuple):
    """What a rank hands to one kind of collective.

    Args:
        ranks: that communicate with each other; of them `ranks_in_node` share a node.
        bytes_per_second: of the slowest link, for one rank, one way.
        seconds: before computation hides any of them.
    """

    axis: str
    operation: str
    payload_bytes: int
    messages: int
    ranks: int
    ranks_in_node: int
    bytes_per_second: float
    latency_seconds: float
    seconds: float

    @property
    def leaves_node(self) -> bool:
        """Whether it crosses the network between nodes."""
        return self.ranks_in_node < self.ranks


def link_traffic(workload: Workload, machine: Machine, traffic: dict[int, list[Traffic]]) -> list[LinkTraffic]:
    """Messages of a rank of the stage whose messages take longest."""
    layout = workload.layout
    copies = key_value_copies(workload.architecture, tensor_parallel=layout.tensor_parallel)
    groups = axis_groups(layout, machine, head_copies=copies)
    inside = axes_in_node(layout, accelerators_per_node=machine.accelerators_per_node, head_copies=copies)

    def of(entries: Sequence[Traffic]) -> list[LinkTraffic]:
        return [
            LinkTraffic(
                *entry,
                group_ranks(layout, entry.axis, head_copies=copies),
                int(inside[entry.axis]),
                groups[entry.axis].bytes_per_second,
                groups[entry.axis].latency_seconds,
                collective_seconds(
                    entry.operation, groups[entry.axis], payload_bytes=entry.payload_bytes, messages=entry.messages
                ),
            )
            for entry in entries
            if entry.payload_bytes
        ]

    stages = [of(entries) for entries in traffic.values()]
    return max(stages, key=lambda rows: sum(row.seconds for row in rows), default=[])
