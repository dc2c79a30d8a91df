"""The ladder as pictures, of each run and machine: seconds a token by term as bars, peaks as a line."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.ladder.judge import Interaction
from suite.ladder.measurement import RungMeasurement
from suite.ladder.result import LadderResult, RungResult, read
from suite.ladder.rung import Track
from suite.metrics.figures import StepTerm
from suite.report.html.plot import Cell, Plot, Trace, bars, significant

MIB = 2.0**20
DIRECTORY = "ladder"
LadderKey = tuple[str, str, str, str]
PEAK_LINE: Trace = {
    "type": "scatter",
    "mode": "lines+markers",
    "name": "peak MiB, upper scale",
    "xaxis": "x2",
    "marker": {"color": "--ink", "symbol": "circle", "size": 7},
    "line": {"color": "--ink", "width": 1.5},
}
LAYOUT = {
    "barmode": "stack",
    "yaxis": {"autorange": "reversed", "automargin": True},
    "xaxis": {"title": {"text": "microseconds a token"}, "rangemode": "tozero"},
    "xaxis2": {"overlaying": "x", "side": "top", "rangemode": "tozero", "tickformat": ",.0f", "showgrid": False},
    "margin": {"t": 60},
}


def ladders(results: Path) -> tuple[list[Plot], list[InputError]]:
    """Pictures of each run on each device of each machine, one of each track; and why damaged results are left out.

    The newest result of all rungs counts; where there is none, the newest.
    """
    newest: dict[LadderKey, LadderResult] = {}
    bad: list[InputError] = []
    for path in sorted((results / DIRECTORY).glob("*.json")):
        try:
            ladder = read(path)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            bad.append(InputError(f"damaged result of the ladder: {error}", where=str(path)))
            continue
        key = _key(ladder)
        if key not in newest or _order(ladder) > _order(newest[key]):
            newest[key] = ladder
    plots = [plot for key in sorted(newest) for track in Track if (plot := _track(newest[key], track)) is not None]
    return plots, bad


def _key(ladder: LadderResult) -> LadderKey:
    """Run, device, node and hardware; of several software versions the newest counts."""
    measurement = ladder.fingerprint
    if measurement is None:
        return ladder.run, ladder.device, "", ""
    hardware = hashlib.sha256(repr(sorted(measurement.hardware.items())).encode()).hexdigest()[:8]
    return ladder.run, ladder.device, measurement.node, hardware


def _order(ladder: LadderResult) -> tuple[bool, float]:
    return ladder.whole, ladder.started


def _track(ladder: LadderResult, track: Track) -> Plot | None:
    results = [result for result in ladder.rungs if result.rung.track is track]
    measured = [(result, result.measured) for result in results if result.measured is not None]
    if not measured:
        return None
    first, last = measured[0][1], measured[-1][1]
    unit, scale = ("MiB", 1 / MIB) if track is Track.MEMORY else ("us a token", 1e6)
    at_top = {interaction.rung: interaction for interaction in ladder.interactions}
    return Plot(
        id="-".join(["ladder", *filter(None, _key(ladder)), track]),
        title=f"{ladder.run}: the {track} track; {ladder.where_and_when}",
        says=(
            f"From the first rung to the last: {1e6 * first.token_seconds:,.0f} to {1e6 * last.token_seconds:,.0f} "
            f"microseconds a token, {first.peak_bytes / MIB:,.0f} to {last.peak_bytes / MIB:,.0f} MiB at the peak."
        ),
        traces=_traces(measured),
        layout=LAYOUT,
        columns=[
            *("rung", "step ms", "us a token", "Gflop/s", "peak MiB", "predicted MiB"),
            *(f"gain predicted, {unit}", f"gain measured, {unit}", "of the baseline", f"top without it loses, {unit}"),
            "promises",
        ],
        rows=[list(_cells(result, at_top.get(result.rung.name), scale)) for result in results],
        height=150 + 30 * len(measured),
    )


def _traces(measured: list[tuple[RungResult, RungMeasurement]]) -> list[Trace]:
    """Bars of a token's time by term, and a line of the peaks."""
    names = [result.title for result, _ in measured]
    traces: list[Trace] = []
    for number, term in enumerate(StepTerm):
        values = [
            significant(1e6 * max(0.0, measurement.terms.get(term, 0.0)) / measurement.tokens)
            for _, measurement in measured
        ]
        if any(values):
            traces.append(bars(term.value, number, y=names, x=values))
    peaks = [significant(measurement.peak_bytes / MIB) for _, measurement in measured]
    return [*traces, PEAK_LINE | {"x": peaks, "y": names}]


def _cells(result: RungResult, at_top: Interaction | None, scale: float) -> Iterator[Cell]:
    """A rung's row of the table, in the order of its columns."""
    measurement, prediction, gain = result.measured, result.expected, result.gain
    yield result.title
    if measurement is None:
        yield from [None] * 9
        yield f"NOT RUN: {result.not_run}" if result.not_run else result.failed
        return
    yield f"{1e3 * measurement.step_seconds:,.1f}"
    yield f"{1e6 * measurement.token_seconds:,.0f}"
    yield f"{measurement.model_flop_per_second / 1e9:,.1f}"
    yield f"{measurement.peak_bytes / MIB:,.1f}"
    yield None if prediction is None or prediction.peak_bytes is None else f"{prediction.peak_bytes / MIB:,.1f}"
    yield None if gain is None or gain.predicted is None else f"{gain.predicted * scale:+,.1f}"
    yield None if gain is None else f"{gain.measured * scale:+,.1f}"
    yield None if result.share is None else f"{result.share:.2f}"
    yield None if at_top is None else f"{at_top.at_top * scale:+,.1f} (noise {at_top.noise * scale:,.1f})"
    yield "; ".join(f"{check.name} {check.mark}: {check.says}" for check in result.checks)
