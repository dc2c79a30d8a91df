"""The page of a diagnosis: verdict and causes, and pictures of the terms, the steps, and what a trace shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from reference_runs.accelerator import Accelerator
from reference_runs.training_logs.training_log import PrintedStep
from reference_runs.training_traces.products import TimedProduct
from suite.predict.diagnosis.diagnosis import RunDiagnosis
from suite.predict.diagnosis.evidence import DiagnosisEvidence
from suite.predict.diagnosis.pace import STALL
from suite.predict.diagnosis.step_timeline import SHORTEST_GAP, WorkLane
from suite.predict.diagnosis.trace_terms import Term
from suite.predict.plan.predicted_run import Predicted
from suite.report.html.plot import MUTED, Cell, Plot, Trace, bars, significant
from suite.report.html.rendering import rendered
from suite.report.html.roofline import Kernel, roofline_plot
from suite.report.terminal.columns import percent
from suite.report.terminal.diagnosis import against_words, counted_words, saving_words, standing_words, summary_lines

LEAST_POINTS, MOST_POINTS = 5, 2000  # steps of which there is a picture; ordinary steps that are drawn
WHOLE = "whole step"
_COLOURS = 8
_PLACES = {  # of names: those of one remainder by 8 have one colour, and differ in their pattern
    **dict.fromkeys(("matrix multiplications and attention", Term.GEMM, "forward"), 0),
    **dict.fromkeys((Term.ATTENTION, "backward"), 1),
    Term.RECOMPUTATION: 2,
    Term.MEMORY_BOUND: 3,
    Term.OPTIMIZER: 4,
    "exposed tensor-parallel communication": 5,
    "exposed context-parallel communication": 13,
    "exposed expert-parallel communication": 21,
    "exposed data-parallel communication": 29,
    "exposed pipeline-parallel communication and bubble": 37,
    **dict.fromkeys(("exposed communication and bubble", Term.COLLECTIVE, "bubble"), 45),
    **dict.fromkeys(("input, copies and what is left", Term.INPUT, "data loading"), 6),
    **dict.fromkeys((Term.COPY, "host-device copy"), 14),
    **dict.fromkeys(("idle, and waiting for the host", Term.HOST, "launch and host overhead"), 7),
    **dict.fromkeys((Term.SYNCHRONISATION, "unexplained"), 15),
}
_OF_COLLECTIVES = _PLACES[Term.COLLECTIVE]


def _place(name: str) -> tuple[int, int]:
    """Where a term is drawn: by colour, then by pattern."""
    place = _PLACES.get(name, _COLOURS - 1)
    return place % _COLOURS, place


def diagnosis_page(
    name: str, run: str | None, answer: RunDiagnosis, predicted: Predicted | None, evidence: DiagnosisEvidence
) -> str:
    """The text of the page.

    Args:
        name: of what was diagnosed.
        run: name of the run that was expected; None: none was.
    """
    pictures = {
        "terms": terms_plot(answer, evidence.expected),
        "steps": steps_plot(evidence.steps, answer),
        "timeline": lanes_plot(evidence.lanes),
        "roofline": products_plot(evidence.products, evidence.accelerator),
    }
    shown = {id: plot for id, plot in pictures.items() if plot is not None}
    titles = {"terms": "Terms", "steps": "Steps", "timeline": "Timeline", "roofline": "Roofline"}
    causes = [(each, standing_words(each, measured=bool(answer.measured))) for each in answer.causes]
    lines = [*map(counted_words, answer.counted), *answer.notes]
    if evidence.lanes and "roofline" not in shown:
        lines.append(_why_no_roofline(evidence))
    return rendered(
        list(shown.values()),
        template="diagnosis.html.jinja",
        title="Diagnosis",
        heading=f"{name}{against_words(answer)}",
        verdict=answer.outcome.value,
        summary=list(summary_lines(run, answer, predicted)),
        causes=causes,
        helpful=[saving_words(each) for each in answer.helpful],
        lines=lines,
        assumed=[f"{each.words} ({each.option})" for each in predicted.assumed] if predicted else [],
        pictures=shown,
        sections=[("causes", "Causes"), *((id, title) for id, title in titles.items() if id in shown)],
    )


def _why_no_roofline(evidence: DiagnosisEvidence) -> str:
    if not evidence.products:
        return "no roofline: the trace does not say the shapes of its products (profile with record_shapes=True)"
    return "no roofline: --on says which accelerator it is"


def terms_plot(answer: RunDiagnosis, expected: Mapping[str, float]) -> Plot | None:
    """The measured step beside the predicted one, both divided into the same terms in the same colours."""
    measured = {each.name: each.seconds for each in answer.measured} or {WHOLE: answer.pace.seconds}
    predicted = {each.name: each.predicted_seconds or 0.0 for each in answer.measured if answer.predicted_seconds}
    predicted = predicted or dict(expected)
    if not answer.measured and not predicted:
        return None
    names = sorted({**measured, **predicted}, key=_place)
    sides = {"measured": measured, "predicted": predicted} if predicted else {"measured": measured}
    traces = []
    for name in names:
        lengths = [side.get(name, 0.0) for side in sides.values()]
        words = [f"{name}: {length:.4g} s" if length else "" for length in lengths]
        bar = bars(name, _place(name)[1], y=list(sides), x=[significant(each) for each in lengths])
        if name == WHOLE:
            bar["marker"] = {"color": MUTED}
        traces.append(bar | {"hovertext": words, "hoverinfo": "text"})
    rows: list[list[Cell]] = [
        [name, *(f"{side[name]:.4g}" if name in side else None for side in sides.values())] for name in names
    ]
    layout: dict[str, Any] = {
        "barmode": "stack",
        "yaxis": {"autorange": "reversed"},
        "xaxis": {"title": {"text": "seconds of a step"}, "rangemode": "tozero"},
        "legend": {"traceorder": "normal"},
    }
    says = "" if answer.measured else "A log does not say what a step is spent on: the measured one is one bar. "
    if answer.interval:
        layout["shapes"] = [_band("x", *answer.interval)]
        says += f"The shaded part is what is to be expected: {answer.interval[0]:.4g} to {answer.interval[1]:.4g} s."
    longest = max(answer.measured, key=lambda each: each.seconds) if answer.measured else None
    if longest:
        says = f"{longest.name} takes {percent(longest.seconds / answer.pace.seconds)} of the measured step. {says}"
    return Plot(
        id="terms-plot",
        title="Measured step beside the predicted one" if predicted else "Measured step by term",
        says=says,
        traces=traces,
        layout=layout,
        columns=["term", *(f"{side} s" for side in sides)],
        rows=rows,
        height=150 + 55 * len(sides) + 8 * len(names),
    )


def _band(axis: str, low: float, high: float) -> dict[str, Any]:
    """A shaded band over the whole picture, between two values of an axis."""
    other = "y" if axis == "x" else "x"
    ends = {f"{axis}0": low, f"{axis}1": high, f"{other}0": 0, f"{other}1": 1, f"{other}ref": "paper"}
    return {"type": "rect", "layer": "below", "fillcolor": MUTED, "opacity": 0.18, "line": {"width": 0}, **ends}


def steps_plot(steps: Sequence[PrintedStep], answer: RunDiagnosis) -> Plot | None:
    """The seconds of each step over the log, with those that are left out, and those that stall."""
    timed = [(each.number if each.number is not None else place, each.seconds) for place, each in enumerate(steps)]
    points = [(number, seconds) for number, seconds in timed if seconds]
    if len(points) < LEAST_POINTS:
        return None
    pace = answer.pace
    early, late = points[: pace.warm_up], points[pace.warm_up :]
    slow = [point for point in late if point[1] > STALL * pace.seconds]
    usual = [point for point in late if point[1] <= STALL * pace.seconds]
    kept = usual[:: 1 + len(usual) // MOST_POINTS]
    kinds = {"left out": early, "step": kept, f"longer than {STALL} times the median": slow}
    colours = {"left out": "--c8", "step": "--c1"}
    traces: list[Trace] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [number for number, _ in of_kind],
            "y": [significant(seconds) for _, seconds in of_kind],
            "marker": {
                "color": colours.get(name, "--c5"),
                "symbol": "circle" if name == "step" else "diamond" if name == "left out" else "x",
                "size": 6 if name == "step" else 8,
                "opacity": 0.8,
            },
            "hovertemplate": f"{name} %{{x}}: %{{y:.4g}} s<extra></extra>",
        }
        for name, of_kind in kinds.items()
        if of_kind
    ]
    ends = [points[0][0], points[-1][0]]
    line = {"color": MUTED, "width": 1.5, "dash": "dash"}
    median: Trace = {"type": "scatter", "mode": "lines", "name": "median", "x": ends, "y": [pace.seconds] * 2}
    traces.append(median | {"line": line, "hoverinfo": "skip"})
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "step"}},
        "yaxis": {"title": {"text": "seconds"}, "rangemode": "tozero"},
    }
    if answer.interval:
        layout["shapes"] = [_band("y", *answer.interval)]
    thinned = f" Every {1 + len(usual) // MOST_POINTS}th ordinary step is drawn." if len(kept) < len(usual) else ""
    band = " The shaded part is what is to be expected." if answer.interval else ""
    return Plot(
        id="steps-plot",
        title="Seconds of each step",
        says=f"{len(points):,} steps; the median is {pace.seconds:.4g} s without the first {pace.warm_up}; steps that "
        f"take longer than {STALL} times that: {len(slow):,}.{band}{thinned}",
        traces=traces,
        layout=layout,
        columns=["step", "seconds", "kind"],
        rows=[[number, f"{seconds:.4g}", name] for name, of_kind in kinds.items() for number, seconds in of_kind],
    )


def lanes_plot(lanes: Sequence[WorkLane]) -> Plot | None:
    """When a step does what: a lane for each kind of work."""
    if not lanes:
        return None
    traces = [
        bars(
            lane.name,
            _PLACES.get(lane.name, _OF_COLLECTIVES),
            y=[lane.name] * len(lane.spans),
            x=[significant(1e3 * (end - start)) for start, end in lane.spans],
            base=[significant(1e3 * start, 7) for start, _ in lane.spans],
            hovertemplate="%{base:.4g} ms, for %{x:.4g} ms<extra>" + lane.name.replace("<", "") + "</extra>",
            showlegend=False,
        )
        for lane in lanes
    ]
    for trace in traces:  # patterns of thin bars are not seen
        trace["marker"].pop("pattern", None)
        trace["marker"]["line"]["width"] = 0.5
    longest = max(lanes, key=lambda lane: lane.busy_seconds)
    gap = SHORTEST_GAP * max(lane.spans[-1][1] for lane in lanes)
    return Plot(
        id="timeline-plot",
        title="A step of the trace",
        says=f"{len(lanes)} kinds of work in the step of the median time; where no lane has a bar, nothing runs. "
        f"{longest.name}: {1e3 * longest.busy_seconds:,.4g} ms, the most. Gaps below {1e3 * gap:.2g} ms are not drawn.",
        traces=traces,
        layout={
            "barmode": "overlay",
            "yaxis": {"autorange": "reversed"},
            "xaxis": {"title": {"text": "ms since the step began"}, "rangemode": "tozero"},
        },
        columns=["kind", "ms"],
        rows=[[lane.name, f"{1e3 * lane.busy_seconds:,.4g}"] for lane in lanes],
        height=90 + 40 * len(lanes),
    )


def products_plot(products: Sequence[TimedProduct], on: Accelerator | None) -> Plot | None:
    """The matrix multiplications whose shapes a trace says, below the accelerator's limits."""
    if on is None or not products:
        return None
    peaks = on.peak_flop_per_second
    kernels = list(_kernels(products))
    known = {dtype: peak for dtype in dict.fromkeys(each.dtype for each in kernels) if (peak := peaks.get(dtype))}
    words = f"the trace's products on {on.name}"
    plot = roofline_plot("trace", words, on.board.memory_bytes_per_second, known, kernels, [])
    axes = {axis: {**plot.layout[axis], "dtick": "D2"} for axis in ("xaxis", "yaxis")}  # often less than a decade
    return msgspec.structs.replace(plot, layout=plot.layout | axes)


def _kernels(products: Sequence[TimedProduct]) -> Iterator[Kernel]:
    for product, calls, seconds in products:
        batch = f"{product.batch} of " if product.batch > 1 else ""
        name = f"{batch}{product.m} x {product.n} x {product.k} {product.dtype}, {calls} times"
        yield Kernel(name, f"products, {product.dtype}", product.dtype, product.flop, product.least_bytes, seconds)
