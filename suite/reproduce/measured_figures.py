"""Makes figures of what the ranks reported."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import msgspec

from reference_runs.layout import Layout
from suite.job.events import Finished, Step, StepKind
from suite.job.slice import WITHIN_LAYERS
from suite.job.training_job import Job
from suite.launch.launcher import LaunchOutcome
from suite.metrics.figures import (
    ACTIVATIONS,
    ALLOCATED,
    MEASURED_PASSES,
    Figure,
    Quantity,
    StepTerm,
    of_processes,
    with_maximum_over_ranks,
)
from suite.predict.executed_run.between_nodes import BETWEEN, payload_by_place
from suite.reproduce.store_times import measured_rate


def counted_figures(job: Job, finished: list[Finished], steps: list[list[Step]]) -> list[Figure]:
    """Figures of a launch that ended well, from the report and the steps of every rank.

    Parameters are summed over the ranks that hold different ones: the first of the data-parallel axis, or all where
    ZeRO-3 or 2 shards them. Flop are summed over all ranks. A step takes as long as its slowest rank; the median over
    timed steps is the launch's value. Workers at a parameter store have rates of their own: a step is then the time in
    which all together take a global batch, without terms. The bubble is the share of their pipeline's time in which
    ranks did not compute: the median likewise. Updates, and making samples, are not in that time. With a flush a
    pipeline takes as long as its slowest rank; without, each rank as long as its passes and what it waits for.
    """
    if job.slice is not None:
        return _slice_figures(job, finished, steps)
    step_seconds, spread = _step_seconds(job, steps)
    failures = sorted({report.no_terms for report in finished if report.no_terms})
    spread = "; ".join([spread, *failures])
    first_losses = [own[0].loss for own in steps]
    tokens = job.recipe.global_batch * job.architecture.sequence
    model_flop = sum(report.model_flop for report in finished)
    hardware_flop = sum(report.hardware_flop for report in finished)
    per_accelerator = job.layout.ranks * step_seconds
    sharded, shards = job.layout.zero_stage >= 2, job.layout.sharding_ranks
    counting = [report for report in finished if _copy_index(report, job.layout) < (shards if sharded else 1)]
    job_figures = [
        Figure(quantity=Quantity.PARAMETERS, value=sum(report.own_parameters for report in counting)),
        Figure(quantity=Quantity.MODEL_FLOP, value=model_flop),
        Figure(quantity=Quantity.HARDWARE_FLOP, value=hardware_flop),
        Figure(
            quantity=Quantity.FIRST_LOSS,
            value=first_losses[0] if job.synchronisation is None else statistics.fmean(first_losses),
        ),
        Figure(quantity=Quantity.STEP_SECONDS, value=step_seconds, why=spread),
        *(_term_figures(step_seconds, finished) if job.synchronisation is None else []),
        Figure(quantity=Quantity.TOKENS_PER_SECOND, value=tokens / step_seconds),
        Figure(quantity=Quantity.MODEL_FLOP_PER_SECOND, value=model_flop / per_accelerator),
        Figure(quantity=Quantity.HARDWARE_FLOP_PER_SECOND, value=hardware_flop / per_accelerator),
    ]
    if job.layout.pipeline_stages > 1:
        idle = measured_idle_fraction(finished, flushes=job.layout.flushes)
        job_figures.append(Figure(quantity=Quantity.BUBBLE_FRACTION, value=idle))
        if all(report.pipeline_times for report in finished):  # for the simulation of these
            job_figures.append(Figure(quantity=Quantity.BUBBLE_FRACTION, value=idle, term=MEASURED_PASSES))
    work = [figure for rank, report in enumerate(finished) for figure in _work_figures(rank, report)]
    kept = [figure for rank, report in enumerate(finished) for figure in _rank_figures(rank, report)]
    return (
        job_figures
        + [_on_stage(job, finished, figure) for figure in work]
        + with_maximum_over_ranks([_on_stage(job, finished, figure) for figure in kept])
    )


def _step_seconds(job: Job, steps: list[list[Step]]) -> tuple[float, str]:
    """Seconds of a step, and in words what they are."""
    if job.synchronisation is not None:
        return job.layout.ranks / measured_rate(steps), "of a global batch: workers over the sum of their rates"
    timed = [max(s.seconds for s in at) for at in zip(*steps, strict=True) if at[0].kind is StepKind.TIMED]
    return statistics.median(timed), _spread(timed)


def _spread(timed: list[float]) -> str:
    return f"median of {len(timed)} steps, {min(timed):.4g} to {max(timed):.4g} s" if len(timed) > 1 else "one step"


def _slice_figures(job: Job, finished: list[Finished], steps: list[list[Step]]) -> list[Figure]:
    """Figures of a slice: the counts of each process, and the slowest one's time of one micro-batch and an update."""
    seconds, spread = _step_seconds(job, steps)
    counted = [
        [
            msgspec.structs.replace(figure, rank=None)
            for figure in counted_figures_of_rank(0, report)
            if figure.axis is None or figure.axis in WITHIN_LAYERS
        ]
        for report in finished
    ]
    model, hardware = (
        statistics.fmean(getattr(report, name) for report in finished) for name in ("model_flop", "hardware_flop")
    )
    return [
        *of_processes(counted),
        Figure(quantity=Quantity.STEP_SECONDS, value=seconds, why=spread),
        Figure(quantity=Quantity.MODEL_FLOP_PER_SECOND, value=model / seconds),
        Figure(quantity=Quantity.HARDWARE_FLOP_PER_SECOND, value=hardware / seconds),
    ]


def counted_figures_of_rank(rank: int, report: Finished) -> list[Figure]:
    """Figures of one rank that need no clock, without its stage."""
    return _work_figures(rank, report) + _rank_figures(rank, report)


def _work_figures(rank: int, report: Finished) -> list[Figure]:
    """A rank's part of the job's sums; its parameters include those that several ranks store."""
    quantities = (Quantity.PARAMETERS, Quantity.MODEL_FLOP, Quantity.HARDWARE_FLOP)
    return [Figure(quantity=quantity, value=getattr(report, quantity), rank=rank) for quantity in quantities]


_MEASURED_BY = {
    StepTerm.DATA_LOADING: "clocks around it",
    StepTerm.HOST_DEVICE_COPY: "clocks around it, and copies in the profile that no compute hides",
    StepTerm.BUBBLE: "clocks around every pass of a chunk: what a stage waits, for messages too",
}


def _term_figures(step_seconds: float, finished: list[Finished]) -> list[Figure]:
    """The terms of a step: of the job the mean over ranks, then every rank's own; none where a rank has none.

    The job's add up to `step_seconds`, a rank's own to the median of that rank's steps. A step of the job takes as long
    as its slowest rank: what that is more than the mean of ranks is unexplained too.
    """
    if not all(report.term_seconds for report in finished):
        return []
    mean: dict[str, float] = {
        term: statistics.fmean(report.term_seconds[term] for report in finished) for term in StepTerm
    }
    mean[StepTerm.UNEXPLAINED] = 0.0
    mean[StepTerm.UNEXPLAINED] = step_seconds - sum(mean.values())
    whys = dict.fromkeys(StepTerm, "clocks around the phases, and their parts in a profile of the last two steps")
    whys |= _MEASURED_BY | {StepTerm.UNEXPLAINED: "the step's seconds minus the terms above"}
    by_rank: dict[int | None, Mapping[str, float]] = {None: mean}
    by_rank |= {rank: report.term_seconds for rank, report in enumerate(finished)}
    return [
        Figure(quantity=Quantity.STEP_SECONDS, value=values[term], term=term.value, rank=rank, why=whys[term])
        for rank, values in by_rank.items()
        for term in StepTerm
    ]


def _copy_index(report: Finished, layout: Layout) -> int:
    """The rank's index among those with the same weights."""
    return report.coordinates["dp"] * layout.context_parallel + report.coordinates.get("cp", 0)


def measured_idle_fraction(finished: list[Finished], *, flushes: bool) -> float:
    """Share of the pipelines' time in which their ranks did not compute, median over the timed steps.

    Where a pipeline flushes, its ranks begin a step together, and the first to end waits for the others.
    """

    def idle(step: int) -> float:
        longest: dict[tuple[int, ...], float] = {}
        for report in finished:
            pipeline = _pipeline(report)
            longest[pipeline] = max(longest.get(pipeline, 0.0), report.pipeline_seconds[step])
        whole = sum(longest[_pipeline(each)] if flushes else each.pipeline_seconds[step] for each in finished)
        return 1 - sum(report.worked_seconds[step] for report in finished) / whole

    return statistics.median(idle(step) for step in range(len(finished[0].pipeline_seconds)))


def _pipeline(report: Finished) -> tuple[int, ...]:
    """The rank's coordinates on all axes but the pipeline's."""
    return tuple(index for axis, index in sorted(report.coordinates.items()) if axis != "pp")


def _on_stage(job: Job, finished: list[Finished], figure: Figure) -> Figure:
    if job.layout.pipeline_stages == 1 or figure.rank is None:
        return figure
    return msgspec.structs.replace(figure, stage=finished[figure.rank].coordinates["pp"])


_CONVENTIONS = {
    Quantity.WEIGHT_BYTES: None,
    Quantity.GRADIENT_BYTES: None,
    Quantity.OPTIMIZER_BYTES: None,
    Quantity.ACTIVATION_BYTES: ACTIVATIONS,
    Quantity.PEAK_BYTES: ALLOCATED,
}  # of the bytes that a rank reports


def _rank_figures(rank: int, report: Finished) -> list[Figure]:
    figures = [
        Figure(quantity=quantity, value=getattr(report, quantity), rank=rank, convention=convention)
        for quantity, convention in _CONVENTIONS.items()
    ]
    figures += [
        Figure(quantity=quantity, value=value, rank=rank)
        for quantity, value in (
            (Quantity.WEIGHT_VERSIONS, report.weight_versions),
            (Quantity.STALENESS, report.staleness),
        )
        if value is not None
    ]
    for collective in report.collectives:
        figures += [
            Figure(
                quantity=quantity,
                value=getattr(collective, quantity),
                axis=collective.axis,
                operation=collective.operation,
                rank=rank,
            )
            for quantity in (Quantity.PAYLOAD_BYTES, Quantity.MESSAGES)
        ]
    if report.interface_sent_bytes is not None:
        figures.append(Figure(quantity=Quantity.SENT_BYTES, value=report.interface_sent_bytes, rank=rank))
    return figures


def with_places(figures: list[Figure], layout: Layout, outcome: LaunchOutcome) -> list[Figure]:
    """The figures of a launch on a scheduler's nodes, with what left the nodes and what stayed inside, apart.

    What left is the nodes' interfaces', each read by the node's first rank, and summed. Where ranks share an interface,
    none has a share of its own.
    """
    nodes, finished = outcome.nodes, outcome.finished
    placed = payload_by_place(figures, layout, nodes)
    wires = [finished[node.first_rank].interface_sent_bytes for node in nodes]
    if wires and None not in wires:
        placed.append(Figure(Quantity.SENT_BYTES, sum(wire for wire in wires if wire is not None), term=BETWEEN))
    if any(node.ranks > 1 for node in nodes):
        figures = [figure for figure in figures if figure.quantity is not Quantity.SENT_BYTES]
    return [*figures, *placed]
