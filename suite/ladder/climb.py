"""Climbs the ladder: every rung launched, predicted and judged, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from suite.job import LEAST_STEPS, Event, Status
from suite.ladder.ascent import Ascent, Errand, Height, launched
from suite.ladder.judged import Interaction, Mark, interaction
from suite.ladder.measured import measured
from suite.ladder.planned import STEPS, planned, refusal
from suite.ladder.rungs import RUNGS, Rung, Walk, setting_of, stands_on


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
        results = launched(errand, without, label, on_event, steps=steps)
        if any(result.status is Status.INTERRUPTED for result in results):
            return found, True
        if any(result.status is not Status.OK for result in results):
            continue
        twin = measured(planned(errand.climbing, without, label, errand.texts), results)
        found.append(interaction(walk, rung, below=below, here=here, top=top.measured, without=twin))
    return found, False


def failures(found: Climb) -> list[str]:
    """Every promise that was not kept, as RUNG: PROMISE: WORDS; and every launch that did not end well."""
    lines = [f"{height.rung.name}: {height.failed}" for height in found.heights if height.failed]
    for height in found.heights:
        lines += [f"{height.rung.name}: {c.name}: {c.says}" for c in height.checks if c.mark is Mark.FAIL]
    return lines
