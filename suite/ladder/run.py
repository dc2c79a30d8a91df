"""Runs the ladder: every rung launched, predicted and judged, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable

from suite.job.events import Event
from suite.ladder.judge import Interaction
from suite.ladder.leave_one_out import interactions, leave_one_out_runs, seconds
from suite.ladder.plan import Target, refusals
from suite.ladder.request import LadderRun, wanted
from suite.ladder.result import LadderResult, RungResult
from suite.ladder.rungs import RUNGS
from suite.ladder.runner import Runner
from suite.machine.fingerprint import fingerprint, suite_version

# In which a command ends with one launch of each rung: 15 minutes on 2 cores, less Python's start, the picture, and
# launches that take longer than their estimate
LADDER_SECONDS = 870.0


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
