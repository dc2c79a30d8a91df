"""Assembles a profile from the ranks' reports of a calibration, and combines two profiles of one machine."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import msgspec

from suite.calibration.plan import LINE, TABLE, Calibration, Planned
from suite.job.calibration_job import Calibrated, ReferenceSteps, TimedTask
from suite.job.events import Event
from suite.job.training_job import WARM_UP_STEPS
from suite.machine import cpu_speed
from suite.machine.cpu_contention import others_shares
from suite.machine.cpu_speed import SpeedSample
from suite.machine.fingerprint import Fingerprint
from suite.machine.operations import COLLECTIVES
from suite.machine.profile import Check, Conditions, Profile
from suite.machine.reference_step import TimedReferenceStep
from suite.machine.timing_tables import Line, Table, fitted
from suite.machine.timings import Repetitions, Timing, middle_over_ranks, over_ranks, over_rounds


def assembled(
    calibration: Calibration, events: list[list[Event]], fingerprint: Fingerprint, load_before: float | None
) -> Profile:
    """The profile from the ranks' reports: lines are fitted, and each check is compared with its table."""
    timings = timings_of_tasks(calibration.planned, events)
    timed = list(zip(calibration.planned, timings, strict=True))
    tables = {
        (planned.task.subject, planned.axes): Table(subject=planned.task.subject, axes=planned.axes, timings=points)
        for planned, points in timed
        if planned.kind == TABLE
    }
    checks = [
        Check(
            kind=planned.kind,
            subject=planned.task.subject,
            sizes=sizes,
            predicted_seconds=tables[planned.task.subject, planned.axes].seconds(sizes),
            timing=timing,
        )
        for planned, points in timed
        if planned.kind not in (TABLE, LINE)
        for sizes, timing in zip(planned.task.sizes, points, strict=True)
    ]
    return Profile(
        measured=time.time(),
        fingerprint=fingerprint,
        conditions=_conditions(calibration, events, load_before),
        tables=list(tables.values()),
        lines=fitted_lines(calibration.planned, timings),
        checks=checks,
        reference_steps=_reference_steps(calibration, events),
        partial=calibration.partial,
    )


def fitted_lines(planned: Sequence[Planned], timings: Sequence[tuple[Timing, ...]]) -> list[Line]:
    """Latency and bandwidth of each task that is timed along a line."""
    return [
        fitted(entry.task.subject, entry.unit, [float(size) for (size,) in entry.task.sizes], points)
        for entry, points in zip(planned, timings, strict=True)
        if entry.kind == LINE
    ]


def _reference_steps(calibration: Calibration, events: list[list[Event]]) -> list[TimedReferenceStep]:
    """For each reference step, the mean over ranks of the median over steps. A launch also reports medians."""
    timed = []
    for number, step in enumerate(calibration.reference_steps):
        reports = [
            [event for event in of_rank if isinstance(event, ReferenceSteps) and event.step == number]
            for of_rank in events[: step.layout.ranks]
        ]
        ranks = [[seconds for event in of_rank for seconds in event.seconds] for of_rank in reports]
        warm_up = WARM_UP_STEPS + len(reports[0])
        timed.append(TimedReferenceStep(step=step, timing=middle_over_ranks(ranks, warm_up=warm_up)))
    return timed


def timings_of_tasks(planned: Sequence[Planned], events: list[list[Event]]) -> list[tuple[Timing, ...]]:
    """The timings of every task, point by point, over all rounds and over the ranks that took part."""
    rounds: dict[tuple[int, int], list[tuple[Repetitions, ...]]] = {}  # of a rank and a task
    for rank, of_rank in enumerate(events):
        for event in of_rank:
            if isinstance(event, TimedTask):
                rounds.setdefault((rank, event.task), []).append(event.points)
    alike: dict[tuple[int, str], list[int]] = {}  # tasks of a number of ranks and a kind
    for number, entry in enumerate(planned):
        subject = entry.task.subject
        kind = "message" if subject.operation in COLLECTIVES else cpu_speed.kind(subject)  # messages wait for all ranks
        alike.setdefault((subject.ranks, kind), []).append(number)
    timings: dict[int, tuple[Timing, ...]] = {}
    for (ranks, _), numbers in alike.items():
        of_ranks = [
            [[over_rounds(point) for point in zip(*rounds[rank, number], strict=True)] for rank in range(ranks)]
            for number in numbers
        ]
        timings |= dict(zip(numbers, over_ranks(of_ranks), strict=True))
    return [timings[number] for number in range(len(planned))]


def _conditions(calibration: Calibration, events: list[list[Event]], load_before: float | None) -> Conditions:
    ends = [event for of_rank in events for event in of_rank if isinstance(event, Calibrated)]
    others, steal = others_shares([end.shared for end in ends])
    speeds: dict[int, list[SpeedSample]] = {}
    for end in ends:
        for ranks, sample in end.cpu_speed.items():
            speeds.setdefault(ranks, []).append(sample)
    return Conditions(
        ranks=calibration.ranks,
        threads={planned.task.subject.ranks: planned.task.threads for planned in calibration.planned},
        seconds=max(end.seconds for end in ends),
        load_before=load_before,
        load_after=load_average(),
        steal_share=steal,
        others_share=others,
        facts=ends[0].environment,
        cpu_speed={ranks: mean for ranks, samples in sorted(speeds.items()) if (mean := cpu_speed.over_ranks(samples))},
        gpus=[{"rank": rank, **sample} for rank, end in enumerate(ends) for sample in end.gpus],
    )


def load_average() -> float | None:
    """The load average of one minute; None where the system reports none."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def combined(before: Profile, added: Profile) -> Profile:
    """Everything in both profiles. For equal lines and reference steps, the added ones replace the earlier ones.

    The conditions (how busy the machine was) are those of the added profile, which was measured last.
    """
    subjects = {line.subject for line in added.lines}
    steps = [timed.step for timed in added.reference_steps]
    old, new = before.conditions, added.conditions
    conditions = msgspec.structs.replace(
        new, ranks=max(old.ranks, new.ranks), threads=old.threads | new.threads, cpu_speed=old.cpu_speed | new.cpu_speed
    )
    kept_steps = [timed for timed in before.reference_steps if timed.step not in steps]
    return msgspec.structs.replace(
        before,
        measured=added.measured,
        conditions=conditions,
        tables=[*before.tables, *added.tables],
        lines=[*(line for line in before.lines if line.subject not in subjects), *added.lines],
        checks=[*before.checks, *added.checks],
        partial=before.partial or added.partial,
        reference_steps=[*kept_steps, *added.reference_steps],
    )
