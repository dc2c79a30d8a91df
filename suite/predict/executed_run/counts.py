"""All figures that arithmetic gives for a run, in one list."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.layout import Layout
from reference_runs.run import Objective, Workload
from suite.job.options import DEFAULT_STEP, Averaging, StepOptions
from suite.metrics.figures import Figure, Quantity, with_maximum_over_ranks
from suite.predict.analytic.flop import (
    HARDWARE_CONVENTION,
    MODEL_CONVENTION,
    executed_flop,
    executed_model_flop,
    rank_executed_flop,
    rank_model_flop,
)
from suite.predict.analytic.initial_loss import FIRST_LOSS_REASON, FIRST_LOSS_TOLERANCE, first_loss
from suite.predict.analytic.parameters import parameter_count
from suite.predict.analytic.process_groups import key_value_copies, sent_bytes
from suite.predict.executed_run.textbook_gap import textbook_differences
from suite.predict.simulation.gradient_averaging import one_bit_state_bytes
from suite.predict.simulation.pipeline_schedule import flop_durations, idle_fraction
from suite.predict.simulation.state import RankPosition, executed_state, rank_position
from suite.predict.simulation.supported_layouts import describes_ranks
from suite.predict.simulation.traffic import executed_traffic
from suite.predict.simulation.weight_versions import staleness, stored_versions

SENT_TOLERANCE = 0.03
SENT_REASON = "needs a network interface of the rank's own; the tolerance is for the backend's own bytes"
PART_OF_SENT_REASON = "one part of sent_bytes: a network interface counts their sum alone"
BUBBLE_TOLERANCE = 0.05  # of the step, on either side
BUBBLE_REASON = "within 5 points: stages of equal flop take equal times, and messages none"
SHARED_REASON = "not judged: ranks share processors"
EQUAL_WORK = 0.05  # by how much the flop of two equal chunks may differ
UNEQUAL_REASON = "not judged: chunks of unequal flop, and their times are not known"


def job_figures(workload: Workload) -> list[Figure]:
    """Figures of the whole job under any layout: parameters, flop of a step, first loss.

    The first loss where its formula holds: for a causal model with norms in front.
    """
    architecture, recipe, _ = workload
    samples = recipe.global_batch
    figures = [
        Figure(Quantity.PARAMETERS, parameter_count(architecture)),
        Figure(Quantity.MODEL_FLOP, executed_model_flop(workload, samples=samples), convention=MODEL_CONVENTION),
        Figure(Quantity.HARDWARE_FLOP, executed_flop(workload, samples=samples), convention=HARDWARE_CONVENTION),
    ]
    if architecture.norm.before and recipe.objective is Objective.CAUSAL_LM:
        figures.append(
            Figure(
                Quantity.FIRST_LOSS,
                first_loss(architecture, recipe),
                tolerance=FIRST_LOSS_TOLERANCE,
                why=FIRST_LOSS_REASON,
            )
        )
    return figures


def rank_figures(workload: Workload, options: StepOptions = DEFAULT_STEP) -> list[Figure]:
    """Figures of every rank, for layouts that `describes_ranks`; with their pipeline stage where there are several.

    Parameters and flop of each rank; state bytes and traffic of each rank, after the largest over ranks.
    """

    def state_and_traffic(position: RankPosition) -> list[Figure]:
        return _state(workload, position, options.averaging) + _traffic(workload, position, options)

    shares = of_every_rank(workload.layout, lambda position: _shares(workload, position))
    return shares + with_maximum_over_ranks(of_every_rank(workload.layout, state_and_traffic))


def figures_at(workload: Workload, position: RankPosition, options: StepOptions = DEFAULT_STEP) -> list[Figure]:
    """Figures as `rank_figures` has them, of a rank at one position, without its number."""
    state = _state(workload, position, options.averaging)
    return _shares(workload, position) + state + _traffic(workload, position, options)


def of_every_rank(layout: Layout, figures_at: Callable[[RankPosition], list[Figure]]) -> list[Figure]:
    """The figures of each rank, with its pipeline stage where there are several; ranks alike are computed once."""
    known: dict[RankPosition, list[Figure]] = {}
    figures: list[Figure] = []
    for rank in range(layout.ranks):
        position = rank_position(layout, rank)
        if position not in known:
            known[position] = figures_at(position)
        stage = position.stage if layout.pipeline_stages > 1 else None
        figures += [msgspec.structs.replace(figure, rank=rank, stage=stage) for figure in known[position]]
    return figures


def _shares(workload: Workload, position: RankPosition) -> list[Figure]:
    """A rank's share of the job's sums."""
    stage, replica = position
    workload = workload.at_stage(stage)
    samples = accumulation(workload.recipe, workload.layout) * workload.layout.micro_batch
    stored = executed_state(workload, stage=stage, replica=replica)
    executed = rank_executed_flop(workload, stage=stage, samples=samples)
    return [
        Figure(Quantity.PARAMETERS, stored.parameters),
        Figure(
            Quantity.MODEL_FLOP, rank_model_flop(workload, stage=stage, samples=samples), convention=MODEL_CONVENTION
        ),
        Figure(Quantity.HARDWARE_FLOP, executed, convention=HARDWARE_CONVENTION),
    ]


def _state(workload: Workload, position: RankPosition, averaging: Averaging) -> list[Figure]:
    stage, replica = position
    stored = executed_state(workload, stage=stage, replica=replica)
    optimizer_bytes = stored.optimizer_bytes
    if averaging is Averaging.ONE_BIT and workload.layout.state_ranks > 1:
        optimizer_bytes += one_bit_state_bytes(workload, stage=stage)
    figures = [
        Figure(Quantity.WEIGHT_BYTES, stored.weight_bytes),
        Figure(Quantity.GRADIENT_BYTES, stored.gradient_bytes),
        Figure(Quantity.OPTIMIZER_BYTES, optimizer_bytes),
    ]
    if not workload.layout.flushes:
        figures.append(Figure(Quantity.WEIGHT_VERSIONS, stored_versions(workload, stage=stage).own))
        figures.append(Figure(Quantity.STALENESS, staleness(workload, stage=stage, replica=replica)))
    return figures


def _traffic(workload: Workload, position: RankPosition, options: StepOptions) -> list[Figure]:
    workload = workload.at_stage(position.stage)
    figures: list[Figure] = []
    total, tensor_parallel = 0, workload.layout.tensor_parallel
    copies = key_value_copies(workload.architecture, tensor_parallel=tensor_parallel)
    traffic = executed_traffic(workload, options, stage=position.stage, replica=position.replica)
    for entry in traffic:
        sent = sent_bytes(entry, workload.layout, head_copies=copies)
        total += sent
        figures += [
            Figure(quantity, value, axis=entry.axis, operation=entry.operation, convention=convention, why=why)
            for quantity, value, convention, why in (
                (Quantity.PAYLOAD_BYTES, entry.payload_bytes, None, ""),
                (Quantity.MESSAGES, entry.messages, None, ""),
                (Quantity.SENT_BYTES, sent, "ring", PART_OF_SENT_REASON),
            )
        ]
    if figures:
        figures.append(Figure(Quantity.SENT_BYTES, total, convention="ring", tolerance=SENT_TOLERANCE, why=SENT_REASON))
    return figures


def bubble_figure(workload: Workload, *, own_processors: bool) -> Figure:
    """The share of the pipeline's time in which its stages wait, each pass taking as long as its flop.

    Judged where chunks have equal flop: they take equal times then, whatever else a layer does besides its products.
    And where each rank has a processor of its own: a rank that waits for one is idle for another reason.
    """
    recipe, layout = workload.recipe, workload.layout
    durations = flop_durations(workload)
    idle = idle_fraction(layout, durations, micro_batches=accumulation(recipe, layout))
    why = BUBBLE_REASON
    if max(durations.forward) > (1 + EQUAL_WORK) * min(durations.forward):
        why = UNEQUAL_REASON
    elif not own_processors:
        why = SHARED_REASON
    tolerance = BUBBLE_TOLERANCE / idle if why == BUBBLE_REASON and idle else None
    return Figure(Quantity.BUBBLE_FRACTION, idle, tolerance=tolerance, why=why)


def prediction(workload: Workload, options: StepOptions = DEFAULT_STEP, *, own_processors: bool = True) -> list[Figure]:
    """Every figure that is predicted for this run; quantities that are not in the list are not predicted.

    Args:
        own_processors: whether each rank has a processor of its own, so that the pipeline's times can be judged.

    The payload bytes by which the papers' traffic differs come after the figures of the ranks.
    """
    figures = job_figures(workload)
    if describes_ranks(workload):
        if workload.layout.pipeline_stages > 1:
            figures.append(bubble_figure(workload, own_processors=own_processors))
        figures += rank_figures(workload, options)
        if options.averaging is Averaging.EXACT:  # the textbooks' is
            figures += textbook_differences(workload, options)
    return figures
