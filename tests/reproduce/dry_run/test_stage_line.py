"""Stages that are alike lie on a line, or are executed."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from suite.job.dry_run_job import Moment, StepCounts
from suite.reproduce.dry_run.rank_classes import RankClass
from suite.reproduce.dry_run.stage_line import others_on_line, stage_lines
from tests.support.rank_reports import finished

STAGES = 9
CLASSES = [RankClass(stage, stage, 1, 1 if 0 < stage < STAGES - 1 else stage) for stage in range(STAGES)]
(LINE,) = stage_lines(CLASSES)


def step(stage: int, held: dict[str, dict[str, int]]) -> StepCounts:
    peak = max(sum(parts.values()) for parts in held.values())
    counts = finished(7, coordinates={"dp": 0, "tp": 0, "pp": stage}, peak_bytes=peak, time=float(stage))
    fullest = [Moment(phase, parts) for phase, parts in held.items()]
    return StepCounts(micro_batches=20, counts=counts, stage_parameters=0, fullest=fullest, history=[])


def memory(stage: int, each: int, update: int) -> dict[str, dict[str, int]]:
    return {
        "backward pass": {"weights": 3, "forward pass": each * (STAGES - stage)},
        "update": {"weights": 3, "update": update},
    }


def test_three_stages_stand_for_all_between_the_first_and_the_last():
    assert (LINE.first.stage, LINE.middle.stage, LINE.last.stage) == (1, 6, 7)
    assert [each.stage for each in LINE.others] == [2, 3, 4, 5]
    few = [RankClass(stage, stage, 1, 1 if 0 < stage < 5 else stage) for stage in range(6)]
    assert stage_lines(few) == []
    two_kinds_a_stage = [RankClass(rank, rank // 2, 1, 0) for rank in range(12)]
    assert stage_lines(two_kinds_a_stage) == []


@given(each=st.integers(0, 10**12), update=st.integers(0, 10**13))
def test_what_is_on_a_line_is_what_the_stages_count(each, update):
    steps = {stage: step(stage, memory(stage, each, update)) for stage in (1, 6, 7)}
    found = others_on_line(LINE, steps)
    assert found is not None
    for stage, counts in found.items():
        counted = step(stage, memory(stage, each, update))
        assert counts.counts == msgspec.structs.replace(counted.counts, time=1.0)
        by_phase = {
            moment.phase: {name: size for name, size in moment.bytes.items() if size} for moment in counted.fullest
        }
        assert {moment.phase: moment.bytes for moment in counts.fullest} == by_phase


@given(each=st.integers(1, 10**12), jump=st.integers(1, 10**12), at=st.integers(2, 7))
def test_a_jump_anywhere_between_them_is_on_no_line(each, jump, at):
    steps = {
        stage: step(stage, memory(stage, each, 0) | ({"forward pass": {"other": jump}} if stage >= at else {}))
        for stage in (1, 6, 7)
    }
    assert others_on_line(LINE, steps) is None


def test_another_count_in_one_of_the_three_is_on_no_line():
    steps = {stage: step(stage, memory(stage, 5, 0)) for stage in (1, 6, 7)}
    steps[6] = msgspec.structs.replace(steps[6], counts=msgspec.structs.replace(steps[6].counts, hardware_flop=8))
    assert others_on_line(LINE, steps) is None
    steps[6] = step(6, memory(6, 5, 0))
    assert others_on_line(LINE, steps) is not None
    assert others_on_line(LINE, steps | {7: step(7, memory(7, 5, 0) | {"update": {"weights": 1}})}) is None
