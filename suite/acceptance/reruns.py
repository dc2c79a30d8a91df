"""What of a failed battery is run again in the time that is left: a failure of clocks needs a second look first."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from suite.acceptance.noninferiority import FEWEST


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """A phase that would be run again.

    Args:
        seconds: that it takes in full.
        launches: that it makes in full, each as long as the others; 0: it is run in full or not at all.
        needed: whether a failure in it stands or falls with the re-run; wrong bits stand either way.
    """

    name: str
    seconds: float
    launches: int
    needed: bool

    @property
    def shortest_seconds(self) -> float:
        """Of the least that confirms a failure: 3 launches, or everything."""
        return self.seconds * min(FEWEST, self.launches) / self.launches if self.launches else self.seconds


def affordable(due: Sequence[Due], seconds_left: float) -> list[Due]:
    """Those that fit together at their shortest, in the order given; needed ones first, then short ones."""
    chosen = []
    for one in sorted(due, key=lambda one: (not one.needed, one.shortest_seconds)):
        if one.shortest_seconds <= seconds_left:
            chosen.append(one)
            seconds_left -= one.shortest_seconds
    return [one for one in due if one in chosen]


def launches_that_fit(one: Due, later: Sequence[Due], seconds_left: float) -> int | None:
    """Launches of `one` that leave the shortest re-run of all `later` ones their time, 3 at least; 0: all of a phase
    without launches; None: not even the shortest fits.
    """
    if one.shortest_seconds > seconds_left:
        return None
    if not one.launches:
        return 0
    room = seconds_left - math.fsum(other.shortest_seconds for other in later)
    fit = int(room * one.launches / one.seconds) if one.seconds else one.launches
    return min(one.launches, max(fit, FEWEST))
