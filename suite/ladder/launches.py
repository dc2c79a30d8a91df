"""Launches of one setting, and what is predicted of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from suite.job.events import Event, Status
from suite.ladder.measurement import RungPrediction, expected
from suite.ladder.request import LadderRun
from suite.ladder.rung import STEPS, Rung, RungSetting
from suite.ladder.rungs import seconds_unknown
from suite.reproduce.reproduce import LaunchResult, reproduce


def launched(
    ladder_run: LadderRun,
    setting: RungSetting,
    label: str,
    on_event: Callable[[int, Event], None],
    *,
    steps: int = STEPS,
    trace: Path | None = None,
    launches: int | None = None,
) -> list[LaunchResult]:
    """Launch a setting as often as `ladder_run` asks, or `launches` times, up to the first that does not end well."""
    plan = ladder_run.plan(setting, label, steps=steps, trace=trace)
    profile, source = ladder_run.profile_for(setting)
    results: list[LaunchResult] = []
    for _ in range(ladder_run.repeat if launches is None else launches):
        results.append(
            reproduce(
                plan,
                ladder_run.corpus,
                ladder_run.results,
                on_event,
                profile=profile,
                profile_source=source,
                sample_seconds=ladder_run.sample_seconds,
            )
        )
        plan = msgspec.structs.replace(plan, trace=None)
        if results[-1].status is not Status.OK:
            break
    return results


def ending(result: LaunchResult) -> str:
    """How a launch ended, in words, and where its record is."""
    return f"{result.status.value}: {result.message}; record {result.record}"


def predicted(ladder_run: LadderRun, setting: RungSetting, label: str) -> RungPrediction:
    """Of a setting, by the profile that holds for it."""
    plan = ladder_run.plan(setting, label)
    profile, source = ladder_run.profile_for(setting)
    why = seconds_unknown(setting)
    if not why and profile is None:
        why = source
    if not why and profile is not None and plan.layout.ranks > profile.conditions.ranks:
        why = f"this machine is calibrated with {profile.conditions.ranks} ranks at once"
    return expected(plan, ladder_run.corpus, profile, why_none=why, sample_seconds=ladder_run.sample_seconds)


def trace_of(directory: Path | None, rung: Rung) -> Path | None:
    """The file for the trace of a rung."""
    return None if directory is None else directory / f"{rung.name}.json"
