"""Step time as figures, term by term, with the rates that follow from it, on a machine whose profile is known."""

from __future__ import annotations

from collections.abc import Sequence

from reference_runs.placement import coordinates
from reference_runs.run import Workload
from suite.job.options import StepOptions
from suite.machine.timing_tables import MeasuredTimes
from suite.metrics.figures import Figure, Quantity, StepTerm
from suite.predict.analytic.flop import executed_flop, executed_model_flop
from suite.predict.simulation.step_time import (
    DEFAULT_CONDITIONS,
    StepConditions,
    StepSeconds,
    epilogue_seconds,
    step_seconds,
)

REASON = "from this machine's profile; one launch never judges a time"
CORRECTED_REASON = (
    "from this machine's profile: the sum of the step's parts, times the measured-over-modelled correction factor "
    "{:.2f}; one launch never judges a time"
)
EPILOGUES_REASON = "{} ms of the step are GELU's input, which GEMMs write and read: 0 if arithmetic hides it"
MEAN_REASON = "mean over ranks; not judged"


def time_figures(
    measured: MeasuredTimes, workload: Workload, options: StepOptions, conditions: StepConditions = DEFAULT_CONDITIONS
) -> list[Figure]:
    """Step time, its terms (of the job: their mean over ranks), and rates per accelerator; none is judged.

    For layouts that `describes_ranks`.

    Raises:
        InputError: the profile lacks an operation.
    """
    stages = step_seconds(measured, workload, options, conditions)
    factor = conditions.correction_factor
    step = max(stage.step for stage in stages)
    why = REASON if factor == 1 else CORRECTED_REASON.format(factor)
    if moving := factor * epilogue_seconds(measured, workload, options):
        why += "; " + EPILOGUES_REASON.format(f"{1e3 * moving:,.1f}")
    figures = _rates(workload, step, why)
    layout = workload.layout
    stage_of_rank = [coordinates(layout, rank)["pp"] for rank in range(layout.ranks)]
    of_ranks = [stages[stage] for stage in stage_of_rank]
    for term in StepTerm:
        values = _seconds(of_ranks, term)
        mean = sum(values) / len(values)
        figures.append(Figure(quantity=Quantity.STEP_SECONDS, term=term.value, value=mean, why=MEAN_REASON))
        figures += [
            Figure(
                quantity=Quantity.STEP_SECONDS,
                term=term.value,
                value=value,
                rank=rank,
                stage=stage_of_rank[rank] if layout.pipeline_stages > 1 else None,
            )
            for rank, value in enumerate(values)
        ]
    return figures


def _rates(workload: Workload, step: float, why: str) -> list[Figure]:
    """The step of the job, and what it does in a second."""
    architecture, recipe, layout = workload
    samples = recipe.global_batch
    model, hardware = executed_model_flop(workload, samples=samples), executed_flop(workload, samples=samples)
    return [
        Figure(quantity, value, why=why)
        for quantity, value in (
            (Quantity.STEP_SECONDS, step),
            (Quantity.TOKENS_PER_SECOND, samples * architecture.sequence / step),
            (Quantity.MODEL_FLOP_PER_SECOND, model / (layout.ranks * step)),
            (Quantity.HARDWARE_FLOP_PER_SECOND, hardware / (layout.ranks * step)),
        )
    ]


def _seconds(of_ranks: Sequence[StepSeconds], term: StepTerm) -> list[float]:
    """Seconds of a term on each rank; nothing is predicted to stay unexplained."""
    if term is StepTerm.UNEXPLAINED:
        return [0.0] * len(of_ranks)
    field = list(StepTerm).index(term)
    return [rank[field] for rank in of_ranks]
