"""What the ranks reported, as figures."""

from __future__ import annotations

import statistics

from suite.figures import Figure, Quantity, with_maximum_over_ranks
from suite.job import Finished, Job, Step, StepKind


def counted_figures(job: Job, finished: list[Finished], steps: list[list[Step]]) -> list[Figure]:
    """Figures of a launch that ended well, from the report and the steps of every rank.

    Parameters are summed over the ranks that hold different ones (first of the data-parallel axis). Flop are summed
    over all ranks. A step takes as long as its slowest rank; the median over timed steps is the launch's value.
    """
    timed = [max(s.seconds for s in at) for at in zip(*steps, strict=True) if at[0].kind is StepKind.TIMED]
    step_seconds = statistics.median(timed)
    spread = f"median of {len(timed)} steps, {min(timed):.4g} to {max(timed):.4g} s"
    tokens = job.recipe.global_batch * job.architecture.sequence
    model_flop = sum(report.model_flop for report in finished)
    hardware_flop = sum(report.hardware_flop for report in finished)
    per_accelerator = job.layout.ranks * step_seconds
    job_figures = [
        Figure(
            quantity=Quantity.PARAMETERS,
            value=sum(report.parameters for report in finished if report.coordinates["dp"] == 0),
        ),
        Figure(quantity=Quantity.MODEL_FLOP, value=model_flop),
        Figure(quantity=Quantity.HARDWARE_FLOP, value=hardware_flop),
        Figure(quantity=Quantity.FIRST_LOSS, value=steps[0][0].loss),
        Figure(quantity=Quantity.STEP_SECONDS, value=step_seconds, why=spread),
        Figure(quantity=Quantity.TOKENS_PER_SECOND, value=tokens / step_seconds),
        Figure(quantity=Quantity.MODEL_FLOP_PER_SECOND, value=model_flop / per_accelerator),
        Figure(quantity=Quantity.HARDWARE_FLOP_PER_SECOND, value=hardware_flop / per_accelerator),
    ]
    return job_figures + with_maximum_over_ranks(
        [figure for rank, report in enumerate(finished) for figure in _rank_figures(job, rank, report)]
    )


def _rank_figures(job: Job, rank: int, report: Finished) -> list[Figure]:
    memory = "allocated" if job.device == "cuda" else "resident in the process, libraries included"
    kept = "kept for the backward pass of one micro-batch"
    figures = [
        Figure(quantity=Quantity.WEIGHT_BYTES, value=report.weight_bytes, rank=rank),
        Figure(quantity=Quantity.GRADIENT_BYTES, value=report.gradient_bytes, rank=rank),
        Figure(quantity=Quantity.OPTIMIZER_BYTES, value=report.optimizer_bytes, rank=rank),
        Figure(quantity=Quantity.ACTIVATION_BYTES, value=report.activation_bytes, rank=rank, convention=kept),
        Figure(quantity=Quantity.PEAK_BYTES, value=report.peak_bytes, rank=rank, convention=memory),
    ]
    for collective in report.collectives:
        figures += [
            Figure(
                quantity=quantity,
                value=value,
                axis=collective.axis,
                operation=collective.operation,
                rank=rank,
            )
            for quantity, value in (
                (Quantity.PAYLOAD_BYTES, collective.payload_bytes),
                (Quantity.MESSAGES, collective.messages),
            )
        ]
    if report.interface_sent_bytes is not None:
        figures.append(Figure(quantity=Quantity.SENT_BYTES, value=report.interface_sent_bytes, rank=rank))
    return figures
