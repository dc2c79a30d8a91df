"""Ranks' reports become a profile: rounds pooled, and slow ranks waited for where they are slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.calibration.assemble import assembled
from suite.calibration.plan import LINE, TABLE, Calibration, Planned
from suite.job.calibration_job import Calibrated, Task, TimedTask
from suite.job.events import Event
from suite.machine.profile import REPEATED
from suite.machine.timing_tables import Axis, Subject
from suite.machine.timings import Repetitions
from tests.support.profiles import HERE

END = Calibrated(seconds=1.0, shared=None, environment={}, gpus=[], time=0.0)


def planned(operation: str, unit: str) -> Planned:
    task = Task(subject=Subject(operation=operation, ranks=2), threads=1, sizes=((1,), (2,), (4,)), point_seconds=0.002)
    return Planned(LINE, task, unit=unit)


def of_rank(task: int, *rounds: tuple[float, float, float]) -> list[Event]:
    return [
        TimedTask(task, number, tuple(Repetitions((seconds,), 0) for seconds in points), 0.0)
        for number, points in enumerate(rounds)
    ]


def test_a_rank_is_waited_for_in_the_kind_of_work_that_it_is_slow_in() -> None:
    plan = [planned("calls", "call"), planned("scale", "element"), planned("all_reduce", "byte")]
    calibration = Calibration(device="cpu", ranks=2, results=Path("/none"), planned=plan, rounds=2)
    even = of_rank(1, (1.0, 2.0, 4.0)), of_rank(2, (1.0, 1.0, 1.0))
    events: list[list[Event]] = [
        [*of_rank(0, (1.0, 2.0, 4.0), (1.5, 2.0, 4.0)), *even[0], *even[1], END],
        [*of_rank(0, (2.0, 4.0, 8.0), (3.0, 4.0, 8.0)), *even[0], *even[1], END],
    ]
    profile = assembled(calibration, events, HERE, None)
    seconds = {line.subject.operation: [one.seconds for one in line.timings] for line in profile.lines}
    assert seconds["calls"] == pytest.approx([2.5, 4.0, 8.0])
    assert seconds["scale"] == pytest.approx([1.0, 2.0, 4.0])
    assert seconds["all_reduce"] == pytest.approx([1.0, 1.0, 1.0])
    assert [line.timings[0].repetitions for line in profile.lines] == [2, 1, 1]


def test_a_repeated_point_stands_beside_its_own_timing_where_another_table_contains_it_too() -> None:
    subject = Subject(operation="product", ranks=1)

    def products(kind: str, axis: tuple[int, ...], sizes: tuple[int, ...]) -> Planned:
        task = Task(subject=subject, threads=1, sizes=tuple((size,) for size in sizes), point_seconds=0.002)
        return Planned(kind, task, (Axis("M", tuple(map(float, axis))),))

    blocks, heads = (8, 100), (16, 64)
    plan = [
        products(TABLE, blocks, blocks),
        products(TABLE, heads, heads),
        products(REPEATED, blocks, (8,)),
        products(REPEATED, heads, heads),
    ]
    calibration = Calibration(device="cpu", ranks=1, results=Path("/none"), planned=plan, rounds=1)
    taken = (1.0, 9.0), (5.0, 7.0), (1.25,), (4.0, 8.0)
    events: list[Event] = [
        TimedTask(number, 0, tuple(Repetitions((seconds,), 0) for seconds in points), 0.0)
        for number, points in enumerate(taken)
    ]
    checks = assembled(calibration, [[*events, END]], HERE, None).checks
    assert [(check.sizes[0], check.predicted_seconds, check.timing.seconds) for check in checks] == [
        (8, 1.0, 1.25),
        (16, 5.0, 4.0),
        (64, 7.0, 8.0),
    ]
