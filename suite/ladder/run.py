"""A run of the ladder: rung after rung, and the top of each track without each of its rungs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from suite.job.events import Event, Status
from suite.job.training_job import LEAST_STEPS
from suite.ladder.judge import Interaction, cost, noise
from suite.ladder.measurement import RungMeasurement, measured
from suite.ladder.plan import Target, refusals, why_too_large
from suite.ladder.request import LadderRun, ending, launched, wanted
from suite.ladder.result import LadderResult, RungResult
from suite.ladder.rung import RUNGS, STEPS, Rung, RungSetting, Track, setting_of
from suite.ladder.runner import Runner
from suite.machine.fingerprint import fingerprint, suite_version

# In which a command ends with one launch of each rung: 15 minutes on 2 cores, less Python's start, the picture, and
# launches that take longer than their estimate
LADDER_SECONDS = 870.0


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
        """Label of its launches, in their records."""
        return f"{self.rung.track}/top without {self.rung.name}"


def leave_one_out_runs(
    ladder_run: LadderRun, applicable: Sequence[Rung], results: Mapping[str, RungResult]
) -> list[LeaveOneOut]:
    """Leave-one-out runs of each track that was run whole: one for each rung between its baseline and its top.

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
    """Expected seconds of one launch: those of the top, less the steps that it does not do."""
    return runner.seconds[run.top_name] - (STEPS - run.steps) * run.top.step_seconds


def interactions(
    ladder_run: LadderRun, runs: Sequence[LeaveOneOut], on_event: Callable[[int, Event], None]
) -> tuple[list[Interaction], dict[str, str], bool]:
    """Losses of the tops without each of their rungs, ends of failed launches, and whether one was interrupted."""
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


def run_ladder(
    ladder_run: LadderRun, on_rung: Callable[[RungResult], None], on_event: Callable[[int, Event], None]
) -> LadderResult:
    """Launch, predict and judge what is wanted; `on_rung` sees every rung when it is done, and when it is done again.

    Raises:
        InputError: the results directory cannot be written.
        StoreFullError: a record could not be written.
    """
    started = time.time()
    began = time.monotonic() if ladder_run.began is None else ladder_run.began
    rungs, applicable = wanted(ladder_run)
    runner = Runner(ladder_run, applicable, on_event)
    gains: list[Interaction] = []
    failed: dict[str, str] = {}
    interrupted = False
    for rung in rungs:
        interrupted = runner.run(rung)
        if interrupted:
            break
        on_rung(runner.results[rung.name])
    if not interrupted:
        planned_runs = leave_one_out_runs(ladder_run, applicable, runner.results)
        reserved = sum(seconds(run, runner) for run in planned_runs)
        interrupted = runner.confirm(on_rung, until=began + ladder_run.repeat * (LADDER_SECONDS - reserved))
    if not interrupted:
        confirmed_runs = leave_one_out_runs(ladder_run, applicable, runner.results)
        gains, failed, interrupted = interactions(ladder_run, confirmed_runs, on_event)
    return LadderResult(
        run=ladder_run.target.name,
        device=ladder_run.target.device,
        rungs=list(runner.results.values()),
        interactions=gains,
        leave_one_out_failed=failed,
        profile=ladder_run.profile_source,
        sample_seconds=ladder_run.sample_seconds,
        interrupted=interrupted,
        started=started,
        divisor=ladder_run.target.divisor,
        fingerprint=fingerprint(ladder_run.target.device),
        suite=suite_version(),
        whole=not interrupted and not ladder_run.ablated and len(rungs) == len(RUNGS),
    )


def nothing_applies(target: Target, chosen: frozenset[str]) -> LadderResult | None:
    """The result where none of the chosen rungs applies here, with the reasons; None where one does."""
    refused = refusals(target)
    if not chosen <= set(refused):
        return None
    return LadderResult(
        run=target.name,
        device=target.device,
        rungs=[RungResult(rung=rung, not_run=refused[rung.name]) for rung in RUNGS if rung.name in chosen],
        interactions=[],
        profile="not looked for: nothing runs",
        sample_seconds=0.0,
        started=time.time(),
    )
