"""The request of a ladder's run; launches of one setting, and their prediction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from suite.job.corpus import Corpus
from suite.job.events import Event, Status
from suite.job.options import Texts
from suite.ladder.measurement import RungPrediction, expected
from suite.ladder.plan import Target, planned, refusals
from suite.ladder.rung import STEPS, Rung, RungSetting, rungs_on, seconds_unknown, stands_on
from suite.machine.profile import Profile
from suite.reproduce.plan import Plan
from suite.reproduce.reproduce import LaunchResult, reproduce


class LadderRun(msgspec.Struct, frozen=True, kw_only=True):
    """The rungs to run, and the place of their records.

    Args:
        chosen: names of the rungs that are wanted; what they are compared with is run too.
        ablated: names of rungs whose changes are left out of all launches, their own and those of rungs above. Only the
            prediction of an ablated rung keeps its changes.
        leave_one_out: whether the top of each track is launched without each of its rungs; not where one is ablated.
        between_hosts: the profile with messages as they are between hosts; None: not measured.
        between_hosts_source: what it is, or why there is none.
        more_ranks: the profile with what more ranks take at once than `profile` has; None: not measured.
        more_ranks_source: what it is, or why there is none; empty where it was not asked for.
        traces: directory for a trace of each rung's first launch; None: no traces.
        began: when the command did, calibration included, on the clock of `time.monotonic`; None: with the first rung.
    """

    target: Target
    corpus: Corpus
    texts: Texts
    results: Path
    chosen: frozenset[str]
    ablated: frozenset[str] = frozenset()
    repeat: int = 1
    leave_one_out: bool = True
    profile: Profile | None = None
    profile_source: str = ""
    between_hosts: Profile | None = None
    between_hosts_source: str = ""
    more_ranks: Profile | None = None
    more_ranks_source: str = ""
    sample_seconds: float = 0.0
    traces: Path | None = None
    began: float | None = None

    def profile_for(self, setting: RungSetting) -> tuple[Profile | None, str]:
        """The profile that predicts a setting, and what it is or why there is none."""
        if setting.hosts > 1 and self.profile is not None:
            return self.between_hosts, self.between_hosts_source
        if self.more_ranks_source and self.profile and setting.data_parallel > self.profile.conditions.ranks:
            return self.more_ranks, self.more_ranks_source
        return self.profile, self.profile_source

    def plan(self, setting: RungSetting, label: str = "", *, steps: int = STEPS, trace: Path | None = None) -> Plan:
        """The plan of a launch with this setting; `label` is the script's rung in the record."""
        return planned(self.target, setting, label, self.texts, steps=steps, trace=trace)


def wanted(ladder_run: LadderRun) -> tuple[list[Rung], list[Rung]]:
    """The rungs to launch: those that are chosen, and the one that each is compared with; and all that apply here."""
    refused = refusals(ladder_run.target)
    rungs = rungs_on(ladder_run.target.device)
    applicable = [rung for rung in rungs if rung.name not in refused]
    names = set(ladder_run.chosen)
    for rung in applicable:
        if rung.name in ladder_run.chosen:
            below = stands_on(rung, applicable)
            names |= {other.name for other in (*below[-1:], *below[:1])}  # the first is the baseline, for the total
    return [rung for rung in rungs if rung.name in names], applicable


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
    """The end of a launch in words, and the path of its record."""
    return f"{result.status.value}: {result.message}; record {result.record}"


def predicted(ladder_run: LadderRun, setting: RungSetting, label: str) -> RungPrediction:
    """Prediction of a setting, by the profile that holds for it."""
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
