"""What a machine can do, as the time model needs it: one frozen record of numbers."""

from __future__ import annotations

import msgspec

from reference_runs.plain_machine import PlainMachine
from suite.predict.gemm import EfficiencyTable, IntensityTable, flat_efficiency


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """One node's accelerators, memories and links: peaks, and the share of each that programs reach.

    Args:
        peak_flop_per_second: dense, of one accelerator, in the dtype of the run.
        memory_bytes: of one accelerator.
        memory_bytes_per_second: peak of one accelerator's memory, reading plus writing.
        matrix_efficiency: share of the peak that matrix products reach, by shape.
        fused_attention_efficiency: share of the peak that a kernel reaches which never stores the scores.
        link_bytes_per_second: peak that one accelerator sends to others of its node, one way.
        link_latency_seconds: of one step of a collective inside a node.
        network_bytes_per_second: peak that a node sends over all its network interfaces, one way.
        network_latency_seconds: of one step of a collective that leaves the node.
        watts: of one accelerator; None: not recorded.
        power_share: of `watts` that training draws on average.
        overlap_share: of the computation that data-parallel traffic may overlap with, the part that hides it.
    """

    peak_flop_per_second: float
    memory_bytes: float
    memory_bytes_per_second: float
    memory_efficiency: float
    matrix_efficiency: EfficiencyTable | IntensityTable
    fused_attention_efficiency: float
    link_bytes_per_second: float
    link_efficiency: float
    link_latency_seconds: float
    network_bytes_per_second: float
    network_efficiency: float
    network_latency_seconds: float
    accelerators_per_node: int
    watts: float | None
    power_share: float
    overlap_share: float

    @property
    def achievable_memory_bytes_per_second(self) -> float:
        """Bytes per second between an accelerator and its memory that programs reach."""
        return self.memory_bytes_per_second * self.memory_efficiency

    @property
    def achievable_link_bytes_per_second(self) -> float:
        """Bytes per second that collectives send from one accelerator inside its node."""
        return self.link_bytes_per_second * self.link_efficiency

    @property
    def achievable_network_bytes_per_second(self) -> float:
        """Bytes per second that collectives send out of one node."""
        return self.network_bytes_per_second * self.network_efficiency


def plain_machine(
    assumed: PlainMachine,
    *,
    peak_flop_per_second: float,
    memory_bytes: float,
    memory_bytes_per_second: float,
    link_bytes_per_second: float,
    network_bytes_per_second: float,
    accelerators_per_node: int,
    watts: float | None,
) -> Machine:
    """The machine of these peaks whose every product, memory and link reaches the one assumed share of its peak."""
    return Machine(
        peak_flop_per_second=peak_flop_per_second,
        memory_bytes=memory_bytes,
        memory_bytes_per_second=memory_bytes_per_second,
        memory_efficiency=assumed.memory_efficiency,
        matrix_efficiency=flat_efficiency(assumed.matrix_efficiency),
        fused_attention_efficiency=assumed.fused_attention_efficiency,
        link_bytes_per_second=link_bytes_per_second,
        link_efficiency=assumed.link_efficiency,
        link_latency_seconds=assumed.link_latency_seconds,
        network_bytes_per_second=network_bytes_per_second,
        network_efficiency=assumed.network_efficiency,
        network_latency_seconds=assumed.network_latency_seconds,
        accelerators_per_node=accelerators_per_node,
        watts=watts,
        power_share=assumed.power_share,
        overlap_share=assumed.overlap_share,
    )
