"""Activation bytes and peak bytes of every rank as figures, and which of them are judged."""

from __future__ import annotations

from reference_runs.layout import Layout
from reference_runs.placement import coordinates
from reference_runs.run import Workload
from suite.job.options import DEFAULT_OPTIONS, TrainingOptions
from suite.machine.half_precision import Kernels
from suite.metrics.figures import ACTIVATIONS, ALLOCATED, Figure, Quantity, with_maximum_over_ranks
from suite.predict.simulation.step_memory import executed_activation_bytes, executed_peak_bytes
from suite.predict.simulation.supported_layouts import describes_ranks

TOLERANCE = 0.02
ACTIVATION_REASON = "the same operators keep the same tensors; the tolerance is for other versions of them"
PEAK_REASON = "every block of a step but the smallest; communication threads free theirs a little late"
UNPROVEN = "not judged: {} is not proven"


def memory_figures(
    workload: Workload,
    kernels: Kernels,
    script: TrainingOptions = DEFAULT_OPTIONS,
) -> list[Figure]:
    """Activation bytes and peak bytes of each rank, behind the largest over ranks; for layouts that `describes_ranks`.

    No peak where activations are offloaded: what comes back to the device in the backward pass, weights among it, is
    not described.
    Each is a simulation of a step, 0.01 to 0.5 s, so that they do not belong to `prediction`.
    """
    architecture, layout = workload.architecture, workload.layout
    if not describes_ranks(architecture, layout):
        return []
    known: dict[tuple[int, int], tuple[int, int]] = {}
    figures: list[Figure] = []
    for rank in range(layout.ranks):
        place = coordinates(layout, rank)
        stage, replica = alike = place["pp"], place["dp"] if layout.zero_stage >= 2 else 0
        if alike not in known:
            known[alike] = (
                executed_activation_bytes(workload, stage=stage, kernels=kernels, script=script),
                executed_peak_bytes(workload, stage=stage, replica=replica, kernels=kernels, script=script),
            )
        of_stage = stage if layout.pipeline_stages > 1 else None
        activations, peak = known[alike]
        figures.append(
            Figure(
                quantity=Quantity.ACTIVATION_BYTES,
                value=activations,
                rank=rank,
                stage=of_stage,
                convention=ACTIVATIONS,
                tolerance=None if kernels.cuda else TOLERANCE,
                why=UNPROVEN.format("a GPU") if kernels.cuda else ACTIVATION_REASON,
            )
        )
        if script.offloads_activations:
            continue
        unproven = unproven_peak(layout, kernels)
        figures.append(
            Figure(
                quantity=Quantity.PEAK_BYTES,
                value=peak,
                rank=rank,
                stage=of_stage,
                convention=ALLOCATED,
                tolerance=None if unproven else TOLERANCE,
                why=UNPROVEN.format(unproven) if unproven else PEAK_REASON,
            )
        )
    return with_maximum_over_ranks(figures)


def unproven_peak(layout: Layout, kernels: Kernels) -> str | None:
    """What of a run keeps its peak from being judged; None where it was compared with measurements.

    Compared: the miniatures on the CPU, on one rank and on two of each axis. Not GPUs, for want of one. Not ZeRO-2 and
    3 over several ranks: most measurements agree to 0.1 %, but gloo's threads free messages as large as a layer unseen
    by the profiler, which then counts up to 10 % too much (2 ranks, 250,000 parameters, 2026-11-21).
    """
    if kernels.cuda:
        return "a GPU"
    if layout.zero_stage >= 2 and layout.data_parallel > 1:
        return "fully sharded state"
    return None
