"""The newest whole climb of each run on each machine as pictures: seconds a token by term as bars, peaks as a line."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.ladder.climb import Climb
from suite.ladder.rungs import Walk
from suite.metrics.figures import StepTerm
from suite.report.html.plot import Cell, Plot, Trace, bars, significant

MIB = 2.0**20
DIRECTORY = "ladder"
Key = tuple[str, str, str, str]


def ladders(results: Path) -> tuple[list[Plot], list[InputError]]:
    """Pictures of the newest whole climb, else of the newest, of each run on each device of each machine, a walk each;
    why damaged ones are left out."""
    newest: dict[Key, Climb] = {}
    bad: list[InputError] = []
    for path in sorted((results / DIRECTORY).glob("*.json")):
        try:
            climb = msgspec.json.decode(path.read_bytes(), type=Climb)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            bad.append(InputError(f"damaged climb: {error}", where=str(path)))
            continue
        key = _key(climb)
        if key not in newest or _order(climb) > _order(newest[key]):
            newest[key] = climb
    plots = [plot for key in sorted(newest) for walk in Walk if (plot := _walk(newest[key], walk)) is not None]
    return plots, bad


def _key(climb: Climb) -> Key:
    """Run, device, node and hardware; software and date do not keep climbs apart: the newest counts."""
    found = climb.fingerprint
    if found is None:
        return climb.run, climb.device, "", ""
    hardware = hashlib.sha256(repr(sorted(found.hardware.items())).encode()).hexdigest()[:8]
    return climb.run, climb.device, found.node, hardware


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
    at_top = {one.rung: one for one in climb.interactions}
    rows: list[list[Cell]] = []
    scale = 1 / MIB if walk is Walk.MEMORY else 1e6
    for height, found in pairs:
        name = height.rung.name + (" (broken)" if height.broken else "")
        said, gain, twin = height.expected, height.gain, at_top.get(height.rung.name)
        if found is None:
            words = f"NOT RUN: {height.not_run}" if height.not_run else height.failed
            rows.append([name, *[None] * 9, words])
            continue
        rows.append(
            [
                name,
                f"{1e3 * found.step_seconds:,.1f}",
                f"{1e6 * found.token_seconds:,.0f}",
                f"{found.model_flop_per_second / 1e9:,.1f}",
                f"{found.peak_bytes / MIB:,.1f}",
                None if said is None or said.peak_bytes is None else f"{said.peak_bytes / MIB:,.1f}",
                None if gain is None or gain.predicted is None else f"{gain.predicted * scale:+,.1f}",
                None if gain is None else f"{gain.measured * scale:+,.1f}",
                None if height.share is None else f"{height.share:.2f}",
                None if twin is None else f"{twin.at_top * scale:+,.1f} (noise {twin.noise * scale:,.1f})",
                "; ".join(f"{check.name} {check.mark}: {check.says}" for check in height.checks),
            ]
        )
    first, last = heights[0][1], heights[-1][1]
    unit = "MiB" if walk is Walk.MEMORY else "us a token"
    return Plot(
        id="-".join(["ladder", *filter(None, _key(climb)), walk]),
        title=f"{climb.run}: the {walk} walk; {climb.where_and_when}",
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
            *("rung", "step ms", "us a token", "Gflop/s", "peak MiB", "predicted MiB"),
            *(f"gain predicted, {unit}", f"gain measured, {unit}", "of the baseline", f"top without it loses, {unit}"),
            "promises",
        ],
        rows=rows,
        height=150 + 30 * len(names),
    )
