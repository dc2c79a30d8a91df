"""Seconds of an optimizer whose state is in the host's memory: gradients there, the update, new weights back."""

from __future__ import annotations

from reference_runs.layout import Layout, Offload
from reference_runs.run import Precision
from suite.predict.analytic.elementwise import smaller
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.memory import BYTES_PER_PARAMETER, WEIGHT_ELEMENT_BYTES

# CPU-Adam on the two Xeon 8168 of a DGX-2: Ren et al. 2021, arXiv 2101.06840, table 4 (known figure, not re-read).
# Assumed for every host: the memory of later ones has about three times the bandwidth.
UPDATED_PARAMETERS, UPDATE_SECONDS = 10e9, 2.57


def has_time(layout: Layout, machine: Machine) -> bool:
    """Whether a time is known of what the layout keeps on the host: of an optimizer's state, over a known link."""
    if layout.offload is Offload.OPTIMIZER:
        return machine.host_bytes_per_second is not None
    return layout.offload is Offload.NONE


def offloaded_update_seconds(
    layout: Layout, precision: Precision, machine: Machine, *, updated: float, micro_batches: int
) -> float:
    """Seconds of a step in which a rank's optimizer step of n parameters is the host's; none of it hidden.

    g n c / B      gradients to the host, c times a step
    u n r          the update: the r ranks of a node share its processors
    w n / B        new weights back

    With g and w bytes of a gradient and a weight, B bytes a second of the host's link, u seconds a parameter. c is 1,
    and the number of micro-batches from ZeRO-2 on, which keeps no gradients on the accelerator.
    Source: Ren et al. 2021, arXiv 2101.06840 (ZeRO-Offload), sections 4 and 5. It hides part of the transfers behind
    the backward pass; the link is taken at its peak.
    """
    assert machine.host_bytes_per_second is not None
    of_node = smaller(layout.ranks, machine.accelerators_per_node)
    times = micro_batches if layout.zero_stage >= 2 else 1
    moved = times * BYTES_PER_PARAMETER[precision].gradients + WEIGHT_ELEMENT_BYTES[precision]
    return updated * (moved / machine.host_bytes_per_second + UPDATE_SECONDS / UPDATED_PARAMETERS * of_node)
