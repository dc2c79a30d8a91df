"""The memory of a dry run's fullest rank over a step, as a stacked picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reference_runs.errors import InputError
from reference_runs.layout import layout_text
from suite.reproduce.dry_run.comparison import DryRun

GIB = 2**30
# from the bottom: what stays, then what comes and goes; Okabe and Ito's colours
COLOURS = {
    "weights": "#0072b2",
    "optimizer state": "#56b4e9",
    "gathered weights": "#003c5f",
    "gradients": "#009e73",
    "message buffers": "#999999",
    "samples": "#cccccc",
    "forward pass": "#e69f00",
    "computed again": "#f0e442",
    "backward pass": "#d55e00",
    "update": "#cc79a7",
    "other": "#000000",
}
CATEGORIES = tuple(COLOURS)


def draw_memory(path: Path, runs: Sequence[DryRun]) -> None:
    """Write a picture with a panel for each layout.

    Raises:
        InputError: it cannot be written there.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.4 * len(runs)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(runs), 1, squeeze=False, sharey=True)[:, 0]
    for run, panel in zip(runs, panels, strict=True):
        fullest = run.fullest
        history = fullest.step.history
        names = [name for name in COLOURS if any(moment.bytes.get(name) for moment in history)]
        columns = [[moment.bytes.get(name, 0) / GIB for moment in history] for name in names]
        panel.stackplot(
            range(len(history)), columns, labels=names, colors=[COLOURS[name] for name in names], step="post", lw=0
        )
        highest = max(range(len(history)), key=lambda number: history[number].total)
        peak = history[highest].total / GIB
        panel.annotate(f"{peak:.4g} GiB", (highest, peak), ha="center", va="bottom", fontsize=8)
        executed, whole = fullest.executed[-1], fullest.step.counts.peak_bytes / GIB
        if executed < run.micro_batches:
            panel.axhline(whole, color="black", lw=0.8, ls="--")
            text = f"whole step, {run.micro_batches} micro-batches: {whole:.4g} GiB"
            panel.annotate(text, (0, whole), ha="left", va="bottom", fontsize=8)
        panel.set_title(f"{run.name}, {layout_text(run.workload.layout)}: rank {fullest.of.rank}", fontsize=9)
        panel.set_ylabel("GiB")
        panel.set_xticks([])
        panel.set_xlabel(f"a step of {executed} micro-batches: allocations and frees in their order")
        panel.margins(x=0)
        panel.spines[["top", "right"]].set_visible(False)
        handles, labels = panel.get_legend_handles_labels()
        panel.legend(
            handles[::-1], labels[::-1], fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5)
        )
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot draw: {error}", where=str(path)) from error
