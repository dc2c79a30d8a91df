"""A pipeline's passes over a step: predicted by stage, and below it measured by rank."""

from __future__ import annotations

from typing import Any

from suite.job.pipeline_passes import PassKind
from suite.records.record import Record
from suite.report.html.plot import PATTERNS, Cell, Plot, Trace, colour, significant
from suite.report.schedule import NAMES, Panel, launch_panels

LINE = "--line"  # colour of the time in which a stage waits


def schedule(key: str, record: Record) -> Plot | None:
    """Bars by stage and rank; None without pipeline, and where nothing is known of its passes."""
    job, ranks, figures = record.begin.job, [], []
    if record.end is not None:
        ranks, figures = record.end.ranks, record.end.figures
    if job.slice is not None:
        return None
    panels = launch_panels(job.workload, [rank.pipeline_times for rank in ranks], figures)
    if not panels:
        return None
    traces = [_waits(panels)]
    for kind in PassKind:
        chunks = {each.chunk // panel.stages for panel in panels for each, _, _ in _passes(panel) if each.kind is kind}
        traces += [_passes_of(panels, kind, chunk) for chunk in sorted(chunks)]
    measured = [each for rank in ranks if rank.pipeline_times for each in rank.pipeline_times.medians]
    rows: list[list[Cell]] = [
        [rank.rank, NAMES[each.kind], each.chunk, f"{1e3 * each.seconds:,.4g}"]
        for rank in ranks
        if rank.pipeline_times
        for each in rank.pipeline_times.medians
    ]
    lanes = sum(len(panel.lanes) for panel in panels)
    return Plot(
        id=f"schedule-{key}",
        title="Passes of the pipeline",
        says=". ".join(panel.title[0].upper() + panel.title[1:] for panel in panels)
        + ". Numbers in bars are micro-batches."
        + (" Lines: a rank's second chunk." if any(each.chunk >= panels[0].stages for each in measured) else ""),
        traces=traces,
        layout={
            "barmode": "overlay",
            "bargap": 0.12,
            "yaxis": {"autorange": "reversed", "automargin": True},
            "xaxis": {"title": {"text": panels[-1].axis}, "rangemode": "tozero", "showgrid": False},
            "uniformtext": {"minsize": 8, "mode": "hide"},
        },
        columns=["rank", "pass", "chunk", "median ms"],
        rows=rows,
        height=130 + 34 * lanes,
    )


def _passes(panel: Panel) -> list[Any]:
    return [each for lane in panel.lanes for each in lane.passes]


def _waits(panels: list[Panel]) -> Trace:
    """Bars behind the passes of each lane, from the panel's beginning to its end."""
    lanes = [(panel.side, lane.name, panel.end) for panel in panels for lane in panel.lanes]
    return {
        "type": "bar",
        "orientation": "h",
        "name": "waits",
        "y": [[side for side, _, _ in lanes], [name for _, name, _ in lanes]],
        "x": [significant(end) for _, _, end in lanes],
        "marker": {"color": LINE},
        "hoverinfo": "skip",
    }


def _passes_of(panels: list[Panel], kind: PassKind, chunk: int) -> Trace:
    """The bars of one kind of pass, of each rank's chunk number `chunk`, counted from 0."""
    bars = [
        (panel.side, lane.name, each.micro_batch, start, end)
        for panel in panels
        for lane in panel.lanes
        for each, start, end in lane.passes
        if each.kind is kind and each.chunk // panel.stages == chunk
    ]
    marker: dict[str, Any] = {"color": colour(list(PassKind).index(kind)), "line": {"color": "--paper", "width": 1}}
    if chunk:
        shape = PATTERNS[chunk % len(PATTERNS)]
        marker["pattern"] = {"shape": shape, "fillmode": "overlay", "fgcolor": "--paper", "fgopacity": 0.4, "size": 6}
    return {
        "type": "bar",
        "orientation": "h",
        "name": NAMES[kind] + (f", chunk {chunk + 1} of its rank" if chunk else ""),
        "y": [[side for side, *_ in bars], [name for _, name, *_ in bars]],
        "x": [significant(end - start) for *_, start, end in bars],
        "base": [significant(start) for *_, start, _ in bars],
        "text": [str(micro_batch) for _, _, micro_batch, _, _ in bars],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "insidetextfont": {"color": "--paper"},
        "marker": marker,
        "hovertemplate": "micro-batch %{text}: from %{base:,.4g}, %{x:,.4g} long",
    }
