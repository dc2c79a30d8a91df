"""When a rank of each pipeline stage does what in a predicted step: its passes, messages, waits and update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reference_runs.catalog import accumulation
from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.placement import coordinates
from reference_runs.run import Workload
from suite.job.pipeline_passes import Pass, PassKind
from suite.metrics.figures import StepTerm
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.process_groups import Traffic
from suite.predict.analytic.step_time import StageStep, stage_steps
from suite.predict.analytic.timed_stages import timed_stages
from suite.predict.analytic.traffic import step_traffic
from suite.predict.simulation.pipeline_order import TimedPass
from suite.predict.simulation.pipeline_schedule import flop_durations, timed_passes
from suite.predict.timeline.pass_parts import MessageSeconds, PassParts, StageDurations, stage_messages

MOST_PASSES = 100_000  # of all stages: about 100 MB of a file
SLOWEST_WAIT = "wait for the slowest stage"  # a term of no step: what a faster stage has left of it


class StepSpan(NamedTuple):
    """Something that lasts, in seconds since the step began.

    Args:
        term: of the step, as `predict` prints it; empty: a span around others.
        measured: the term of a measured step; None as with an empty term.
        operation, axis, hidden: of a message, see `PassPart`.
        done: the pass that it is, or is of; None: of the whole step.
        payload_bytes, messages: of a message of the whole step; 0 within passes.
    """

    term: str
    start: float
    seconds: float
    measured: StepTerm | None = None
    operation: str = ""
    axis: str = ""
    hidden: bool = False
    done: Pass | None = None
    payload_bytes: int = 0
    messages: int = 0

    @property
    def end(self) -> float:
        """When it ends."""
        return self.start + self.seconds


class RankTimeline(NamedTuple):
    """The step of a rank of one pipeline stage, for which all ranks of the stage stand: the prediction has them alike.

    Args:
        rank: the first of the stage.
        step: the stage's own terms, and what they are made of.
        passes: in the schedule's order, with what each sends.
        update: from when to when the optimizer runs.
        spans: all that has a term, in no order of time.
    """

    stage: int
    rank: int
    step: StageStep
    is_slowest: bool
    passes: list[TimedPass]
    update: tuple[float, float]
    spans: list[StepSpan]
    traffic: list[Traffic]


def rank_timelines(workload: Workload, machine: Machine, *, where: str) -> list[RankTimeline]:
    """The step of a rank of every pipeline stage.

    Passes run in the schedule's order, each as long as its share of the terms. A stage waits where the schedule, with
    passes that long, makes it wait; together its waits are as long as the bubble of its terms, to which they are
    scaled. The step is as long as the slowest stage's; the others wait for it at the end.

    Args:
        where: the option that asks for them.

    Raises:
        InputError: no time is predicted, passes that wait for each other, or more than `MOST_PASSES`.
    """
    layout = workload.layout
    micro_batches = accumulation(workload.recipe, layout)
    number = 2 * micro_batches * layout.virtual_stages * layout.pipeline_stages
    if number > MOST_PASSES:
        got = f"{number:,} passes of {layout.pipeline_stages} stages"
        allowed = f"{MOST_PASSES:,} or fewer, by a smaller --batch"
        raise InputError("a timeline would be too long", got=got, allowed=allowed, where=where)
    stages = _stages(workload, machine, micro_batches)
    by_chunk = {chunk: stage.parts for stage in stages for chunk in stage.parts.chunks}
    try:
        timed = timed_passes(layout, StageDurations(by_chunk), micro_batches=micro_batches)
    except ValueError as error:
        got = f"{layout.schedule} of {micro_batches} micro-batches on {layout.pipeline_stages} stages"
        raise InputError(str(error), got=got, where=where) from error
    pipeline_end = max(done[-1].end for done in timed)
    # the printed step is that of one of these
    timed_ones = [stages[number] for number in timed_stages(workload.architecture, layout)]
    slowest = max(timed_ones, key=lambda stage: stage.step.time.total_seconds)
    found = []
    for stage in stages:
        wait = slowest.step.time.total_seconds - stage.step.time.total_seconds
        made = _rank_timeline(workload, stage, timed[stage.number], pipeline_end=pipeline_end, slowest_wait=wait)
        found.append(made._replace(is_slowest=stage is slowest))
    return found


class _TimedStage(NamedTuple):
    """A stage of the pipeline: its step, and what it sends and computes in it."""

    number: int
    step: StageStep
    traffic: list[Traffic]
    messages: list[MessageSeconds]
    parts: PassParts


def _stages(workload: Workload, machine: Machine, micro_batches: int) -> list[_TimedStage]:
    """Every stage, in order."""
    layout = workload.layout
    timed = timed_stages(workload.architecture, layout)
    traffic = [
        step_traffic(workload, stage=stage, micro_batches=micro_batches) for stage in range(layout.pipeline_stages)
    ]
    others = {stage: entries for stage, entries in enumerate(traffic) if stage not in timed}
    of_timed = [traffic[stage] for stage in timed]
    found = stage_steps(workload, machine, micro_batches=micro_batches, traffic=of_timed, others=others)
    flop, stages = flop_durations(workload), []
    for number, step in sorted(zip((*timed, *others), found, strict=True)):
        messages = stage_messages(workload, machine, step, traffic[number], stage=number)
        parts = PassParts(workload, step, messages, flop, stage=number, micro_batches=micro_batches)
        stages.append(_TimedStage(number, step, traffic[number], messages, parts))
    return stages


def _rank_timeline(
    workload: Workload, stage: _TimedStage, timed: Sequence[TimedPass], *, pipeline_end: float, slowest_wait: float
) -> RankTimeline:
    """The step of a stage that is over so many seconds before the slowest one's."""
    spans: list[StepSpan] = []
    step, messages, time = stage.step, stage.messages, stage.step.time
    computed, micro_batches = step.computation, accumulation(workload.recipe, workload.layout)
    of_passes = micro_batches * (computed.casts + computed.gradient_casts + computed.casts_again)
    now = _added(spans, "cast", 0.0, time.cast_seconds - of_passes, StepTerm.OPTIMIZER)
    passes, now = _placed_passes(spans, stage, timed, pipeline_end, start=now)
    _hide_data_parallel(spans, workload, messages, passes)
    for each in messages:
        if each.axis in DATA_PARALLEL and each.operation != "all_gather":
            now = _message(spans, "data parallel", now, each)
        elif each.axis == "embedding":
            now = _message(spans, "tied embedding", now, each)
    began = now
    now = _added(spans, "optimizer", now, time.optimizer_seconds, StepTerm.OPTIMIZER)
    update = began, now
    for each in messages:
        if each.axis in DATA_PARALLEL and each.operation == "all_gather":
            now = _message(spans, "data parallel", now, each)
    now = _added(spans, "overhead", now, time.overhead_seconds, StepTerm.OVERHEAD)
    _added(spans, SLOWEST_WAIT, now, slowest_wait, StepTerm.EXPOSED_COMMUNICATION)
    rank = first_rank(workload.layout, stage.number)
    return RankTimeline(stage.number, rank, step, False, passes, update, spans, stage.traffic)


DATA_PARALLEL = ("dp", "edp", "shard", "replicate")


def _added(spans: list[StepSpan], term: str, start: float, seconds: float, measured: StepTerm) -> float:
    """When a span of a term that begins at `start` ends; it is added unless it takes no time."""
    if seconds > 0:
        spans.append(StepSpan(term, start, seconds, measured))
    return start + max(seconds, 0.0)


def _message(spans: list[StepSpan], term: str, start: float, each: MessageSeconds) -> float:
    if each.visible <= 0:
        return start
    spans.append(
        StepSpan(
            term,
            start,
            each.visible,
            StepTerm.EXPOSED_COMMUNICATION,
            each.operation,
            each.axis,
            payload_bytes=each.payload_bytes,
            messages=each.messages,
        )
    )
    return start + each.visible


def _placed_passes(
    spans: list[StepSpan], stage: _TimedStage, timed: Sequence[TimedPass], pipeline_end: float, *, start: float
) -> tuple[list[TimedPass], float]:
    """The passes with the waits between them scaled to the bubble, and when the pipeline ends."""
    bubble = stage.step.time.bubble_seconds
    waited = pipeline_end - sum(each.end - each.start for each in timed)
    factor = bubble / waited if waited > ROUNDED * pipeline_end else 0.0
    now, before, left = start, 0.0, bubble
    passes = []
    for each in timed:
        wait = min(max(each.start - before, 0.0) * factor, left)
        if wait > 0:
            spans.append(StepSpan("bubble", now, wait, StepTerm.BUBBLE))
            left -= wait
        now, before = now + wait, each.end
        began = now
        now = _placed_parts(spans, stage.parts, each.done, now)
        passes.append(TimedPass(each.done, began, now))
    now = _added(spans, "bubble", now, left if left > ROUNDED * bubble else 0.0, StepTerm.BUBBLE)
    return passes, now


ROUNDED = 1e-12  # of seconds that are added up: less is no wait


def _placed_parts(spans: list[StepSpan], parts: PassParts, done: Pass, start: float) -> float:
    """The parts of a pass one after the other; what is hidden lies beside them, as late as the pass allows."""
    now = start
    for part in parts.of(done):
        if part.hidden:
            continue
        spans.append(StepSpan(part.term, now, part.seconds, part.measured, part.operation, part.axis, done=done))
        now += part.seconds
    beside: dict[str, float] = {}
    for part in parts.of(done):
        if part.hidden:
            begins = beside.get(part.term, start)
            spans.append(StepSpan(part.term, begins, part.seconds, None, part.operation, part.axis, True, done))
            beside[part.term] = begins + part.seconds
    return now


def _hide_data_parallel(
    spans: list[StepSpan], workload: Workload, messages: Sequence[MessageSeconds], passes: Sequence[TimedPass]
) -> None:
    """Add the hidden messages of data parallelism.

    ZeRO-0 and 1 reduce beside the last backward passes, and gather, where that is hidden, beside the first forward
    passes, as ZeRO-2 does. ZeRO-2 reduces beside every backward pass, ZeRO-3 gathers and reduces beside every pass.
    """
    zero, begins, ends = workload.layout.zero_stage, passes[0].start, passes[-1].end
    beside = [timed for timed in passes if zero == 3 or timed.done.kind is not PassKind.FORWARD]
    whole, starts = sum(timed.end - timed.start for timed in beside), [timed.start for timed in beside]
    for each in messages:
        if each.axis not in DATA_PARALLEL or each.hidden <= 0:
            continue
        gathers = each.operation == "all_gather"
        hidden = StepSpan("data parallel", begins, each.hidden, None, each.operation, each.axis, hidden=True)
        if zero == 3 or (zero == 2 and not gathers):
            for number, (done, start, end) in enumerate(beside):
                seconds = each.hidden * (end - start) / whole
                spans.append(hidden._replace(start=starts[number], seconds=seconds, done=done))
                starts[number] += seconds
            continue
        if gathers:
            begins += each.hidden
        else:
            ends = max(ends - each.hidden, 0.0)
            hidden = hidden._replace(start=ends)
        spans.append(hidden._replace(payload_bytes=each.payload_bytes, messages=each.messages))


def first_rank(layout: Layout, stage: int) -> int:
    """The first rank of a stage: the one that is 0 on every other axis."""
    return stage * next(rank for rank in range(layout.ranks) if coordinates(layout, rank)["pp"]) if stage else 0


def terms_of(timeline: RankTimeline) -> dict[str, float]:
    """Seconds of each term that the spans add up to, hidden ones left out."""
    found: dict[str, float] = {}
    for span in timeline.spans:
        if not span.hidden:
            found[span.term] = found.get(span.term, 0.0) + span.seconds
    return found
