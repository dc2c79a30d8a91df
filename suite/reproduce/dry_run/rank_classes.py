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
    """Ranks of one pipeline stage that execute the same: the first of them, and how many there are.

    Args:
        alike: the rank that executes as much more with a further micro-batch; this one itself, or one of another stage.
    """

    rank: int
    stage: int
    ranks: int
    alike: int


def rank_classes(workload: Workload) -> list[RankClass]:
    """The classes of a layout in the order of their first ranks.

    Of one stage, tensor-parallel ranks have equal parts, and ranks with the same weights execute the same. Shards of
    fully sharded weights may differ: those of one size are alike. Stages between the first and the last with as many
    layers differ in the micro-batches in flight alone, so that a further one adds the same to each.
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
    alike: dict[object, int] = {}
    classes = []
    for kind, rank in first.items():
        stage = coordinates(layout, rank)["pp"]
        between = layout.virtual_stages == 1 and 0 < stage < layout.pipeline_stages - 1
        work = ("between", executed_state(workload, stage=stage, replica=0)) if between else rank
        classes.append(RankClass(rank, stage, members[kind], alike.setdefault(work, rank)))
    return classes


def executed_micro_batches(workload: Workload) -> tuple[int, ...]:
    """The numbers of micro-batches of the steps that are executed: of the whole step, or two from which it follows.

    With p pipeline stages and p + 1 micro-batches every stage has as many in flight as it ever has, and goes forward
    between two ways back; without a pipeline 3 have one between the first and the last. One more adds what each further
    one adds. Interleaved stages go in rounds of p.
    """
    layout, whole = workload.layout, accumulation(workload.recipe, workload.layout)
    stages = layout.pipeline_stages
    step = stages if layout.virtual_stages > 1 else 1
    least = 2 * stages if layout.virtual_stages > 1 else max(stages + 1, 3)
    return (whole,) if whole <= least + step else (least, least + step)


def of_whole_step(
    steps: Sequence[StepCounts], micro_batches: int, *, alike: Sequence[StepCounts] | None = None
) -> StepCounts:
    """What a step of so many micro-batches counts: what was executed, or what lies on the line through two steps.

    Every count, and every part of the fullest moment of each phase, is a + b m of m micro-batches (see
    `executed_micro_batches`); which phase is the fullest may change with m. The history is that of the last executed
    step.

    Args:
        alike: the two steps of a rank whose b is the same; None: `steps` are two themselves.
    """
    last = steps[-1]
    if last.micro_batches == micro_batches:
        return last
    before, after = alike or steps
    executed = after.micro_batches - before.micro_batches
    more = micro_batches - last.micro_batches

    def on_line(value: int, first: int, second: int) -> int:
        further, rest = divmod((second - first) * more, executed)
        if rest:
            raise ValueError(f"{first} and {second} of {before.micro_batches} and {after.micro_batches} are on no line")
        return value + further

    def of(name: str) -> int:
        return on_line(*(getattr(step.counts, name) for step in (last, before, after)))

    first, second = ({moment.phase: moment.bytes for moment in step.fullest} for step in (before, after))
    fullest = []
    for phase, held in ((moment.phase, moment.bytes) for moment in last.fullest):
        if phase in first and phase in second:
            each = first[phase], second[phase]
            categories = dict.fromkeys((*held, *each[0], *each[1]))
            parts = {name: on_line(*(part.get(name, 0) for part in (held, *each))) for name in categories}
            fullest.append(Moment(phase, parts))
    counts = msgspec.structs.replace(
        last.counts,
        model_flop=of("model_flop"),
        hardware_flop=of("hardware_flop"),
        peak_bytes=max(moment.total for moment in fullest),
        collectives=list(_on_line(last.counts, before.counts, after.counts, on_line)),
    )
    return msgspec.structs.replace(last, micro_batches=micro_batches, counts=counts, fullest=fullest)


def _on_line(
    last: Finished, before: Finished, after: Finished, on_line: Callable[[int, int, int], int]
) -> Iterator[CountedCollective]:
    known = [{(each.axis, each.operation): each for each in counts.collectives} for counts in (before, after)]
    for each in last.collectives:
        none = CountedCollective(each.axis, each.operation, 0, 0)
        three = (each, *(of.get((each.axis, each.operation), none) for of in known))
        yield CountedCollective(
            each.axis,
            each.operation,
            on_line(*(one.payload_bytes for one in three)),
            on_line(*(one.messages for one in three)),
        )
