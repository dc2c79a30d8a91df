"""Differences in words that need no sign: "7.0 % slower than expected", "12.0 % more than predicted"."""

from __future__ import annotations

import enum
import math

from suite.metrics.figures import EXACT, Quantity


class Direction(enum.Enum):
    """The words for more of a quantity and for less of it."""

    TIME = "slower", "faster"
    RATE = "faster", "slower"
    AMOUNT = "more", "less"
    LEVEL = "higher", "lower"


_AMOUNTS = ("byte", "flop", "accelerator s", "J")


def direction_of(quantity: str) -> Direction:
    """Direction of a quantity by its unit; counts are amounts, and what has no unit, such as a loss, is a level."""
    known = Quantity(quantity)
    if known.unit == "s":
        return Direction.TIME
    if known.unit.endswith("/s"):
        return Direction.RATE
    return Direction.AMOUNT if known in EXACT or known.unit in _AMOUNTS else Direction.LEVEL


def direction(value: float, reference: float, scale: Direction) -> str:
    """The word that compares `value` with `reference`, such as "slower"; "equal" where it is the same."""
    if value == reference:
        return "equal"
    more, less = scale.value
    return more if value > reference else less


def difference_in_words(value: float, reference: float, scale: Direction, *, than: str = "") -> str:
    """The difference of `value` from `reference` in percent of `reference`, to one decimal, with its direction.

    100 |value / reference - 1|: of two times that of seconds, of two rates that of what is done in a second. A node
    with 0.93 of a bandwidth is 7.0 % slower, and so is a step of 1.07 times its predicted seconds.

    Args:
        than: the participle that says what the reference is, such as "predicted"; empty: the words end with the
            direction, for a column whose title says it. In a sentence, what rounds to 0.0 % is "as predicted".
    """
    if not math.isfinite(value) or not math.isfinite(reference):
        return "not comparable"
    share = abs(value / reference - 1) if reference else math.inf if value else 0.0
    if value == reference or (than and share < 0.0005):
        return f"as {than}" if than else "equal"
    amount = "" if math.isinf(share) else f"{100 * share:,.1f} % " if share >= 0.0005 else "under 0.1 % "
    return f"{amount}{direction(value, reference, scale)}" + (f" than {than}" if than else "")
