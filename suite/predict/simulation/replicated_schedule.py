"""When the passes of a pipeline run whose stages have different numbers of replicas."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from reference_runs.layout import Layout
from suite.job.pipeline_passes import Pass, PassKind
from suite.predict.analytic.pipeline_schedule import micro_batches_in_flight
from suite.predict.simulation.pipeline_order import PassDurations, TimedPass

STEPS_TO_STEADY = 8  # for each rank: until the slowest one decides when every other passes


class ReplicaSteps(NamedTuple):
    """A few steps in the steady state, of each rank in its number's order.

    Args:
        passes: of one step, micro-batches counted from its first one on the rank.
        idle: share of its passes' and waits' time in which a rank waits for a message, mean of ranks.
        seconds: of a step.
    """

    passes: list[list[TimedPass]]
    idle: float
    seconds: float


class _Rank(NamedTuple):
    """A replica of a stage: what it does, pass by pass, None for an update; and what was done when.

    Args:
        updates: when the rank had ended the passes of each, and when the update was made.
    """

    stage: int
    replica: int
    left: deque[Pass | None]
    timed: list[TimedPass]
    updates: list[tuple[float, float]]


def replica_steps(
    layout: Layout, durations: PassDurations, *, micro_batches: int, between: Sequence[float] | None = None
) -> ReplicaSteps:
    """Steps of `micro_batches` over all replicas of each stage; replicas take them in turns.

    A pass begins when its rank is free and its input is there; messages take no time. An update is one of all replicas
    of a stage, and begins when the last of them has ended its passes: to wait for that one is part of the update.

    Args:
        between: how long the update of each stage takes; None: no time.

    Raises:
        ValueError: passes that wait for each other.
    """
    assert layout.stage_replicas is not None
    between = between or [0.0] * layout.pipeline_stages
    steps = STEPS_TO_STEADY * layout.ranks
    ranks = [
        _Rank(stage, replica, _order(layout, micro_batches, stage, replica, steps), [], [])
        for stage, count in enumerate(layout.stage_replicas)
        for replica in range(count)
    ]
    ended: dict[Pass, float] = {}
    last = durations.chunks - 1
    before = -1
    while before < (before := len(ended) + sum(len(rank.updates) for rank in ranks)):
        for rank in ranks:
            while rank.left and (this := rank.left[0]) is not None:
                source = _input(this, last)
                if source is not None and source not in ended:
                    break
                free = max(rank.timed[-1].end if rank.timed else 0.0, rank.updates[-1][1] if rank.updates else 0.0)
                start = max(free, ended[source] if source is not None else 0.0)
                ended[this] = start + durations.of(this)
                rank.timed.append(TimedPass(this, start, ended[this]))
                rank.left.popleft()
        for stage, seconds in enumerate(between):
            replicas = [rank for rank in ranks if rank.stage == stage]
            if all(rank.left and rank.left[0] is None for rank in replicas):
                done = max(rank.timed[-1].end for rank in replicas) + seconds
                for rank in replicas:
                    rank.updates.append((rank.timed[-1].end, done))
                    rank.left.popleft()
    if any(rank.left for rank in ranks):
        raise ValueError("passes of the schedule wait for each other")
    return _steady(layout, ranks, micro_batches)


def _order(layout: Layout, micro_batches: int, stage: int, replica: int, steps: int) -> deque[Pass | None]:
    """Actions of a rank: passes by the numbers of all micro-batches, and None for an update."""
    assert layout.stage_replicas is not None
    replicas = layout.stage_replicas[stage]
    own = micro_batches // replicas
    ahead = int(micro_batches_in_flight(layout, micro_batches=own, stage=stage))
    begun, order = 0, deque[Pass | None]()
    for number in range(steps * own):
        while begun < number + ahead:
            order.append(Pass(PassKind.FORWARD, stage, begun * replicas + replica))
            begun += 1
        order.append(Pass(PassKind.BACKWARD, stage, number * replicas + replica))
        if (number + 1) % own == 0:
            order.append(None)
    return order


def _input(of: Pass, last: int) -> Pass | None:
    """The pass whose result it needs."""
    if of.kind is PassKind.FORWARD:
        return of._replace(chunk=of.chunk - 1) if of.chunk else None
    if of.chunk == last:
        return of._replace(kind=PassKind.FORWARD)
    return of._replace(chunk=of.chunk + 1)


def _steady(layout: Layout, ranks: Sequence[_Rank], micro_batches: int) -> ReplicaSteps:
    """The last steps' pattern: as many as there are ranks, which may wait in turns."""
    assert layout.stage_replicas is not None
    averaged, shares, shown = layout.ranks, [], []
    seconds = 0.0
    for rank in ranks:
        own = micro_batches // layout.stage_replicas[rank.stage]
        passes = 2 * own  # of a step
        done = rank.timed[-averaged * passes :]
        busy = sum(each.end - each.start for each in done)
        updating = sum(made - ended for ended, made in rank.updates[-averaged:])
        whole = rank.updates[-1][1] - rank.updates[-1 - averaged][1]
        shares.append(1 - busy / (whole - updating))
        seconds = max(seconds, whole / averaged)
        first = (len(rank.updates) - 1) * own
        shown.append([_counted(each, layout.stage_replicas[rank.stage], first) for each in rank.timed[-passes:]])
    start = min(done[0].start for done in shown)
    moved = [[each._replace(start=each.start - start, end=each.end - start) for each in done] for done in shown]
    return ReplicaSteps(moved, sum(shares) / len(shares), seconds)


def _counted(each: TimedPass, replicas: int, first: int) -> TimedPass:
    """A pass, its micro-batch counted on the rank from the first one of the step."""
    return each._replace(done=each.done._replace(micro_batch=each.done.micro_batch // replicas - first))
