"""Ranks that execute the same, and the numbers of micro-batches from which a whole step follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.placement import coordinates
from reference_runs.run import Workload
from suite.job.dry_run_job import Moment, StepCounts
from suite.job.events import CountedCollective, Finished
from suite.predict.simulation.state import executed_state, rank_position


class RankClass(NamedTuple):
    """Ranks of one pipeline stage that execute the same: the first of them, and how many there are."""

    rank: int
    stage: int
    ranks: int


def rank_classes(workload: Workload) -> list[RankClass]:
    """The classes of a layout in the order of their first ranks.

    Of one stage, tensor-parallel ranks have equal parts, and ranks with the same weights execute the same. Shards of
    fully sharded weights may differ: those of one size are alike.
    """
    layout = workload.layout
    first: dict[object, int] = {}
    members: dict[object, int] = {}
    known: dict[object, object] = {}
    for rank in range(layout.ranks):
        position = rank_position(layout, rank)
        if position not in known:
            known[position] = (position.stage, executed_state(workload, stage=position.stage, replica=position.replica))
        kind = known[position]
        first.setdefault(kind, rank)
        members[kind] = members.get(kind, 0) + 1
    return [RankClass(rank, coordinates(layout, rank)["pp"], members[kind]) for kind, rank in first.items()]


def executed_micro_batches(workload: Workload) -> tuple[int, ...]:
    """The numbers of micro-batches of the steps that are executed: of the whole step, or two from which it follows.

    With p pipeline stages and p + 1 micro-batches every stage has as many in flight as it ever has, and goes forward
    between two ways back; without a pipeline 2 accumulate gradients as any number does. One more adds what each further
    one adds. Interleaved stages go in rounds of p.
    """
    layout, whole = workload.layout, accumulation(workload.recipe, workload.layout)
    stages = layout.pipeline_stages
    step = stages if layout.virtual_stages > 1 else 1
    least = 2 * stages if layout.virtual_stages > 1 else max(stages + 1, 3)
    return (whole,) if whole <= least + step else (least, least + step)


def of_whole_step(steps: Sequence[StepCounts], micro_batches: int) -> StepCounts:
    """What a step of so many micro-batches counts: what was executed, or the line through both.

    Every count, and every part of the fullest moment of each phase, is a + b m of m micro-batches (see
    `executed_micro_batches`); which phase is the fullest may change with m. The history is that of the last executed
    step.
    """
    last = steps[-1]
    if last.micro_batches == micro_batches:
        return last
    before, after = steps
    executed = after.micro_batches - before.micro_batches
    more = micro_batches - after.micro_batches

    def on_line(first: int, second: int) -> int:
        return second + (second - first) * more // executed

    def of(name: str) -> int:
        return on_line(getattr(before.counts, name), getattr(after.counts, name))

    earlier = {moment.phase: moment.bytes for moment in before.fullest}
    fullest = [
        Moment(phase, {n: on_line(earlier[phase].get(n, 0), held.get(n, 0)) for n in {**earlier[phase], **held}})
        for phase, held in ((moment.phase, moment.bytes) for moment in after.fullest)
        if phase in earlier
    ]
    counts = msgspec.structs.replace(
        after.counts,
        model_flop=of("model_flop"),
        hardware_flop=of("hardware_flop"),
        peak_bytes=max(moment.total for moment in fullest),
        collectives=list(_on_line(before.counts, after.counts, on_line)),
    )
    return msgspec.structs.replace(after, micro_batches=micro_batches, counts=counts, fullest=fullest)


def _on_line(before: Finished, after: Finished, on_line: Callable[[int, int], int]) -> Iterator[CountedCollective]:
    known = {(each.axis, each.operation): each for each in before.collectives}
    for each in after.collectives:
        first = known.get((each.axis, each.operation), CountedCollective(each.axis, each.operation, 0, 0))
        yield CountedCollective(
            each.axis,
            each.operation,
            on_line(first.payload_bytes, each.payload_bytes),
            on_line(first.messages, each.messages),
        )
