"""Verdicts on step times compared with a baseline: the conditions under which a difference counts as a change."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Sequence

import msgspec

from suite.metrics.difference_words import Direction, difference_in_words
from suite.metrics.noise_floor import LEAST_EFFECT, Floor, band, least_detectable, own_floor
from suite.metrics.two_sample import (
    FALSE_DISCOVERIES,
    TwoSampleDifference,
    adjusted,
    difference,
    largest_family,
    least_p,
)

LIMIT = (
    0.10  # relative slow-down that a check should find in 9 of 10 cases; an operator's choice: what slowness matters
)


class ChangeVerdict(enum.StrEnum):
    """Change of one quantity."""

    REGRESSION = "regression"
    IMPROVED = "improved"
    SAME = "same"  # of what is decided by one launch: equal, or within its tolerance
    NOISE = "noise"
    INCONCLUSIVE = "inconclusive"
    UNCALIBRATED = "uncalibrated"
    SHOWN = "shown"  # follows from a judged quantity, or explains it


class Sets(msgspec.Struct, frozen=True, kw_only=True):
    """Launches of one time, one value each: of the baseline, of now, and of both in turn again.

    Args:
        rerun: of baseline and now, launched in turn (A B A B ...) after the comparison; None where there was none.
        no_rerun: why there can be none; empty where there can.
        floor: of the machine's identical launches; None where there are fewer than 10.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]
    floor: Floor | None = None
    rerun: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    no_rerun: str = ""


class JudgedChange(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one time and all it rests on.

    Args:
        q: the p of the rank test, adjusted for the family and times the price of the look; `family` its size.
        band: relative; None where not even the launches themselves have a spread.
        least_detectable: relative slow-down that the whole rule finds in 9 of 10 comparisons; None: none at all.
        rerun: the re-run's own difference.
        to_confirm: whether only the re-run is missing.
    """

    difference: TwoSampleDifference
    q: float
    family: int
    band: float | None
    least_detectable: float | None
    rerun: TwoSampleDifference | None
    change: ChangeVerdict
    why: str
    to_confirm: bool = False


def judged(family: Sequence[Sets], limit: float = LIMIT, *, price: int = 1, settled: int = 0) -> list[JudgedChange]:
    """The verdicts on a family of times, in its order; each of the sets is one hypothesis of it.

    A change is one where all of these hold, in the comparison and again in the re-run by itself (whose family is one):

        q < 0.05                        Mann-Whitney, adjusted after Benjamini and Hochberg over the family
        the interval of the ratio       wholly beyond the band of the machine's identical launches
        the ratio                       2 % or more: at least 1.02, or at most 1 / 1.02

    No change seen is noise only where a slow-down by `limit` would have been seen: where the least detectable one is
    larger, it is inconclusive.

    Args:
        price: of this look among several, see `suite.regression.looks`: every q is multiplied by it.
        settled: members of the family with a verdict from an earlier look. They count as equal here: that only makes
            the others' q larger.

    Raises:
        ValueError: an empty set, or a value not above 0.
    """
    differences = [difference(sets.before, sets.after) for sets in family]
    adjusted_p = adjusted([*(item.p for item in differences), *itertools.repeat(1.0, settled)])
    members = len(family) + settled
    found = [
        _judged(sets, first, min(1.0, price * q), members, price)
        for sets, first, q in zip(family, differences, adjusted_p, strict=False)
    ]
    return [_in_sight(change, limit) for change in found]


def is_seen(found: JudgedChange) -> bool:
    """Whether the comparison differs by all but its interval, and no re-run has denied it."""
    if found.q >= FALSE_DISCOVERIES or found.band is None or not _large(found.difference):
        return False
    denied = found.rerun is not None and found.rerun.p >= FALSE_DISCOVERIES
    return not denied and not _within(found.difference, found.band)


def _in_sight(found: JudgedChange, limit: float) -> JudgedChange:
    """The verdict, less a noise that launches of such a spread would call a slow-down beyond the limit too."""
    least = found.least_detectable
    if found.change is not ChangeVerdict.NOISE or (least is not None and least <= limit):
        return found
    words = "no slow-down at all" if least is None else f"only one of {least:.0%} or more"
    why = f"{found.why}; {words} is found in 9 of 10 checks, asked for {limit:.0%}"
    return msgspec.structs.replace(found, change=ChangeVerdict.INCONCLUSIVE, why=why)


def _judged(sets: Sets, first: TwoSampleDifference, q: float, family: int, price: int) -> JudgedChange:
    floor = sets.floor or own_floor(sets.before, sets.after)
    launches = min(len(sets.before), len(sets.after))
    width = None if floor is None else band(floor, launches)
    rerun = None if sets.rerun is None else difference(*sets.rerun)
    change, why, to_confirm = _verdict(sets, first, q, (family, price), width, rerun)
    least = None
    if floor is not None:
        least = least_detectable(
            floor, len(sets.before), len(sets.after), family=family * price, rerun=_rerun_launches(sets)
        )
    return JudgedChange(
        difference=first,
        q=q,
        family=family,
        band=width,
        least_detectable=least,
        rerun=rerun,
        change=change,
        why=why,
        to_confirm=to_confirm,
    )


def _rerun_launches(sets: Sets) -> int:
    """Launches a side that a re-run had, or would have: as many as there are of now."""
    return len(sets.after) if sets.rerun is None else min(map(len, sets.rerun))


def _verdict(
    sets: Sets,
    first: TwoSampleDifference,
    q: float,
    family: tuple[int, int],
    width: float | None,
    rerun: TwoSampleDifference | None,
) -> tuple[ChangeVerdict, str, bool]:
    """Verdict, why, and whether only the re-run is missing; `family` are its members and the price of the look."""
    least = least_p(len(sets.before), len(sets.after))
    if sets.floor is None or width is None:
        return ChangeVerdict.UNCALIBRATED, "fewer than 10 identical launches of one setup are recorded here", False
    if q >= FALSE_DISCOVERIES:
        if math.prod(family) * least >= FALSE_DISCOVERIES:
            return ChangeVerdict.INCONCLUSIVE, _too_few(sets, *family), False
        return ChangeVerdict.NOISE, f"no difference: q {q:.2g}", False
    if not _large(first):
        return ChangeVerdict.NOISE, f"less than {LEAST_EFFECT:.0%}", False
    if _within(first, width):
        return ChangeVerdict.NOISE, "the interval lies within the band", False
    if not _beyond(first, width):
        return ChangeVerdict.INCONCLUSIVE, "the interval reaches into the band: more launches would tell", False
    if rerun is None:
        why = sets.no_rerun or "a re-run of both in turn has to confirm it"
        return ChangeVerdict.INCONCLUSIVE, why, not sets.no_rerun
    return _confirmed(first, rerun, width)


def _too_few(sets: Sets, family: int, price: int) -> str:
    most = largest_family(len(sets.before), len(sets.after))
    counts = f"{len(sets.before)} and {len(sets.after)} launches"
    if most < 1:
        return f"{counts} never differ by the rank test"
    return f"{counts} show one change among {most} quantities at most, here are {family}" + (
        f", {price}-fold as one of several looks" if price > 1 else ""
    )


def _confirmed(first: TwoSampleDifference, rerun: TwoSampleDifference, width: float) -> tuple[ChangeVerdict, str, bool]:
    slower = first.ratio > 1
    if rerun.p < FALSE_DISCOVERIES and _large(rerun) and _beyond(rerun, width) and (rerun.ratio > 1) == slower:
        change = ChangeVerdict.REGRESSION if slower else ChangeVerdict.IMPROVED
        return change, f"confirmed in turn: {_words(rerun)}", False
    if rerun.p >= FALSE_DISCOVERIES or _within(rerun, width) or not _large(rerun):
        return ChangeVerdict.NOISE, f"not confirmed in turn: {_words(rerun)}, p {rerun.p:.2g}", False
    return ChangeVerdict.INCONCLUSIVE, f"the re-run does not settle it: {_words(rerun)}", False


def _words(compared: TwoSampleDifference) -> str:
    return difference_in_words(compared.ratio, 1.0, Direction.TIME)


def _large(compared: TwoSampleDifference) -> bool:
    return max(compared.ratio, 1 / compared.ratio) >= 1 + LEAST_EFFECT


def _beyond(compared: TwoSampleDifference, width: float) -> bool:
    if compared.interval is None:
        return False
    low, high = compared.interval
    return low > 1 + width or 1 / high > 1 + width


def _within(compared: TwoSampleDifference, width: float) -> bool:
    return compared.interval is not None and max(compared.interval[1], 1 / compared.interval[0]) <= 1 + width
