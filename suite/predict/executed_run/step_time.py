"""Step time as figures, term by term, with the rates that follow from it, on a machine whose profile is known."""

from __future__ import annotations

from collections.abc import Sequence

from reference_runs.placement import coordinates
from reference_runs.run import Workload
from suite.job.options import DEFAULT_OPTIONS, TrainingOptions
from suite.machine.half_precision import Kernels
from suite.machine.timing_tables import Measured
from suite.metrics.figures import Figure, Quantity, StepTerm
from suite.predict.analytic.flop import executed_flop, model_flop
from suite.predict.simulation.step_time import StepSeconds, step_seconds
from suite.predict.simulation.supported_layouts import describes_ranks

REASON = "from this machine's profile; one launch never judges a time"
IN_STEP_REASON = (
    "from this machine's profile: the sum of the step's parts, times the measured-over-modelled correction factor "
    "{:.2f}; one launch never judges a time"
)
MEAN_REASON = "mean over ranks; not judged"


def time_figures(
    measured: Measured,
    workload: Workload,
    *,
    kernels: Kernels,
    compiled: bool,
    script: TrainingOptions = DEFAULT_OPTIONS,
    sample_seconds: float = 0.0,
    cores: int = 1,
    in_step_factor: float = 1.0,
) -> list[Figure]:
    """Step time, its terms (of the job: their mean over ranks), and rates per accelerator; none is judged.

    Nothing for layouts that are not described (see `describes_ranks`).

    Args:
        in_step_factor: see `step_seconds`.

    Raises:
        InputError: the profile lacks an operation.
    """
    architecture, recipe, layout = workload
    if not describes_ranks(architecture, layout):
        return []
    stages = step_seconds(
        measured,
        workload,
        kernels=kernels,
        compiled=compiled,
        script=script,
        sample_seconds=sample_seconds,
        cores=cores,
        in_step_factor=in_step_factor,
    )
    places = [coordinates(layout, rank)["pp"] for rank in range(layout.ranks)]
    step = max(stage.step for stage in stages)
    samples = recipe.global_batch
    model = model_flop(architecture, samples=samples)
    hardware = executed_flop(architecture, layout, samples=samples, hidden_dropout=recipe.hidden_dropout)
    why = REASON if in_step_factor == 1 else IN_STEP_REASON.format(in_step_factor)
    figures = [
        Figure(quantity=quantity, value=value, why=why)
        for quantity, value in (
            (Quantity.STEP_SECONDS, step),
            (Quantity.TOKENS_PER_SECOND, samples * architecture.sequence / step),
            (Quantity.MODEL_FLOP_PER_SECOND, model / (layout.ranks * step)),
            (Quantity.HARDWARE_FLOP_PER_SECOND, hardware / (layout.ranks * step)),
        )
    ]
    of_ranks = [stages[place] for place in places]
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
                stage=places[rank] if layout.pipeline_stages > 1 else None,
            )
            for rank, value in enumerate(values)
        ]
    return figures


def _seconds(of_ranks: Sequence[StepSeconds], term: StepTerm) -> list[float]:
    """Seconds of a term on each rank; nothing is predicted to stay unexplained."""
    if term is StepTerm.UNEXPLAINED:
        return [0.0] * len(of_ranks)
    place = list(StepTerm).index(term)
    return [one[place] for one in of_ranks]
