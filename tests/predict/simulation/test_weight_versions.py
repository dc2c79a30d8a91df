"""Versions and staleness of pipelines without flush, counted pass by pass."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from reference_runs.layout import Layout, Schedule
from reference_runs.run import Workload
from suite.predict.analytic.pipeline_schedule import NO_FLUSH, least_micro_batches
from suite.predict.simulation.state import executed_state, parameter_tensors_of_rank
from suite.predict.simulation.weight_versions import StoredVersions, staleness, stored_versions
from tests.support.strategies import BLOOM

UPDATES = 30


class Counted:
    """A stage that goes through its passes, micro-batch by micro-batch, and counts.

    Args:
        ahead: micro-batches in flight on this stage, and on the first one.
        later: backward passes by which updates of these weights come after the stage's own.
    """

    def __init__(self, schedule: Schedule, *, ahead: int, first_ahead: int, micro_batches: int, later: int = 0) -> None:
        self.held = self.stale = 0
        updates = 0
        used: dict[int, int] = {}

        def of(micro_batch: int, ahead: int) -> int:
            if schedule is Schedule.PIPEDREAM_2BW:
                return max(0, micro_batch // micro_batches - 1)
            return max(0, micro_batch - ahead + 1) // micro_batches

        synchronised = schedule is Schedule.PIPEDREAM_VERTICAL_SYNC or later > 0
        for kind, number in _passes(ahead, UPDATES * micro_batches):
            if kind == "forward":
                used[number] = of(number, first_ahead if synchronised else ahead)
                assert used[number] <= updates
            else:
                self.stale = max(self.stale, number // micro_batches - used.pop(number))
                updates = max(0, number + 1 - later) // micro_batches
            needed = [*used.values(), of(max(used, default=number) + 1, first_ahead if synchronised else ahead)]
            self.held = max(self.held, updates - min(needed) + 1)


def _passes(ahead: int, total: int) -> Iterator[tuple[str, int]]:
    for number in range(total):
        yield "forward", number
        if number >= ahead - 1:
            yield "backward", number - ahead + 1


def workload(schedule: Schedule, stages: int, micro_batches: int, *, tied: bool = True) -> Workload:
    shape = msgspec.structs.replace(BLOOM.architecture, layers=2 * stages, tied_embeddings=tied)
    recipe = msgspec.structs.replace(BLOOM.recipe, global_batch=micro_batches)
    return Workload(shape, recipe, Layout(pipeline_stages=stages, schedule=schedule))


@given(st.sampled_from(NO_FLUSH), st.integers(2, 6), st.integers(1, 8), st.data())
def test_versions_and_staleness_are_those_that_passes_need(
    schedule: Schedule, stages: int, micro_batches: int, data: st.DataObject
) -> None:
    two = schedule is Schedule.PIPEDREAM_2BW
    assume(not two or micro_batches >= stages - 1)
    stage = data.draw(st.integers(0, stages - 1))
    run = workload(schedule, stages, micro_batches)
    own = Counted(schedule, ahead=stages - stage, first_ahead=stages, micro_batches=micro_batches)
    versions = stored_versions(run, stage=stage)
    assert versions.own == own.held
    assert staleness(run, stage=stage) == own.stale
    if stage == 0:
        assert versions.table == own.held
    elif stage == stages - 1:
        table = Counted(schedule, ahead=1, first_ahead=stages, micro_batches=micro_batches, later=stages - 1)
        assert versions.table == table.held
    else:
        assert versions.table == 0


class CountedReplicas:
    """All replicas of stages that differ in their number, micro-batch by micro-batch: those of all are dealt in turns.

    Attributes:
        held: versions that a replica of each stage stores of its own weights, at most.
        stale: updates between a replica's passes and theirs, at most, by stage and replica.
    """

    def __init__(self, schedule: Schedule, counts: tuple[int, ...], micro_batches: int) -> None:
        self.held: list[int] = []
        self.stale: dict[tuple[int, int], int] = {}

        def begun_with(micro_batch: int, stage: int) -> int:
            """Updates that the stage has made when its replica begins with a micro-batch."""
            ahead = -(-sum(counts[stage:]) // counts[stage])
            own = max(0, micro_batch // counts[stage] - ahead + 1)  # backward passes of that replica before
            return own * counts[stage] // micro_batches

        def version(micro_batch: int, stage: int) -> int:
            if schedule is Schedule.PIPEDREAM_2BW:
                return max(0, micro_batch // micro_batches - 1)
            return begun_with(micro_batch, 0 if schedule is Schedule.PIPEDREAM_VERTICAL_SYNC else stage)

        for stage, count in enumerate(counts):
            held = 0
            for update in range(1, 12):
                first = update * micro_batches  # of those whose backward pass is still to come
                for replica in range(count):
                    used = [version(number, stage) for number in range(first + replica, first + micro_batches, count)]
                    held = max(held, update - min(used) + 1)
                    place = stage, replica
                    self.stale[place] = max(self.stale.get(place, 0), update - min(used))
            self.held.append(held)


@given(st.sampled_from(NO_FLUSH), st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(1, 3))
def test_versions_and_staleness_are_those_that_passes_need_where_stages_differ_in_replicas(
    schedule: Schedule, counts: list[int], rounds: int
) -> None:
    assume(len(set(counts)) > 1)
    stages, micro_batches = len(counts), rounds * math.lcm(*counts)
    run = workload(schedule, stages, micro_batches)
    run = run._replace(layout=msgspec.structs.replace(run.layout, stage_replicas=tuple(counts)))
    assume(micro_batches >= least_micro_batches(run.layout))
    counted = CountedReplicas(schedule, tuple(counts), micro_batches)
    for stage, count in enumerate(counts):
        assert stored_versions(run, stage=stage).own == counted.held[stage]
        for replica in range(count):
            assert staleness(run, stage=stage, replica=replica) == counted.stale[stage, replica]


def test_pipedream_stores_as_many_versions_as_micro_batches_are_in_flight_and_of_a_table_one_at_the_end() -> None:
    run = workload(Schedule.PIPEDREAM, 4, 1)
    assert [stored_versions(run, stage=stage) for stage in range(4)] == [
        StoredVersions(4, 4),
        StoredVersions(3, 0),
        StoredVersions(2, 0),
        StoredVersions(1, 1),
    ]
    assert [staleness(run, stage=stage) for stage in range(4)] == [3, 2, 1, 0]


def test_weights_are_stored_for_every_version() -> None:
    for tied in (True, False):
        for schedule in NO_FLUSH:
            run = workload(schedule, 4, 4, tied=tied)
            flushed = workload(Schedule.ONE_F_ONE_B, 4, 4, tied=tied)
            for stage in range(4):
                tensors = parameter_tensors_of_rank(*run[::2], stage=stage)
                table = sum(t.elements for t in tensors if tied and t.name in ("embedding.weight", "head.weight"))
                versions = stored_versions(run, stage=stage)
                one = executed_state(flushed, stage=stage, replica=0)
                stored = executed_state(run, stage=stage, replica=0)
                assert stored.weight_bytes == versions.own * (one.weight_bytes - 2 * table) + versions.table * 2 * table
                assert stored[2:] == one[2:]
