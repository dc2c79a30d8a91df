"""A step on its machine: the messages of a rank over its links, and matrix multiplications under the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reference_runs.run import Workload
from suite.predict.analytic.collective_time import axis_groups, collective_seconds
from suite.predict.analytic.layer_time import product_times
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.process_groups import Traffic, axes_in_node, group_ranks, key_value_copies
from suite.predict.analytic.stage_layers import layer_kinds


class LinkTraffic(NamedTuple):
    """A rank's messages of one kind of collective.

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
    groups = axis_groups(layout, machine, head_copies=copies, mixture=workload.architecture)
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


class RooflinePoint(NamedTuple):
    """The products of one part of a layer, forward.

    Args:
        sizes: M, N and K of each; None: a kernel that is no single product.
        intensity: flop for each least byte.
        rate: flop per second that are predicted.
        ridge: flop a byte from which on the arithmetic limits, in the format that they are computed in.
        seconds: of one micro-batch, forward and backward, in all layers of the model on one rank of each stage.
    """

    part: str
    products: int
    sizes: tuple[int, int, int] | None
    intensity: float
    rate: float
    ridge: float
    seconds: float


def roofline_points(workload: Workload, machine: Machine) -> list[RooflinePoint]:
    """The products that the predicted time is made of, those of layers of each kind apart."""
    architecture, recipe, layout = workload
    kinds = layer_kinds(architecture)
    points: list[RooflinePoint] = []
    for index, (kind, layers) in enumerate(kinds):
        for part, time in product_times(Workload(kind, recipe, layout), machine).items():
            if part == "head" and index:
                continue  # the same one, of no layer
            of = "" if len(kinds) == 1 or part == "head" else (", dense layers" if index == 0 else ", expert layers")
            points.append(
                RooflinePoint(
                    part + of,
                    time.products,
                    time.sizes,
                    time.flop / time.least_bytes,
                    time.flop / time.forward_seconds,
                    time.peak_flop_per_second / machine.memory_bytes_per_second,
                    (time.forward_seconds + time.backward_seconds) * (1 if part == "head" else layers),
                )
            )
    return points
