"""The remedy of a check that decided nothing: how many launches would decide it, and how long they take."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from suite.metrics.noise_floor import IDENTICAL_LAUNCHES, Floor, own_floor
from suite.records.summary import LaunchSummary
from suite.regression.comparability import is_modified
from suite.regression.looks import COUNTS, enough_launches, enough_looks, least_of
from suite.regression.verdicts import ChangeVerdict, JudgedChange, Sets, is_seen

UNDECIDED = frozenset({ChangeVerdict.INCONCLUSIVE, ChangeVerdict.UNCALIBRATED})


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """Launches that would decide a check, and their time.

    Args:
        launches: of each side that are launched, from the first one on; None where no number of launches would do.
        minutes: that a check with so many takes, with its re-run where a change was seen.
        until_decided_minutes: the same up to the look that decides it.
        words: for people.
    """

    launches: int | None
    minutes: float | None
    until_decided_minutes: float | None
    words: str


def remedy(
    sets: Sets, verdict: JudgedChange, *, in_turn: bool, launches: Sequence[LaunchSummary], first: int, limit: float
) -> Remedy:
    """Remedy of one run: a number of launches, or something else.

    So many launches are enough as would find, in 9 of 10 checks, a slow-down by `limit`; where a change was seen whose
    interval reaches into the band, one as large as that.

    Args:
        in_turn: both sides are launched; otherwise those of now alone, and the baseline's remain as many.
        launches: of this check, whose durations are taken.
        first: launches of a first look.
    """
    if verdict.change is not ChangeVerdict.UNCALIBRATED and sets.no_rerun:
        return _none("launches of the old code in turn are needed: --baseline COMMIT, or --python OLD")
    if sets.floor is None and launches and all(map(is_modified, launches)):
        return _none("commit the changes of this checkout first: launches of a modified one calibrate nothing")
    floor = sets.floor or own_floor(sets.before, sets.after)
    if floor is None:
        return _calibration(launches)
    seen = is_seen(verdict)
    change = max(verdict.difference.ratio, 1 / verdict.difference.ratio) - 1
    target = min(limit, change) if seen else limit
    before, family = None if in_turn else len(sets.before), verdict.family
    fewest = IDENTICAL_LAUNCHES - 1 if sets.floor is None else len(sets.after)
    enough = enough_launches(least_of(floor, before, family=family), fewest, target)
    if enough is None:
        return _none(_hopeless(floor, before, family, target))
    look = enough_looks(floor, before, family=family, first=first, limit=target)
    passes = (2 if in_turn else 1) + (2 if seen else 0)  # launches of a number: of the sides, and of the re-run
    minutes = _minutes(launches, passes * enough)
    look_minutes = None if look is None else _minutes(launches, passes * look)
    guess = ", if the noise is that of these launches" if sets.floor is None else ""
    longer = "" if look_minutes is None else f", or --until-decided {_rounded(look_minutes)}"
    time = "" if minutes is None else f", about {_rounded(minutes)} min"
    of = "of each " if in_turn else ""
    return Remedy(
        launches=enough,
        minutes=minutes,
        until_decided_minutes=look_minutes,
        words=f"{enough} launches {of}would decide it{guess}{time}: --launches {enough}{longer}",
    )


def _none(words: str) -> Remedy:
    return Remedy(launches=None, minutes=None, until_decided_minutes=None, words=words)


def _calibration(launches: Sequence[LaunchSummary]) -> Remedy:
    minutes = _minutes(launches, IDENTICAL_LAUNCHES)
    words = f"{IDENTICAL_LAUNCHES} identical launches are needed first: --launches {IDENTICAL_LAUNCHES}"
    return Remedy(launches=IDENTICAL_LAUNCHES, minutes=minutes, until_decided_minutes=None, words=words)


def _hopeless(floor: Floor, before: int | None, family: int, target: float) -> str:
    """Why not even the most launches would do."""
    most = COUNTS[-1]
    if before is not None and least_of(floor, None, family=family)(most) <= target:
        return f"the baseline's {before} launches are too few, however many follow: --accept a larger one"
    return f"not even {most} launches of each would find {target:.0%} on this machine: it has to be quieter"


def _rounded(minutes: float) -> int:
    return max(1, math.ceil(minutes))


def _minutes(launches: Sequence[LaunchSummary], count: int) -> float | None:
    """Minutes that so many launches take, by the median duration of these; None where none has an end."""
    lasted = [launch.finished - launch.started for launch in launches if launch.finished is not None]
    return statistics.median(lasted) * count / 60 if lasted else None
