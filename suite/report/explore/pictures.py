"""Pictures of the page, as plotly.js takes them: memory, time, and the passes of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.run import Workload
from suite.job.pipeline_passes import PassKind
from suite.predict.analytic.pipeline_schedule import NO_FLUSH
from suite.predict.simulation.supported_layouts import describes_ranks
from suite.report.explore.view import View, memory_parts
from suite.report.schedule import NAMES, Panel, predicted_panel

GIB = 2**30
COLOURS = (
    *("#2f6db3", "#b85400", "#2a7f52", "#7a4fb0", "#b3362b", "#0f7c80", "#8a6a00", "#69707a", "#c46ba0", "#5a7d2a"),
    *("#8fb8e0", "#e8a66a", "#86c5a0", "#bba3dc", "#e59a92", "#7fc0c2"),
)
PASS_COLOURS = {
    PassKind.FORWARD: "#56b4e9",
    PassKind.BACKWARD: "#d55e00",
    PassKind.INPUT: "#e69f00",
    PassKind.WEIGHT: "#009e73",
}
MOST_ROUNDS = 2  # of a pipeline's stages, in micro-batches that are drawn
MOST_DRAWN_STAGES = 24
Picture = dict[str, Any]


def _layout(height: int, **more: Any) -> dict[str, Any]:
    return {
        "height": height,
        "margin": {"l": 60, "r": 10, "t": 10, "b": 40},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 12, "color": "#808590"},
        "legend": {"orientation": "h", "y": -0.2, "traceorder": "normal"},
        "barmode": "stack",
        "bargap": 0.15,
        "xaxis": {"gridcolor": "rgba(128,133,144,0.25)", "zeroline": False},
        "yaxis": {"gridcolor": "rgba(128,133,144,0.25)", "zeroline": False},
    } | more


def memory_picture(views: Sequence[View]) -> Picture:
    """GiB of each stage by part, one layout's stages beside the other's, with the accelerator's limit."""
    parts = [memory_parts(view.stages) for view in views]
    names = list(dict.fromkeys(name for each in parts for name in each))
    labels = [_stage_names(view, number, len(views)) for number, view in enumerate(views)]
    traces = []
    for index, name in enumerate(names):
        values = [
            value / GIB
            for each, view in zip(parts, views, strict=True)
            for value in each.get(name, [0.0] * len(view.stages))
        ]
        places = [label for each in labels for label in each]
        traces.append({"type": "bar", "name": name, "x": places, "y": values, "marker": _marker(index)})
    limits = {view.predicted.memory_bytes for view in views if view.predicted and view.predicted.memory_bytes}
    shapes = [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": limit / GIB, "y1": limit / GIB}
        | {"line": {"color": "#b3362b", "width": 2, "dash": "dash"}}
        for limit in sorted(limits)
    ]
    axis = {"title": {"text": "GiB"}, "gridcolor": "rgba(128,133,144,0.25)"}
    return {"data": traces, "layout": _layout(330, shapes=shapes, yaxis=axis)}


def _marker(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)]}


def _stage_names(view: View, number: int, views: int) -> list[str]:
    letter = "" if views == 1 else f"{'AB'[number]} "
    return [f"{letter}{stage}" for stage in range(len(view.stages))]


def time_picture(views: Sequence[View]) -> Picture:
    """Seconds of a step by term, a bar for each layout."""
    names = list(dict.fromkeys(name for view in views for name in view.terms))
    labels = ["step"] if len(views) == 1 else ["A", "B"]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": labels,
            "x": [view.terms.get(name, 0.0) for view in views],
            "marker": _marker(index),
        }
        for index, name in enumerate(names)
    ]
    axis = {"title": {"text": "s a step"}, "gridcolor": "rgba(128,133,144,0.25)"}
    return {
        "data": traces,
        "layout": _layout(
            170 + 60 * len(views), xaxis=axis, legend={"orientation": "h", "y": -0.7, "traceorder": "normal"}
        ),
    }


def schedule_panel(view: View) -> Panel | None:
    """The passes of a pipeline's first micro-batches; None without pipeline, or where the schedule is not described."""
    predicted = view.predicted
    if predicted is None or predicted.run is None or predicted.layout is None:
        return None
    layout, run = predicted.layout, predicted.run
    workload = Workload(run.architecture, run.recipe, layout)
    if (
        not 1 < layout.pipeline_stages <= MOST_DRAWN_STAGES
        or layout.schedule in NO_FLUSH
        or not describes_ranks(workload)
    ):
        return None
    rounds = min(accumulation(run.recipe, layout), MOST_ROUNDS * layout.pipeline_stages)
    batch = layout.replicas * layout.micro_batch * rounds
    few = msgspec.structs.replace(run.recipe, global_batch=batch, **_WHOLE_BATCHES)
    return predicted_panel(
        Workload(run.architecture, few, msgspec.structs.replace(layout, accumulation=None)), f"{rounds} micro-batches"
    )


_WHOLE_BATCHES: Mapping[str, Any] = dict.fromkeys(
    ("batch_rampup_start", "batch_rampup_increment", "batch_rampup_samples")
)


def schedule_picture(panel: Panel) -> Picture:
    """A lane for each stage, the passes coloured by kind; later chunks of a stage are paler."""
    traces = []
    kinds = dict.fromkeys(each.done.kind for lane in panel.lanes for each in lane.passes)
    for kind in kinds:
        done = [(lane.name, each) for lane in panel.lanes for each in lane.passes if each.done.kind is kind]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": NAMES[kind],
                "y": [name for name, _ in done],
                "x": [each.end - each.start for _, each in done],
                "base": [each.start for _, each in done],
                "text": [str(each.done.micro_batch) for _, each in done],
                "hovertext": [f"chunk {each.done.chunk}, micro-batch {each.done.micro_batch}" for _, each in done],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textfont": {"size": 9},
                "constraintext": "none",
                "marker": {
                    "color": PASS_COLOURS[kind],
                    "opacity": [0.6 ** (each.done.chunk // panel.stages) for _, each in done],
                    "line": {"width": 0.5, "color": "white"},
                },
            }
        )
    height = 110 + 22 * len(panel.lanes)
    axis = {"showticklabels": False, "title": {"text": panel.axis}}
    lanes = {"autorange": "reversed", "gridcolor": "rgba(0,0,0,0)"}
    return {"data": traces, "layout": _layout(height, barmode="overlay", xaxis=axis, yaxis=lanes, bargap=0.1)}
