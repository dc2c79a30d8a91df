"""The ladder as a picture: bars of a step's seconds a token by term, and a line of peak memory."""

from __future__ import annotations

from pathlib import Path

from suite.ladder.result import LadderResult
from suite.ladder.rung import Track
from suite.metrics.figures import StepTerm

MIB = 2.0**20
TERMS = tuple(term for term in StepTerm if term is not StepTerm.BUBBLE)
COLOURS = ("#e69f00", "#f0e442", "#0072b2", "#56b4e9", "#d55e00", "#009e73", "#999999", "#cccccc")  # Okabe and Ito


def write_plot(ladder: LadderResult, path: Path) -> None:
    """Write a PNG with a panel for each track that has a rung, and above them machine and date.

    Bars: microseconds a token, measured, by term. Lines: allocated peak, measured (solid) and predicted (dashed).
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tracks = [track for track in Track if any(h.rung.track is track and h.measured for h in ladder.rungs)]
    figure = Figure(figsize=(12, 5.2 * len(tracks)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(tracks), 1, squeeze=False)[:, 0]
    for track, panel in zip(tracks, panels, strict=True):
        pairs = [(h, h.measured) for h in ladder.rungs if h.rung.track is track]
        measured = [(result, measurement) for result, measurement in pairs if measurement is not None]
        names = [h.title for h, _ in measured]
        bottom = [0.0] * len(measured)
        for term, colour in zip(TERMS, COLOURS, strict=True):
            values = [max(0.0, f.terms.get(term.value, 0.0)) / f.tokens * 1e6 for _, f in measured]
            if any(values):
                panel.bar(names, values, bottom=bottom, color=colour, label=term.value, width=0.7)
                bottom = [low + value for low, value in zip(bottom, values, strict=True)]
        prediction = [h.expected.step_seconds if h.expected else None for h, _ in measured]
        marked = [
            (n, s / f.tokens * 1e6) for n, s, (_, f) in zip(names, prediction, measured, strict=True) if s is not None
        ]
        if marked:
            panel.plot(*zip(*marked, strict=True), "k_", markersize=22, markeredgewidth=1.5, label="predicted time")
        panel.set_ylabel("microseconds a token")
        panel.set_title(f"{ladder.run}: the {track} track")
        panel.tick_params(axis="x", rotation=35)
        for label in panel.get_xticklabels():
            label.set_horizontalalignment("right")
        memory = panel.twinx()
        memory.plot(names, [f.peak_bytes / MIB for _, f in measured], "o-", color="#7b1fa2", label="peak memory")
        peaks = [h.expected.peak_bytes if h.expected else None for h, _ in measured]
        known = [(name, peak / MIB) for name, peak in zip(names, peaks, strict=True) if peak is not None]
        if known:
            memory.plot(*zip(*known, strict=True), "x--", color="#7b1fa2", alpha=0.6, label="predicted peak")
        memory.set_ylabel("MiB allocated at the peak")
        memory.set_ylim(bottom=0)
        handles, labels = panel.get_legend_handles_labels()
        more, words = memory.get_legend_handles_labels()
        panel.legend([*handles, *more], [*labels, *words], fontsize=8, loc="upper left", bbox_to_anchor=(1.14, 1))
    figure.suptitle(ladder.where_and_when, fontsize=9)
    figure.savefig(path, dpi=110, format="png")
