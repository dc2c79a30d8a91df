"""A pipeline's schedule as a picture: what each stage or rank computes, and when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reference_runs.errors import InputError
from suite.job.pipeline_passes import PassKind
from suite.report.schedule import NAMES, Panel

# Okabe and Ito's colours
COLOURS = {
    PassKind.FORWARD: "#56b4e9",
    PassKind.BACKWARD: "#d55e00",
    PassKind.INPUT: "#e69f00",
    PassKind.WEIGHT: "#009e73",
}
IDLE = "#ebebeb"
MOST_NUMBERS = 200  # passes of a panel whose micro-batches are written into them
NARROWEST = 0.008  # of the axis: a pass into which a number of one digit fits
LATER = 0.55  # how much of its colour a pass of a rank's second chunk has, and of each one after it again


def draw_schedule(path: Path, panels: Sequence[Panel], *, heading: str = "") -> None:
    """Write a picture of the panels, one below the other over one axis.

    Raises:
        InputError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [1.3 + 0.32 * len(panel.lanes) for panel in panels]
    figure = Figure(figsize=(11, sum(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    if heading:
        figure.suptitle(heading, fontsize=10)
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=rows, sharex=True)[:, 0]
    longest = max(panel.end for panel in panels)
    for panel, following, drawn in zip(panels, (*panels[1:], None), axes, strict=True):
        _draw(panel, drawn, longest=longest, words=following is None or following.axis != panel.axis)
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot draw: {error}", where=str(path)) from error


def _draw(panel: Panel, axes: Any, *, longest: float, words: bool) -> None:
    from matplotlib.patches import Patch

    numbered = panel.numbers <= MOST_NUMBERS
    for row, lane in enumerate(panel.lanes):
        axes.barh(row, panel.end, height=0.9, color=IDLE)
        for each, start, end in lane.passes:
            axes.barh(
                row,
                end - start,
                left=start,
                height=0.9,
                color=_colour(each.kind, each.chunk // panel.stages),
                edgecolor="white",
                linewidth=0.5 if numbered else 0.0,
            )
            if numbered and end - start > NARROWEST * longest:
                axes.text((start + end) / 2, row, str(each.micro_batch), ha="center", va="center", fontsize=7)
    axes.set_title(panel.title, fontsize=9)
    axes.set_yticks(range(len(panel.lanes)), [lane.name for lane in panel.lanes])
    axes.invert_yaxis()
    if words:
        axes.set_xlabel(panel.axis)
    axes.margins(x=0)
    axes.spines[["top", "right"]].set_visible(False)
    if not panel.has_unit:
        axes.tick_params(bottom=False, labelbottom=False)
        axes.spines[["bottom"]].set_visible(False)
    passes = [each.done for lane in panel.lanes for each in lane.passes]
    kinds = {each.kind for each in passes}
    handles = [Patch(color=COLOURS[kind], label=NAMES[kind]) for kind in COLOURS if kind in kinds]
    for chunk in range(1, 1 + max(each.chunk for each in passes) // panel.stages):
        colour = _colour(PassKind.FORWARD, chunk)
        handles.append(Patch(color=colour, label=f"paler: chunk {chunk + 1} of its rank"))
    handles.append(Patch(color=IDLE, label="waits"))
    axes.legend(handles=handles, fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _colour(kind: PassKind, chunk: int) -> tuple[float, float, float]:
    """The colour of a pass of its rank's chunk number `chunk`, counted from 0: the later, the paler."""
    from matplotlib.colors import to_rgb

    share = LATER**chunk
    red, green, blue = (1 - share * (1 - part) for part in to_rgb(COLOURS[kind]))
    return red, green, blue
