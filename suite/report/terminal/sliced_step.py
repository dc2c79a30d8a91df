"""A step of measured parts for people: what was measured and what modelled, its interval, next to the published one."""

from __future__ import annotations

from rich.console import Console

from suite.predict.recorded_run.from_slice import MeasuredPart, SlicedStep
from suite.report.terminal.tables import percent, print_folded

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def print_sliced(
    out: Console, sliced: SlicedStep, published: float | None, *, elsewhere: str, parts_compare: bool
) -> None:
    """Print what of a step was measured, and the step with its interval.

    Args:
        published: seconds of a step.
        elsewhere: in words, that they are of another machine or layout; empty: of these.
        parts_compare: whether the model's parts are of the device that measured.
    """
    parts = ", ".join(_part(part, compares=parts_compare) for part in sliced.parts)
    print_folded(out, f"measured on {sliced.device}: {parts}", "")
    share = 1 - sliced.measured_seconds / sliced.step_seconds
    lacking = "".join(f"{name}, " for name in sliced.modelled)
    other = "other " if sliced.messages else ""
    print_folded(out, f"modelled: {lacking}{other}messages, overheads: {share:.1%} of the step", "")
    if sliced.messages:
        axes = ", ".join(sliced.messages)
        print_folded(out, f"measured with their messages over {axes}: layers, embedding and head", "")
    if sliced.scaled:
        print_folded(out, f"scaled: {sliced.scaled}", "yellow")
    interval = f"{sliced.low_seconds:,.4g} to {sliced.high_seconds:,.4g} s"
    line = f"step from the slice: {sliced.step_seconds:,.4g} s, {interval}"
    if published is not None:
        apart = "" if elsewhere else f" ({percent(sliced.step_seconds - published, published)})"
        line += f"; published {published:,.4g} s{apart}{elsewhere}"
    print_folded(out, f"{line}; modelled alone {sliced.plain_seconds:,.4g} s", "bold")


def _part(part: MeasuredPart, *, compares: bool) -> str:
    number, of = (1e6, " a million parameters") if part.name == "update" else (1.0, "")
    words = f"{part.name} {_read(number * part.seconds)}{of}"
    if part.spread is not None:
        words += f" ± {part.spread:.1%}"
    if not (compares and part.modelled_seconds and part.seconds):
        return words
    apart = percent(part.modelled_seconds - part.seconds, part.seconds)
    return f"{words} (modelled {_read(number * part.modelled_seconds)}, {apart})"


def _read(seconds: float) -> str:
    factor, unit = next((each for each in UNITS if seconds >= each[0]), UNITS[-1])
    return f"{seconds / factor:.4g} {unit}"
