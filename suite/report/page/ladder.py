"""The newest whole climb of each run as pictures: seconds a token by term as bars, and peak memory as a line."""

from __future__ import annotations

from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.figures import StepTerm
from suite.ladder.climb import Climb
from suite.ladder.rungs import Walk
from suite.report.page.plot import Cell, Plot, Trace, bars, significant

MIB = 2.0**20
DIRECTORY = "ladder"


def ladders(results: Path) -> tuple[list[Plot], list[InputError]]:
    """Pictures of each run's newest whole climb, else of its newest, a walk each; why damaged ones are left out."""
    newest: dict[str, Climb] = {}
    bad: list[InputError] = []
    for path in sorted((results / DIRECTORY).glob("*.json")):
        try:
            climb = msgspec.json.decode(path.read_bytes(), type=Climb)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            bad.append(InputError(f"damaged climb: {error}", where=str(path)))
            continue
        if climb.run not in newest or _order(climb) > _order(newest[climb.run]):
            newest[climb.run] = climb
    plots = [plot for climb in newest.values() for walk in Walk if (plot := _walk(climb, walk)) is not None]
    return plots, bad


def _order(climb: Climb) -> tuple[bool, float]:
    return climb.whole, climb.started


def _walk(climb: Climb, walk: Walk) -> Plot | None:
    pairs = [(height, height.measured) for height in climb.heights if height.rung.walk is walk]
    heights = [(height, found) for height, found in pairs if found is not None]
    if not heights:
        return None
    names = [height.rung.name + (" (broken)" if height.broken else "") for height, _ in heights]
    traces: list[Trace] = []
    for place, term in enumerate(StepTerm):
        values = [significant(1e6 * max(0.0, found.terms.get(term, 0.0)) / found.tokens) for _, found in heights]
        if any(values):
            traces.append(bars(term.value, place, y=names, x=values))
    peaks = [significant(found.peak_bytes / MIB) for _, found in heights]
    line = {"type": "scatter", "mode": "lines+markers", "name": "peak MiB, upper scale", "xaxis": "x2"}
    marker = {"color": "--ink", "symbol": "circle", "size": 7}
    traces.append(line | {"x": peaks, "y": names, "marker": marker, "line": {"color": "--ink", "width": 1.5}})
    rows: list[list[Cell]] = []
    for name, (height, found) in zip(names, heights, strict=True):
        said, gain = height.expected, height.gain
        scale = 1 / MIB if walk is Walk.MEMORY else 1e6
        rows.append(
            [
                name,
                f"{1e3 * found.step_seconds:,.1f}",
                f"{1e6 * found.token_seconds:,.0f}",
                f"{found.peak_bytes / MIB:,.1f}",
                None if said is None or said.peak_bytes is None else f"{said.peak_bytes / MIB:,.1f}",
                None if gain is None or gain.predicted is None else f"{gain.predicted * scale:+,.1f}",
                None if gain is None else f"{gain.measured * scale:+,.1f}",
                "; ".join(f"{check.name} {check.mark}: {check.says}" for check in height.checks),
            ]
        )
    first, last = heights[0][1], heights[-1][1]
    unit = "MiB" if walk is Walk.MEMORY else "us a token"
    return Plot(
        id=f"ladder-{climb.run}-{walk}",
        title=f"{climb.run}: the {walk} walk",
        says=(
            f"From the first rung to the last: {1e6 * first.token_seconds:,.0f} to {1e6 * last.token_seconds:,.0f} "
            f"microseconds a token, {first.peak_bytes / MIB:,.0f} to {last.peak_bytes / MIB:,.0f} MiB at the peak."
        ),
        traces=traces,
        layout={
            "barmode": "stack",
            "yaxis": {"autorange": "reversed", "automargin": True},
            "xaxis": {"title": {"text": "microseconds a token"}, "rangemode": "tozero"},
            "xaxis2": {
                "overlaying": "x",
                "side": "top",
                "rangemode": "tozero",
                "tickformat": ",.0f",
                "showgrid": False,
            },
            "margin": {"t": 60},
        },
        columns=[
            *("rung", "step ms", "us a token", "peak MiB", "predicted MiB"),
            *(f"gain predicted, {unit}", f"gain measured, {unit}", "promises"),
        ],
        rows=rows,
        height=150 + 30 * len(names),
    )
