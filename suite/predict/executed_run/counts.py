"""All figures that arithmetic gives for a run, in one list."""

from __future__ import annotations

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.run import Norm, Objective, Workload
from suite.job.options import DEFAULT_STEP, Averaging, StepOptions
from suite.metrics.figures import Figure, Quantity, with_maximum_over_ranks
from suite.predict.analytic.flop import (
    HARDWARE_CONVENTION,
    MODEL_CONVENTION,
    executed_flop,
    model_flop,
    rank_executed_flop,
    rank_model_flop,
)
from suite.predict.analytic.initial_loss import FIRST_LOSS_REASON, FIRST_LOSS_TOLERANCE, first_loss
from suite.predict.analytic.parameters import parameter_count
from suite.predict.analytic.process_groups import sent_bytes
from suite.predict.executed_run.textbook_gap import textbook_differences
from suite.predict.simulation.gradient_averaging import one_bit_state_bytes
from suite.predict.simulation.pipeline_schedule import flop_durations, idle_fraction
from suite.predict.simulation.rank_position import RankPosition, rank_position
from suite.predict.simulation.state import executed_state
from suite.predict.simulation.supported_layouts import describes_ranks
from suite.predict.simulation.traffic import executed_traffic

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
    architecture, recipe, layout = workload
    samples = recipe.global_batch
    figures = [
        Figure(quantity=Quantity.PARAMETERS, value=parameter_count(architecture)),
        Figure(
            quantity=Quantity.MODEL_FLOP, value=model_flop(architecture, samples=samples), convention=MODEL_CONVENTION
        ),
        Figure(
            quantity=Quantity.HARDWARE_FLOP,
            value=executed_flop(architecture, layout, samples=samples, hidden_dropout=recipe.hidden_dropout),
            convention=HARDWARE_CONVENTION,
        ),
    ]
    if architecture.norm is not Norm.DEEP_NORM and recipe.objective is Objective.CAUSAL_LM:
        figures.append(
            Figure(
                quantity=Quantity.FIRST_LOSS,
                value=first_loss(architecture, recipe),
                tolerance=FIRST_LOSS_TOLERANCE,
                why=FIRST_LOSS_REASON,
            )
        )
    return figures


def rank_figures(workload: Workload, options: StepOptions = DEFAULT_STEP) -> list[Figure]:
    """Figures of every rank, for layouts that `describes_ranks`; with their pipeline stage where there are several.

    Parameters and flop of each rank; state bytes and traffic of each rank, after the largest over ranks.
    """
    layout = workload.layout
    known: dict[RankPosition, tuple[list[Figure], list[Figure]]] = {}
    shares: list[Figure] = []
    others: list[Figure] = []
    for rank in range(layout.ranks):
        position = rank_position(layout, rank)
        if position not in known:
            known[position] = (
                _shares(workload, position),
                _state(workload, position, options.averaging) + _traffic(workload, position, options),
            )
        stage = position.stage if layout.pipeline_stages > 1 else None
        for kept, figures in zip((shares, others), known[position], strict=True):
            kept += [msgspec.structs.replace(figure, rank=rank, stage=stage) for figure in figures]
    return shares + with_maximum_over_ranks(others)


def _shares(workload: Workload, position: RankPosition) -> list[Figure]:
    """What a rank has of the job's sums."""
    architecture, recipe, layout = workload
    samples = accumulation(recipe, layout) * layout.micro_batch
    stage, replica = position
    stored = executed_state(workload, stage=stage, replica=replica)
    executed = rank_executed_flop(
        architecture, layout, stage=stage, samples=samples, hidden_dropout=recipe.hidden_dropout
    )
    return [
        Figure(quantity=Quantity.PARAMETERS, value=stored.parameters),
        Figure(
            quantity=Quantity.MODEL_FLOP,
            value=rank_model_flop(architecture, layout, stage=stage, samples=samples),
            convention=MODEL_CONVENTION,
        ),
        Figure(quantity=Quantity.HARDWARE_FLOP, value=executed, convention=HARDWARE_CONVENTION),
    ]


def _state(workload: Workload, position: RankPosition, averaging: Averaging) -> list[Figure]:
    stage, replica = position
    stored = executed_state(workload, stage=stage, replica=replica)
    optimizer_bytes = stored.optimizer_bytes
    if averaging is Averaging.ONE_BIT and workload.layout.data_parallel > 1:
        optimizer_bytes += one_bit_state_bytes(workload.architecture, workload.layout, stage=stage)
    return [
        Figure(quantity=Quantity.WEIGHT_BYTES, value=stored.weight_bytes),
        Figure(quantity=Quantity.GRADIENT_BYTES, value=stored.gradient_bytes),
        Figure(quantity=Quantity.OPTIMIZER_BYTES, value=optimizer_bytes),
    ]


def _traffic(workload: Workload, position: RankPosition, options: StepOptions) -> list[Figure]:
    figures: list[Figure] = []
    total = 0
    traffic = executed_traffic(workload, options, stage=position.stage, replica=position.replica)
    for entry in traffic:
        sent = sent_bytes(entry, workload.layout)
        total += sent
        figures += [
            Figure(
                quantity=quantity,
                value=value,
                axis=entry.axis,
                operation=entry.operation,
                convention=convention,
                why=why,
            )
            for quantity, value, convention, why in (
                (Quantity.PAYLOAD_BYTES, entry.payload_bytes, None, ""),
                (Quantity.MESSAGES, entry.messages, None, ""),
                (Quantity.SENT_BYTES, sent, "ring", PART_OF_SENT_REASON),
            )
        ]
    if figures:
        figures.append(
            Figure(
                quantity=Quantity.SENT_BYTES, value=total, convention="ring", tolerance=SENT_TOLERANCE, why=SENT_REASON
            )
        )
    return figures


def bubble_figure(workload: Workload, *, own_processors: bool) -> Figure:
    """The share of the pipeline's time in which its stages wait, each pass taking as long as its flop.

    Judged where chunks have equal flop: they take equal times then, whatever else a layer does besides its products.
    And where each rank has a processor of its own: a rank that waits for one is idle for another reason.
    """
    architecture, recipe, layout = workload
    durations = flop_durations(architecture, layout, hidden_dropout=recipe.hidden_dropout)
    idle = idle_fraction(layout, durations, micro_batches=accumulation(recipe, layout))
    why = BUBBLE_REASON
    if max(durations.forward) > (1 + EQUAL_WORK) * min(durations.forward):
        why = UNEQUAL_REASON
    elif not own_processors:
        why = SHARED_REASON
    tolerance = BUBBLE_TOLERANCE / idle if why == BUBBLE_REASON else None
    return Figure(quantity=Quantity.BUBBLE_FRACTION, value=idle, tolerance=tolerance, why=why)


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
