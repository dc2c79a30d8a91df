"""Counts of ranks with other shards in all layers, from steps of few layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from reference_runs.run import Workload
from suite.job.dry_run_job import Moment, StepCounts
from suite.job.events import CountedCollective
from suite.reproduce.dry_run.rank_classes import RankClass

FEW = (3, 4)  # layers: the fewest of which one is neither the first nor the last, and one more
WORTH_IT = 12  # layers from which on it is less work


class DepthLine(NamedTuple):
    """Kinds of ranks with the same layers, each executed with few of them, and one with all, which proves the line."""

    proof: RankClass
    others: tuple[RankClass, ...]


def depth_line(workload: Workload, classes: Sequence[RankClass]) -> DepthLine | None:
    """The kinds of ranks of fully sharded layers; None where all are executed as they are.

    They differ in the shards of each parameter, whatever the number of layers. Flat shards would not: the end of a
    shard is in another layer then.
    """
    architecture, _, layout = workload
    same = layout.fully_sharded and layout.pipeline_stages == 1 and len(classes) > 1
    if not same or architecture.layers < WORTH_IT or architecture.experts is not None:
        return None
    return DepthLine(classes[0], tuple(classes[1:]))


def in_layers(few: StepCounts, more: StepCounts, layers: int) -> StepCounts:
    """The step of `layers` layers, on the line through those of `FEW`: every count is a + b L."""
    further = layers - FEW[1]

    def on_line(first: int, second: int) -> int:
        return second + (second - first) * further

    parts = {moment.phase: moment.bytes for moment in few.fullest}
    fullest = [
        Moment(moment.phase, _each(parts.get(moment.phase, {}), moment.bytes, on_line)) for moment in more.fullest
    ]
    named = (
        *("parameters", "own_parameters", "model_flop", "hardware_flop"),
        *("weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes"),
    )
    counts = {name: on_line(getattr(few.counts, name), getattr(more.counts, name)) for name in named}
    return msgspec.structs.replace(
        more,
        counts=msgspec.structs.replace(
            more.counts,
            **counts,
            collectives=_collectives(few.counts.collectives, more.counts.collectives, on_line),
            peak_bytes=max(moment.total for moment in fullest),
        ),
        stage_parameters=on_line(few.stage_parameters, more.stage_parameters),
        fullest=fullest,
        history=[],
    )


def same_counts(one: StepCounts, other: StepCounts) -> bool:
    """Whether two steps count the same, whatever their histories."""
    return _comparable(one) == _comparable(other)


def _comparable(step: StepCounts) -> StepCounts:
    counts = msgspec.structs.replace(step.counts, time=0.0)
    fullest = [
        Moment(moment.phase, {name: size for name, size in sorted(moment.bytes.items()) if size})
        for moment in sorted(step.fullest, key=lambda moment: moment.phase)
    ]
    return msgspec.structs.replace(step, counts=counts, fullest=fullest, history=[])


def _each(few: dict[str, int], more: dict[str, int], on_line: Callable[[int, int], int]) -> dict[str, int]:
    return {name: on_line(few.get(name, 0), more.get(name, 0)) for name in dict.fromkeys((*few, *more))}


def _collectives(
    few: Sequence[CountedCollective], more: Sequence[CountedCollective], on_line: Callable[[int, int], int]
) -> list[CountedCollective]:
    known = {(each.axis, each.operation): each for each in few}
    found = []
    for each in more:
        first = known.get((each.axis, each.operation), CountedCollective(each.axis, each.operation, 0, 0))
        payload = on_line(first.payload_bytes, each.payload_bytes)
        found.append(CountedCollective(each.axis, each.operation, payload, on_line(first.messages, each.messages)))
    return found
