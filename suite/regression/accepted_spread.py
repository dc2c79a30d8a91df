"""Spread of the launches that became a baseline, and the slow-down that later launches will find next to them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from suite.metrics.figures import Quantity
from suite.metrics.noise_floor import IDENTICAL_LAUNCHES, own_floor
from suite.records.summary import LaunchSummary
from suite.regression.comparability import floor_of, seconds, setup_of
from suite.regression.looks import COUNTS, enough_launches, least_of

USUAL_LAUNCHES = 7  # of a check, unless it is asked for another number
SPREAD = "root mean square of the launches' deviations from their median"


class AcceptedSpread(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of the median steps of a baseline's launches, and what it is good for. What is not known is null.

    Args:
        spread: relative; root mean square of the launches' deviations (logarithms) from their median, widened by
            sqrt(n / (n - 1)) for the median that they gave themselves.
        tokens_per_second: of the slowest and the fastest launch.
        least_detectable: relative slow-down that a check of `checked_launches` finds in 9 of 10 cases.
        enough_launches: of a check, to find a slow-down by `limit`; None where not even 60 do.
        calibrated: 10 identical launches are recorded; otherwise the spread is a guess, and checks decide no times.
    """

    run: str
    launches: int
    median_seconds: float | None
    fastest_seconds: float | None
    slowest_seconds: float | None
    tokens_per_second: tuple[float, float] | None
    spread: float | None
    checked_launches: int
    least_detectable: float | None
    limit: float
    enough_launches: int | None
    calibrated: bool

    @property
    def is_useless(self) -> bool:
        """Whether a usual check next to it cannot show a slow-down by the limit."""
        return self.least_detectable is None or self.least_detectable > self.limit


def accepted_spread(now: Sequence[LaunchSummary], known: Sequence[LaunchSummary], *, limit: float) -> AcceptedSpread:
    """The spread of a baseline's launches, the noise that a check next to them will assume, and what that check finds.

    Args:
        known: all launches on record, these included: 10 identical ones are the machine's noise.
    """
    values = [value for value in map(seconds, now) if value is not None]
    rates = [rate for launch in now if (rate := launch.measured.of(Quantity.TOKENS_PER_SECOND.value)) is not None]
    own = own_floor(values, ())
    calibrated, _ = floor_of(setup_of(now[0]), now[0].node, known)
    floor = calibrated or own
    found: float | None = None
    enough = None
    if floor is not None and values:
        least = least_of(floor, len(values), family=1)
        found = None if (at := least(USUAL_LAUNCHES)) == float("inf") else at
        enough = USUAL_LAUNCHES if at <= limit else enough_launches(least, USUAL_LAUNCHES, limit)
    return AcceptedSpread(
        run=now[0].run,
        launches=len(now),
        median_seconds=statistics.median(values) if values else None,
        fastest_seconds=min(values, default=None),
        slowest_seconds=max(values, default=None),
        tokens_per_second=(min(rates), max(rates)) if rates else None,
        spread=None if own is None else own.variation,
        checked_launches=USUAL_LAUNCHES,
        least_detectable=found,
        limit=limit,
        enough_launches=enough,
        calibrated=calibrated is not None,
    )


def spread_lines(found: AcceptedSpread) -> list[str]:
    """The same for people: what was measured, what it will show, and a warning where that is too little."""
    if found.median_seconds is None or found.fastest_seconds is None or found.slowest_seconds is None:
        return ["no launch has a time: checks next to this baseline compare counts alone"]
    rates = found.tokens_per_second
    tokens = "" if rates is None else f" ({rates[0]:,.0f} to {rates[1]:,.0f} tokens/s)"
    spread = "unknown, of one launch" if found.spread is None else f"{found.spread:.1%} ({SPREAD})"
    lines = [f"steps from {found.fastest_seconds:.4g} to {found.slowest_seconds:.4g} s{tokens}; spread {spread}"]
    checks = f"a check of {found.checked_launches} launches"
    guess = "" if found.calibrated else ", if the noise is that of these launches"
    if found.least_detectable is not None:
        lines.append(
            f"{checks} will find a step slower by {found.least_detectable:.0%} or more in 9 of 10 cases{guess}"
        )
    if not found.calibrated:
        need = f"{IDENTICAL_LAUNCHES} identical launches of an unmodified checkout"
        lines.append(f"until {need} are recorded, checks decide no times")
    if found.is_useless:
        lines.append(_warning(found))
    return lines


def _warning(found: AcceptedSpread) -> str:
    """Where a usual check shows too little: what would show enough."""
    checks = f"a check of {found.checked_launches} launches"
    words = f"warning: with this baseline {checks} shows no slow-down by {found.limit:.0%}"
    if found.enough_launches is not None:
        return f"{words}; {found.enough_launches} launches do: --launches {found.enough_launches}"
    return (
        f"{words}, and not even {COUNTS[-1]} do: accept launches of a quieter machine, or more of them "
        "(--launches 20 --accept)"
    )
