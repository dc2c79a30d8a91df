"""The top of each track launched without each of its rungs, to see which gains do not add up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from suite.job.events import Event, Status
from suite.job.training_job import LEAST_STEPS
from suite.ladder.judge import Interaction, cost, noise
from suite.ladder.measurement import RungMeasurement, measured
from suite.ladder.plan import why_too_large
from suite.ladder.request import LadderRun, ending, launched
from suite.ladder.result import RungResult
from suite.ladder.rung import STEPS, Rung, RungSetting, Track, setting_of
from suite.ladder.runner import Runner


class LeaveOneOut(NamedTuple):
    """The top of a track without one of its rungs, and what that is compared with.

    Args:
        steps: of the memory track the fewest that measure a peak.
        top_name: of the rung at the top.
    """

    rung: Rung
    setting: RungSetting
    steps: int
    top_name: str
    below: RungMeasurement
    here: RungMeasurement
    top: RungMeasurement

    @property
    def label(self) -> str:
        """Of its launches, in their records."""
        return f"{self.rung.track}/top without {self.rung.name}"


def leave_one_out_runs(
    ladder_run: LadderRun, applicable: Sequence[Rung], results: Mapping[str, RungResult]
) -> list[LeaveOneOut]:
    """Of each track that was run whole, one for each rung between its baseline and its top.

    There is none of a rung that a later one replaces, nor one that would not fit into the device, and none at all where
    a rung is ablated: then no top has all of its rungs.
    """
    if not ladder_run.leave_one_out or ladder_run.ablated:
        return []
    runs: list[LeaveOneOut] = []
    for track in Track:
        if not all(rung.name in results for rung in applicable if rung.track is track):
            continue
        chain = [rung for rung in applicable if rung.track is track and not rung.side]
        last = results[chain[-1].name]
        for under, rung in pairwise(chain[:-1]):
            others = [other for other in chain if other.name != rung.name]
            setting = setting_of(track, others, divisor=ladder_run.target.divisor)
            top, here, below = last.measured, results[rung.name].measured, results[under.name].measured
            if setting == last.setting or top is None or here is None or below is None:
                continue
            if why_too_large(ladder_run.plan(setting), ladder_run.target.memory_bytes):
                continue
            steps = LEAST_STEPS if track is Track.MEMORY else STEPS
            runs.append(LeaveOneOut(rung, setting, steps, last.rung.name, below, here, top))
    return runs


def seconds(run: LeaveOneOut, runner: Runner) -> float:
    """What one launch should take: that of the top, less the steps that it does not do."""
    return runner.seconds[run.top_name] - (STEPS - run.steps) * run.top.step_seconds


def interactions(
    ladder_run: LadderRun, runs: Sequence[LeaveOneOut], on_event: Callable[[int, Event], None]
) -> tuple[list[Interaction], dict[str, str], bool]:
    """What the tops lose without each of their rungs, how launches ended that failed, whether one was interrupted."""
    gains: list[Interaction] = []
    failed: dict[str, str] = {}
    for run in runs:
        results = launched(ladder_run, run.setting, run.label, on_event, steps=run.steps)
        last = results[-1]
        if last.status is Status.INTERRUPTED:
            return gains, failed, True
        if last.status is not Status.OK:
            failed[run.label] = ending(last)
            continue
        without = measured(ladder_run.plan(run.setting, run.label), results)
        track = run.rung.track
        gains.append(
            Interaction(
                rung=run.rung.name,
                in_track=cost(track, run.below) - cost(track, run.here),
                at_top=cost(track, without) - cost(track, run.top),
                noise=noise(track, [run.below, run.here, run.top, without], gpu=ladder_run.target.device == "cuda"),
            )
        )
    return gains, failed, False
