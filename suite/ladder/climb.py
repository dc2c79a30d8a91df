"""Climbs the ladder: every rung launched, predicted and judged, one after the other."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from suite.job.events import Event, Status
from suite.job.training_job import LEAST_STEPS
from suite.ladder.judge import Interaction, Mark, interaction
from suite.ladder.plan import Climber, excess, planned, refusals
from suite.ladder.results import Measured, measured
from suite.ladder.run import CLIMB_SECONDS, Ascent, Errand, Height, ending, launched
from suite.ladder.rungs import RUNGS, STEPS, Rung, Setting, Walk, setting_of, stands_on
from suite.machine.fingerprint import Fingerprint, fingerprint, suite_version


class Verdict(enum.StrEnum):
    """Of a whole climb."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    EXECUTION_FAILED = "execution failed"
    INTERRUPTED = "interrupted"


class Climb(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found, in the order of the rungs.

    Args:
        divisor: of the declared samples, so that the baseline fits into the device.
        twins_failed: how the launch of a twin ended that did not end well, by the twin's label.
        whole: whether every rung was wanted, and none broken.
        fingerprint: of the machine that it was climbed on, and its software; None of earlier climbs.
        suite: its version and commit.
    """

    run: str
    device: str
    heights: list[Height]
    interactions: list[Interaction]
    twins_failed: dict[str, str] = {}
    profile: str
    sample_seconds: float
    interrupted: bool = False
    started: float = 0.0
    whole: bool = False
    divisor: int = 1
    fingerprint: Fingerprint | None = None
    suite: str = ""

    @property
    def where_and_when(self) -> str:
        """Hardware, node, the software that decides most, and the day, in words."""
        day = datetime.fromtimestamp(self.started, UTC).strftime("%Y-%m-%d %H:%M UTC")
        if self.fingerprint is None:
            return f"{self.device} of a machine that was not recorded, {day}"
        facts, versions = self.fingerprint.hardware, self.fingerprint.software
        host = f"{facts.get('cpu', 'unknown CPU')}, {facts.get('cores', 'unknown')} cores"
        words = f"{facts.get('gpus', 'unknown')} ({host})" if self.device == "cuda" else host
        torch = versions.get("torch", "unknown")
        return f"{words}, node {self.fingerprint.node}, torch {torch}, suite {self.suite or 'unknown'}, {day}"


def wanted(errand: Errand) -> tuple[list[Rung], list[Rung]]:
    """The rungs to launch: those that are chosen, and the one that each is compared with; and all that apply here."""
    refused = refusals(errand.climbing)
    applicable = [rung for rung in RUNGS if rung.name not in refused]
    names = set(errand.chosen)
    for rung in applicable:
        if rung.name in errand.chosen:
            names |= {below.name for below in stands_on(rung, applicable)[-1:]}
            names |= {below.name for below in stands_on(rung, applicable)[:1]}  # the baseline, for the total
    return [rung for rung in RUNGS if rung.name in names], applicable


def climb(errand: Errand, on_height: Callable[[Height], None], on_event: Callable[[int, Event], None]) -> Climb:
    """Launch, predict and judge what is wanted; `on_height` sees every rung when it is done, and when it is done again.

    Raises:
        InputError: the results directory cannot be written.
        StoreFullError: a record could not be written.
    """
    started = time.time()
    began = time.monotonic() if errand.began is None else errand.began
    rungs, applicable = wanted(errand)
    ascent = Ascent(errand, applicable, on_event)
    heights = ascent.heights
    interactions: list[Interaction] = []
    twins_failed: dict[str, str] = {}
    interrupted = False
    for rung in rungs:
        interrupted = ascent.climb(rung)
        if interrupted:
            break
        on_height(heights[rung.name])
    if not interrupted:
        twins_seconds = sum(_seconds(twin, ascent) for twin in _twins(errand, applicable, heights))
        until = began + errand.repeat * (CLIMB_SECONDS - twins_seconds)
        interrupted = ascent.confirm(on_height, until=until)
    if not interrupted:
        twins = _twins(errand, applicable, heights)
        interactions, twins_failed, interrupted = _interactions(errand, twins, on_event)
    return Climb(
        run=errand.climbing.name,
        device=errand.climbing.device,
        heights=list(heights.values()),
        interactions=interactions,
        twins_failed=twins_failed,
        profile=errand.profile_source,
        sample_seconds=errand.sample_seconds,
        interrupted=interrupted,
        started=started,
        divisor=errand.climbing.divisor,
        fingerprint=fingerprint(errand.climbing.device),
        suite=suite_version(),
        whole=not interrupted and not errand.broken and len(rungs) == len(RUNGS),
    )


class _Twin(NamedTuple):
    """The top of a walk without one of its rungs, and what that is compared with.

    Args:
        steps: of memory the peak alone is looked at, which the fewest steps tell.
        top_name: of the rung at the top.
    """

    rung: Rung
    setting: Setting
    steps: int
    top_name: str
    below: Measured
    here: Measured
    top: Measured


def _twins(errand: Errand, applicable: Sequence[Rung], heights: Mapping[str, Height]) -> list[_Twin]:
    """Of each walk that was climbed whole; of rungs that a later one replaces nothing is left to remove, and what would
    not fit into the device is no twin. Nor is there one where a rung is broken: no top has all of its rungs."""
    found: list[_Twin] = []
    if not errand.twins or errand.broken:
        return found
    for walk in Walk:
        if not all(rung.name in heights for rung in applicable if rung.walk is walk):
            continue
        chain = [rung for rung in applicable if rung.walk is walk and not rung.side]
        last = heights[chain[-1].name]
        for place, rung in enumerate(chain[1:-1], start=1):
            others = [one for one in chain if one.name != rung.name]
            setting = setting_of(walk, others, divisor=errand.climbing.divisor)
            top, here, below = last.measured, heights[rung.name].measured, heights[chain[place - 1].name].measured
            if setting == last.setting or top is None or here is None or below is None:
                continue
            if excess(planned(errand.climbing, setting, "", errand.texts), errand.climbing.memory_bytes):
                continue
            steps = LEAST_STEPS if walk is Walk.MEMORY else STEPS
            found.append(_Twin(rung, setting, steps, last.rung.name, below, here, top))
    return found


def _seconds(twin: _Twin, ascent: Ascent) -> float:
    """What one launch of a twin should take: that of the top, less the steps that it does not do."""
    return ascent.seconds[twin.top_name] - (STEPS - twin.steps) * twin.top.step_seconds


def _interactions(
    errand: Errand, twins: Sequence[_Twin], on_event: Callable[[int, Event], None]
) -> tuple[list[Interaction], dict[str, str], bool]:
    """What the tops lose without each of their rungs, how twins ended that failed, and whether that was interrupted."""
    found: list[Interaction] = []
    failed: dict[str, str] = {}
    for twin in twins:
        walk = twin.rung.walk
        label = f"{walk}/top without {twin.rung.name}"
        results = launched(errand, twin.setting, label, on_event, steps=twin.steps)
        last = results[-1]
        if last.status is Status.INTERRUPTED:
            return found, failed, True
        if last.status is not Status.OK:
            failed[label] = ending(last)
            continue
        without = measured(planned(errand.climbing, twin.setting, label, errand.texts), results)
        sides = {"below": twin.below, "here": twin.here, "top": twin.top, "without": without}
        found.append(interaction(walk, twin.rung, **sides, gpu=errand.climbing.device == "cuda"))
    return found, failed, False


def unclimbed(climbing: Climber, chosen: frozenset[str]) -> Climb | None:
    """A climb of rungs none of which applies here, with the reasons; None where one does."""
    refused = refusals(climbing)
    if not chosen <= set(refused):
        return None
    return Climb(
        run=climbing.name,
        device=climbing.device,
        heights=[Height(rung=rung, not_run=refused[rung.name]) for rung in RUNGS if rung.name in chosen],
        interactions=[],
        profile="not looked for: nothing runs",
        sample_seconds=0.0,
        started=time.time(),
    )


def verdict(found: Climb) -> Verdict:
    """Of a climb: the gravest that something in it has; inconclusive too where nothing was climbed."""
    if found.interrupted:
        return Verdict.INTERRUPTED
    if found.twins_failed or any(height.failed for height in found.heights):
        return Verdict.EXECUTION_FAILED
    marks = {check.mark for height in found.heights for check in height.checks}
    if Mark.FAIL in marks:
        return Verdict.FAIL
    if Mark.INCONCLUSIVE in marks or not any(height.measured for height in found.heights):
        return Verdict.INCONCLUSIVE
    return Verdict.PASS


def failures(found: Climb) -> list[str]:
    """Every promise that was not kept, as RUNG: PROMISE: WORDS; and every launch that did not end well."""
    lines = [f"{height.rung.name}: {height.failed}" for height in found.heights if height.failed]
    lines += [f"{label}: {words}" for label, words in found.twins_failed.items()]
    for height in found.heights:
        lines += [f"{height.rung.name}: {c.name}: {c.says}" for c in height.checks if c.mark is Mark.FAIL]
    return lines
