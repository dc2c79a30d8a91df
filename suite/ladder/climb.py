"""Climbs the ladder: every rung launched, predicted and judged, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from suite.corpus import Corpus
from suite.job import LEAST_STEPS, Event, Status
from suite.ladder.judged import (
    Check,
    Gain,
    Interaction,
    Mark,
    cost,
    gain,
    gain_check,
    interaction,
    loss_check,
    peak_check,
)
from suite.ladder.measured import Expected, Measured, expected, measured
from suite.ladder.planned import STEPS, Climber, planned, refusal
from suite.ladder.rungs import RUNGS, Rung, Setting, Walk, setting_of, stands_on
from suite.machine_profile import Profile
from suite.reproduction import Result, reproduce
from suite.script import Texts

CONFIRMING_SECONDS = 180.0  # behind which no gain that failed is begun to be measured again


class Height(msgspec.Struct, frozen=True, kw_only=True):
    """One rung, climbed or not.

    Args:
        not_run: why it does not apply here; failed: how its launch ended where not well.
        below: name of the rung that it is compared with; empty for a baseline.
        share: its cost over the baseline's.
    """

    rung: Rung
    setting: Setting | None = None
    not_run: str = ""
    failed: str = ""
    below: str = ""
    expected: Expected | None = None
    measured: Measured | None = None
    gain: Gain | None = None
    share: float | None = None
    checks: tuple[Check, ...] = ()
    broken: bool = False


class Climb(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found, in the order of the rungs; `whole`: every rung was wanted, and none broken."""

    run: str
    device: str
    heights: list[Height]
    interactions: list[Interaction]
    profile: str
    sample_seconds: float
    interrupted: bool = False
    started: float = 0.0
    whole: bool = False


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be climbed, and where its records go.

    Args:
        chosen: names of the rungs that are wanted; what they stand on is climbed too.
        broken: names of rungs whose changes are left out of what is launched, not of what is predicted.
        twins: whether the top of each walk is launched without each of its rungs.
        traces: directory for a trace of each rung's first launch; None: no traces.
    """

    climbing: Climber
    corpus: Corpus
    texts: Texts
    results: Path
    chosen: frozenset[str]
    broken: frozenset[str] = frozenset()
    repeat: int = 1
    twins: bool = True
    profile: Profile | None = None
    profile_source: str = ""
    sample_seconds: float = 0.0
    traces: Path | None = None


def wanted(errand: Errand) -> tuple[list[Rung], list[Rung]]:
    """The rungs to launch: those that are chosen, and the one that each is compared with; and all that apply here."""
    applicable = [rung for rung in RUNGS if not refusal(rung, errand.climbing)]
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
    rungs, applicable = wanted(errand)
    ascent = Ascent(errand, applicable, on_event)
    heights = ascent.heights
    interactions: list[Interaction] = []
    interrupted = False
    for rung in rungs:
        interrupted = ascent.climb(rung)
        if interrupted:
            break
        on_height(heights[rung.name])
    interrupted = interrupted or ascent.confirm(on_height)
    for walk in Walk:
        if interrupted or not errand.twins or not all(r.name in heights for r in applicable if r.walk is walk):
            continue
        found, interrupted = _interactions(errand, walk, applicable, heights, on_event)
        interactions += found
    return Climb(
        run=errand.climbing.name,
        device=errand.climbing.device,
        heights=list(heights.values()),
        interactions=interactions,
        profile=errand.profile_source,
        sample_seconds=errand.sample_seconds,
        interrupted=interrupted,
        started=started,
        whole=not interrupted and not errand.broken and len(rungs) == len(RUNGS),
    )


class Ascent:
    """A climb under way: what was launched of every rung, and what it says."""

    def __init__(self, errand: Errand, applicable: Sequence[Rung], on_event: Callable[[int, Event], None]) -> None:
        self.heights: dict[str, Height] = {}
        self._errand = errand
        self._applicable = applicable
        self._on_event = on_event
        self._results: dict[str, list[Result]] = {}

    def climb(self, rung: Rung) -> bool:
        """Launch a rung and judge it; whether that was interrupted."""
        errand = self._errand
        reason = refusal(rung, errand.climbing)
        if reason:
            self.heights[rung.name] = Height(rung=rung, not_run=reason)
            return False
        chain = self._chain(rung)
        setting = setting_of(rung.walk, [one for one in chain if one.name not in errand.broken])
        height = Height(rung=rung, setting=setting, broken=rung.name in errand.broken)
        results = self._launched(height, trace=trace_of(errand.traces, rung))
        bad = next((result for result in results if result.status is not Status.OK), None)
        if bad is None:
            self._results[rung.name] = results
            self.heights[rung.name] = self._judged(height)
        elif bad.status is not Status.INTERRUPTED:
            words = f"{bad.status.value}: {bad.message}; record {bad.record}"
            self.heights[rung.name] = msgspec.structs.replace(height, failed=words)
        return bad is not None and bad.status is Status.INTERRUPTED

    def confirm(self, on_height: Callable[[Height], None]) -> bool:
        """Measure each time gain that failed again, beside the rung below; whether that was interrupted.

        One sight of a gain has both rungs in phases of the machine of their own. Now they are launched in turn, below,
        here, here, below, and what all launches say together is what counts. A gain that another one's launches make
        fail is measured again too; a rung that was broken on purpose is not.
        """
        start, confirmed = time.monotonic(), set[str]()
        while time.monotonic() - start < CONFIRMING_SECONDS:
            failed = [name for name, height in self.heights.items() if _gain_failed(height) and name not in confirmed]
            if not failed:
                return False
            confirmed.add(failed[0])
            here = self.heights[failed[0]]
            below = self.heights[here.below]
            for height in (below, here, here, below):
                results = self._launched(height)
                if any(result.status is Status.INTERRUPTED for result in results):
                    return True
                if any(result.status is not Status.OK for result in results):
                    return False  # the record of it lies there; what was judged stands
                self._results[height.rung.name] += results
            for name, height in self.heights.items():
                if height.measured is not None and height.rung.walk is here.rung.walk:
                    self.heights[name] = self._judged(height)
            on_height(self.heights[here.rung.name])
        return False

    def _chain(self, rung: Rung) -> list[Rung]:
        return [*stands_on(rung, self._applicable), rung]

    def _label(self, rung: Rung) -> str:
        broken = any(one.name in self._errand.broken for one in self._chain(rung))
        return f"{rung.walk}/{rung.name}" + (", broken" if broken else "")

    def _launched(self, height: Height, trace: Path | None = None) -> list[Result]:
        assert height.setting is not None
        return _launched(self._errand, height.setting, self._label(height.rung), self._on_event, trace=trace)

    def _judged(self, height: Height) -> Height:
        """What a rung's launches say, beside those of the rung below."""
        errand, rung, chain = self._errand, height.rung, self._chain(height.rung)
        assert height.setting is not None
        label = self._label(rung)
        found = measured(planned(errand.climbing, height.setting, label, errand.texts), self._results[rung.name])
        said = height.expected or _expected(errand, setting_of(rung.walk, chain), label, rung)
        checks = [peak_check(said, found)]
        height = msgspec.structs.replace(height, expected=said, measured=found, share=1.0)
        below = self.heights.get(chain[-2].name) if len(chain) > 1 else None
        if below is not None and below.measured is not None and below.expected is not None:
            difference = gain(rung.walk, below=(below.expected, below.measured), here=(said, found))
            gpu = errand.climbing.device == "cuda"
            checks.append(loss_check(rung, found, below.measured))
            unknown = said.seconds_unknown or below.expected.seconds_unknown
            checks.append(gain_check(difference, gpu=gpu, broken=height.broken, unknown=unknown))
            height = msgspec.structs.replace(height, below=below.rung.name, gain=difference)
        base = self.heights.get(chain[0].name)
        if base is not None and base.measured is not None:
            share = cost(rung.walk, found) / cost(rung.walk, base.measured)
            height = msgspec.structs.replace(height, share=share)
        return msgspec.structs.replace(height, checks=tuple(checks))


def _gain_failed(height: Height) -> bool:
    return (
        height.rung.walk is Walk.SPEED
        and not height.broken
        and any(check.name == "gain" and check.mark is Mark.FAIL for check in height.checks)
    )


def _launched(
    errand: Errand,
    setting: Setting,
    label: str,
    on_event: Callable[[int, Event], None],
    *,
    steps: int = STEPS,
    trace: Path | None = None,
) -> list[Result]:
    plan = planned(errand.climbing, setting, label, errand.texts, steps=steps, trace=trace)
    results: list[Result] = []
    for _ in range(errand.repeat):
        results.append(
            reproduce(
                plan,
                errand.corpus,
                errand.results,
                on_event,
                profile=errand.profile,
                profile_source=errand.profile_source,
                sample_seconds=errand.sample_seconds,
            )
        )
        plan = msgspec.structs.replace(plan, trace=None)
        if results[-1].status is not Status.OK:
            break
    return results


def _expected(errand: Errand, setting: Setting, label: str, rung: Rung) -> Expected:
    """Of the rung as it is declared, whatever of it was broken."""
    plan = planned(errand.climbing, setting, label, errand.texts)
    why = rung.seconds_unknown
    if not why and errand.profile is None:
        why = errand.profile_source
    if not why and errand.profile is not None and plan.layout.ranks > errand.profile.conditions.ranks:
        why = f"this machine is calibrated with {errand.profile.conditions.ranks} ranks at once"
    return expected(plan, errand.corpus, errand.profile, why_none=why, sample_seconds=errand.sample_seconds)


def _interactions(
    errand: Errand,
    walk: Walk,
    applicable: Sequence[Rung],
    heights: dict[str, Height],
    on_event: Callable[[int, Event], None],
) -> tuple[list[Interaction], bool]:
    """The top of a walk without each of its rungs; of rungs that a later one replaces nothing is left to remove."""
    chain = [rung for rung in applicable if rung.walk is walk and not rung.side]
    top = heights[chain[-1].name]
    found: list[Interaction] = []
    for place, rung in enumerate(chain[1:-1], start=1):
        without = setting_of(walk, [one for one in chain if one.name != rung.name])
        here, below = heights[rung.name].measured, heights[chain[place - 1].name].measured
        if without == top.setting or top.measured is None or here is None or below is None:
            continue
        label = f"{walk}/top without {rung.name}"
        # of memory the peak alone is looked at, which the fewest steps tell
        steps = LEAST_STEPS if walk is Walk.MEMORY else STEPS
        results = _launched(errand, without, label, on_event, steps=steps)
        if any(result.status is Status.INTERRUPTED for result in results):
            return found, True
        if any(result.status is not Status.OK for result in results):
            continue
        twin = measured(planned(errand.climbing, without, label, errand.texts), results)
        found.append(interaction(walk, rung, below=below, here=here, top=top.measured, without=twin))
    return found, False


def trace_of(directory: Path | None, rung: Rung) -> Path | None:
    """The file for the trace of a rung."""
    return None if directory is None else directory / f"{rung.name}.json"


def failures(found: Climb) -> list[str]:
    """Every promise that was not kept, as RUNG: PROMISE: WORDS; and every launch that did not end well."""
    lines = [f"{height.rung.name}: {height.failed}" for height in found.heights if height.failed]
    for height in found.heights:
        lines += [f"{height.rung.name}: {c.name}: {c.says}" for c in height.checks if c.mark is Mark.FAIL]
    return lines
