"""A slice for people: what it executes, its measured parts, and the step that is made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from suite.job.slice import Slice, SlicePart, SliceStage, SliceTimes
from suite.metrics.difference_words import Direction, difference_in_words
from suite.report.terminal.tables import print_folded, print_table

if TYPE_CHECKING:
    from suite.predict.recorded_run.from_slice import MeasuredPart, SlicedStep

COLUMNS = ("part", "median", "spread", "repetitions")


def slice_words(of: Slice) -> str:
    """The parts and the run that a slice executes."""
    ends = {"embedding": of.stage.has_embedding, "head": of.stage.has_head}
    layers = "1 layer" if of.layers == 1 else f"{of.layers} layers"
    parts = ", ".join([layers, *(name for name, is_here in ends.items() if is_here)])
    only = of.stage is SliceStage.ONLY and of.layout.pipeline_stages > 1
    stage = "the first stage" if only else f"the {of.stage.value} stage"
    split = f", tensor-parallel share 1/{of.layout.tensor_parallel}" if of.layout.tensor_parallel > 1 else ""
    together = f", {len(of.group)} processes with real messages" if of.group else ""
    return f"{parts} of {stage} of {of.run}{split}{together}"


def place_words(of: Slice) -> str:
    """The ranks whose places its processes take."""
    return f"ranks {', '.join(map(str, of.group))} of the layout" if of.group else f"rank {of.rank} of the layout"


def stopped_words(of: Slice | None, *, taken: int, asked: int) -> str:
    """A sentence if a slice took fewer steps than asked for because its minutes were over; empty otherwise."""
    if of is None or of.minutes is None or taken >= asked:
        return ""
    return f"stopped after {taken} of {asked} repetitions: {of.minutes:g} minutes are over"


def part_rows(times: SliceTimes) -> list[list[str]]:
    """Median, spread and number of repetitions of each part, in the order of a step."""
    rows = []
    for part in SlicePart:
        if (median := times.median(part)) is None:
            continue
        spread = times.spread(part)
        name = part.value.replace("_", " ")
        name += f" of {times.updated_parameters:,} parameters" if part is SlicePart.UPDATE else ""
        rows.append(
            [name, _milliseconds(median), "-" if spread is None else f"± {spread:.1%}", str(len(times.seconds[part]))]
        )
    return rows


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.4g} ms"


SPREAD = "spread: half of the range between the quartiles, over the median; a layer: the mean of the slice's"


def print_parts(out: Console, times: SliceTimes) -> None:
    """A row for each part."""
    print_table(out, part_rows(times), COLUMNS, right=COLUMNS[1:])
    print_folded(out, SPREAD)


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
        apart = difference_in_words(sliced.step_seconds, published, Direction.TIME, than="published")
        line += f"; published {published:,.4g} s{elsewhere}" if elsewhere else f", {apart} ({published:,.4g} s)"
    print_folded(out, f"{line}; modelled alone {sliced.plain_seconds:,.4g} s", "bold")


def _part(part: MeasuredPart, *, compares: bool) -> str:
    number, of = (1e6, " a million parameters") if part.name == "update" else (1.0, "")
    words = f"{part.name} {_read(number * part.seconds)}{of}"
    if part.spread is not None:
        words += f" ± {part.spread:.1%}"
    if not (compares and part.modelled_seconds and part.seconds):
        return words
    apart = difference_in_words(part.seconds, part.modelled_seconds, Direction.TIME, than="modelled")
    return f"{words}, {apart} ({_read(number * part.modelled_seconds)})"


def _read(seconds: float) -> str:
    factor, unit = next((each for each in UNITS if seconds >= each[0]), UNITS[-1])
    return f"{seconds / factor:.4g} {unit}"
