"""A slice in words, and a row for each of its parts."""

from __future__ import annotations

from suite.job.slice import Slice, SlicePart, SliceStage, SliceTimes

COLUMNS = ("part", "median", "spread", "repetitions")


def slice_words(of: Slice) -> str:
    """What of which run it executes."""
    ends = {"embedding": of.stage.has_embedding, "head": of.stage.has_head}
    layers = "1 layer" if of.layers == 1 else f"{of.layers} layers"
    parts = ", ".join([layers, *(name for name, is_here in ends.items() if is_here)])
    only = of.stage is SliceStage.ONLY and of.layout.pipeline_stages > 1
    stage = "the first stage" if only else f"the {of.stage.value} stage"
    split = f", tensor-parallel share 1/{of.layout.tensor_parallel}" if of.layout.tensor_parallel > 1 else ""
    together = f", {len(of.group)} processes with real messages" if of.group else ""
    return f"{parts} of {stage} of {of.run}{split}{together}"


def place_words(of: Slice) -> str:
    """Whose places its processes take."""
    return f"ranks {', '.join(map(str, of.group))} of the layout" if of.group else f"rank {of.rank} of the layout"


def stopped_words(of: Slice | None, *, taken: int, asked: int) -> str:
    """That a slice took fewer steps than asked for, as its minutes were over; empty where all were taken."""
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
