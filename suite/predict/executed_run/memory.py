"""Activation bytes and peak bytes of every rank as figures, and which of them are judged."""

from __future__ import annotations

from reference_runs.layout import Layout
from reference_runs.run import Workload
from suite.job.options import StepOptions
from suite.machine.half_precision import Kernels
from suite.metrics.figures import ACTIVATIONS, ALLOCATED, Figure, Quantity, with_maximum_over_ranks
from suite.predict.executed_run.counts import of_every_rank
from suite.predict.simulation.rank_position import RankPosition
from suite.predict.simulation.step_memory import executed_activation_bytes, executed_peak_bytes

TOLERANCE = 0.02
ACTIVATION_REASON = "the same operators keep the same tensors; the tolerance is for other versions of them"
PEAK_REASON = "every block of a step but the smallest; communication threads free theirs a little late"
UNPROVEN = "not judged: {} is not proven"


def memory_figures(workload: Workload, options: StepOptions) -> list[Figure]:
    """Activation bytes and peak bytes of each rank, after the largest over ranks; for layouts that `describes_ranks`.

    No peak where activations are offloaded: what comes back to the device in the backward pass, weights among it, is
    not described.
    Each is a simulation of a step, 0.01 to 0.5 s, so that they do not belong to `prediction`.
    """
    kernels = options.kernels
    unproven = unproven_peak(workload.layout, kernels)

    def figures_at(position: RankPosition) -> list[Figure]:
        stage, replica = position
        activations = Figure(
            Quantity.ACTIVATION_BYTES,
            executed_activation_bytes(workload, options, stage=stage),
            convention=ACTIVATIONS,
            tolerance=None if kernels.cuda else TOLERANCE,
            why=UNPROVEN.format("a GPU") if kernels.cuda else ACTIVATION_REASON,
        )
        if options.training.offloads_activations:
            return [activations]
        peak = Figure(
            Quantity.PEAK_BYTES,
            executed_peak_bytes(workload, options, stage=stage, replica=replica),
            convention=ALLOCATED,
            tolerance=None if unproven else TOLERANCE,
            why=UNPROVEN.format(unproven) if unproven else PEAK_REASON,
        )
        return [activations, peak]

    return with_maximum_over_ranks(of_every_rank(workload.layout, figures_at))


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
