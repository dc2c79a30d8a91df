"""A pipeline's schedule as a picture: what each stage computes, and when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reference_runs.catalog import accumulation
from reference_runs.errors import InputError
from reference_runs.layout import layout_text
from reference_runs.run import Workload
from suite.job.pipeline_passes import PassKind
from suite.predict.simulation.pipeline_schedule import flop_durations, idle_fraction, timed_passes

# Okabe and Ito's colours
COLOURS = {
    PassKind.FORWARD: "#56b4e9",
    PassKind.BACKWARD: "#d55e00",
    PassKind.INPUT: "#e69f00",
    PassKind.WEIGHT: "#009e73",
}
NAMES = {
    PassKind.FORWARD: "forward",
    PassKind.BACKWARD: "backward",
    PassKind.INPUT: "gradients of inputs",
    PassKind.WEIGHT: "gradients of weights",
}
MOST_NUMBERS = 200  # passes of a picture whose micro-batches are written into them
LATER = 0.55  # how much of its colour a pass of a rank's second chunk has, and of each one after it again


def draw_schedule(path: Path, workloads: Sequence[tuple[str, Workload]]) -> None:
    """Write a picture with a panel for each workload: a row a stage, each pass as long as its flop.

    Args:
        workloads: name, and what is trained.

    Raises:
        InputError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = [1.3 + 0.32 * workload.layout.pipeline_stages for _, workload in workloads]
    figure = Figure(figsize=(11, sum(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(workloads), 1, squeeze=False, height_ratios=rows, sharex=True)[:, 0]
    for (name, workload), panel in zip(workloads, panels, strict=True):
        layout, micro_batches = workload.layout, accumulation(workload.recipe, workload.layout)
        durations = flop_durations(workload)
        stages = timed_passes(layout, durations, micro_batches=micro_batches)
        numbered = sum(map(len, stages)) <= MOST_NUMBERS
        for stage, done in enumerate(stages):
            for each, start, end in done:
                panel.barh(
                    stage,
                    end - start,
                    left=start,
                    height=0.9,
                    color=COLOURS[each.kind],
                    alpha=LATER ** (each.chunk // layout.pipeline_stages),
                    edgecolor="white",
                    linewidth=0.5 if numbered else 0.0,
                )
                if numbered and end > start:
                    panel.text((start + end) / 2, stage, str(each.micro_batch), ha="center", va="center", fontsize=7)
        idle = idle_fraction(layout, durations, micro_batches=micro_batches)
        panel.set_title(f"{name}, {layout_text(layout)}: a stage waits {idle:.1%} of the time", fontsize=9)
        panel.set_yticks(range(layout.pipeline_stages), [f"stage {stage}" for stage in range(layout.pipeline_stages)])
        panel.invert_yaxis()
        panel.set_xticks([])
        panel.set_xlabel(f"{micro_batches} micro-batches; a pass is as long as its flop, messages take no time")
        panel.margins(x=0)
        panel.spines[["top", "right", "bottom"]].set_visible(False)
        kinds = {each.kind for done in stages for each, _, _ in done}
        handles = [Patch(color=COLOURS[kind], label=NAMES[kind]) for kind in COLOURS if kind in kinds]
        panel.legend(handles=handles, fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot draw: {error}", where=str(path)) from error
