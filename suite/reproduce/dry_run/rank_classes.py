"""Ranks that execute the same, and the numbers of micro-batches from which a whole step follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.layout import Schedule
from reference_runs.placement import coordinates
from reference_runs.run import Workload
from suite.job.dry_run_job import AskedStep, Moment, StepCounts
from suite.job.events import CountedCollective, Finished
from suite.predict.simulation.state import executed_state, rank_position

OF_TWO_IN_FLIGHT = (3, 4)  # micro-batches of the steps that a stage with 2 in flight executes


class RankClass(NamedTuple):
    """Ranks of one pipeline stage that execute the same: the first of them, and how many there are.

    Args:
        alike: the rank that the others go by which execute the same passes of a micro-batch, perhaps in another order:
            the first one of the last such stage, which has the fewest in flight.
    """

    rank: int
    stage: int
    ranks: int
    alike: int

    @property
    def lends(self) -> bool:
        """Whether the others that are alike go by this one."""
        return self.alike == self.rank


def rank_classes(workload: Workload) -> list[RankClass]:
    """The classes of a layout in the order of their first ranks.

    Of one stage, tensor-parallel ranks have equal parts, and ranks with the same weights execute the same. Shards may
    differ, which is no matter of a micro-batch's passes. Stages between the first and the last with as many layers
    differ in the micro-batches in flight alone. So a further one adds the same to each that is alike.
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
    found = []
    for kind, rank in first.items():
        stage = coordinates(layout, rank)["pp"]
        between = layout.virtual_stages == 1 and 0 < stage < layout.pipeline_stages - 1
        work = ("between", executed_state(workload, stage=stage, replica=0)) if between else stage
        if work not in alike or stage > coordinates(layout, alike[work])["pp"]:
            alike[work] = rank
        found.append((rank, stage, members[kind], work))
    return [RankClass(rank, stage, ranks, alike[work]) for rank, stage, ranks, work in found]


def executed_steps(workload: Workload, each: RankClass) -> tuple[AskedStep, ...]:
    """The steps that a rank executes: the whole one, or short ones from which it follows.

    Without a pipeline 3 have one between the first and the last, and one more adds what each further one adds. With p
    stages:
        1f1b             2 w - 1 in a stage with w = p - s in flight: PyTorch holds the output that its first w passes
                         send last, until passes forward end. After w - 1 further ones this is more than it would have.
        interleaved      2 p: rounds of p
        dualpipev        2 p + 2: with fewer the last pairs begin before as much is in flight as later
        other schedules  p + 1

    Where another rank is alike, its line serves both. What a further micro-batch adds is no matter of how many are in
    flight: a stage of 1f1b with many executes the two of its line with 2 in flight.
    """
    layout, whole = workload.layout, accumulation(workload.recipe, workload.layout)
    stages, in_turns = layout.pipeline_stages, layout.virtual_stages > 1
    step = stages if in_turns else 1

    def least(stage: int) -> int:
        if in_turns:
            return 2 * stages + 2 * (layout.schedule is Schedule.DUALPIPEV)
        return max(2 * (stages - stage) - 1 if layout.schedule is Schedule.ONE_F_ONE_B else stages + 1, 3)

    if whole <= least(0) + step:
        return (AskedStep(whole),)
    own = AskedStep(least(each.stage))
    if not each.lends:
        return (own,)
    if layout.schedule is Schedule.ONE_F_ONE_B and not in_turns and own.micro_batches + step > sum(OF_TWO_IN_FLIGHT):
        return (*(AskedStep(number, in_flight=2) for number in OF_TWO_IN_FLIGHT), own)
    return (own, AskedStep(own.micro_batches + step))


def of_whole_step(steps: Sequence[StepCounts], micro_batches: int, *, alike: Sequence[StepCounts]) -> StepCounts:
    """Counts of a step of so many micro-batches: as executed, or as they lie on the line through two steps.

    Every count, and every part of the fullest moment of each phase, is a + b m of m micro-batches (see
    `executed_steps`); which phase is the fullest may change with m. The history is that of the last executed
    step.

    Args:
        alike: the steps of a rank whose b is the same, as are the activations of a micro-batch. The first two are its
            line.
    """
    activations = alike[-1].counts.activation_bytes
    last = steps[-1]
    last = msgspec.structs.replace(last, counts=msgspec.structs.replace(last.counts, activation_bytes=activations))
    if last.micro_batches == micro_batches:
        return last
    before, after, *_ = alike
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
