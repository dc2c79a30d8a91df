"""Seconds of an optimizer's update: on the accelerator, or on a host that has its state in memory."""

from __future__ import annotations

from reference_runs.layout import Layout, Offload
from reference_runs.run import Precision, Workload
from suite.predict.analytic.elementwise import smaller
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.memory import (
    BYTES_PER_PARAMETER,
    WEIGHT_ELEMENT_BYTES,
    expert_shards,
    kept_moment_bytes,
    optimizer_shards,
)
from suite.predict.analytic.memory_bound_operators import update_element_bytes
from suite.predict.analytic.parameters import RankParameters

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


def updated_parameters(rank: RankParameters, layout: Layout) -> float:
    """Number of parameters that a rank's optimizer updates, of which its ranks have so many."""
    of_experts = expert_shards(layout) if layout.zero_stage >= 1 else 1
    return (rank.all - rank.experts) / optimizer_shards(layout) + rank.experts / of_experts


def update_seconds(
    workload: Workload, machine: Machine, *, stage: int, rank: RankParameters, updated: float, micro_batches: int
) -> float:
    """Seconds of the update of `updated` of a rank's parameters, clipping included.

    u b / B      `update_element_bytes` of each at the memory's bandwidth B, moved u times (`update_passes`)
    Muon         `orthogonalisation_seconds` besides
    offloaded    `offloaded_update_seconds` in place of both
    """
    recipe, layout = workload.recipe, workload.layout
    if layout.offload is Offload.OPTIMIZER:
        return offloaded_update_seconds(layout, recipe.precision, machine, updated=updated, micro_batches=micro_batches)
    kept = kept_moment_bytes(workload, stage=stage, parameters=rank.all)
    passed = machine.update_passes * update_element_bytes(recipe.precision, kept=kept) * updated
    seconds = passed / machine.achievable_memory_bytes_per_second
    if recipe.orthogonalises:  # imported for its iterations alone: other predictions start without it
        from suite.predict.analytic.muon import orthogonalisation_seconds

        seconds = seconds + orthogonalisation_seconds(workload, machine, stage=stage)
    return seconds
