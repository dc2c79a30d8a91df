"""Stored results as pictures: what the fullest rank of a dry run holds over a step, and the rungs of a ladder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from reference_runs.errors import InputError
from reference_runs.regular_file import json_file
from suite.ladder.judge import Interaction
from suite.ladder.measurement import RungMeasurement
from suite.ladder.result import DIRECTORY as LADDERS
from suite.ladder.result import LadderResult, RungResult, read
from suite.ladder.rung import Track
from suite.metrics.figures import StepTerm
from suite.report.html.plot import Cell, Plot, Trace, bars, colour, significant, utc
from suite.report.plots.memory import CATEGORIES
from suite.report.terminal.ladder import gain_words
from suite.reproduce.dry_run.result import DIRECTORY as DRY_RUNS
from suite.reproduce.dry_run.result import DryRunResult

Result = TypeVar("Result")
GIB = 2.0**30
FAR = 2.0  # times the peak
MOST = 12  # pictures: of the newest results


def _stored(directory: Path, read: Callable[[Path], Result], name: str) -> tuple[list[Result], list[InputError]]:
    """The results in a directory in the order of their files, and why damaged ones are left out.

    Args:
        name: what they are results of, for people.
    """
    found: list[Result] = []
    bad: list[InputError] = []
    for path in sorted(directory.glob("*.json")):
        try:
            found.append(read(path))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            bad.append(InputError(f"damaged result of {name}: {error}", where=str(path)))
    return found, bad


def dry_runs(results: Path) -> tuple[list[Plot], list[InputError]]:
    """A picture of each run and layout, the newest result of it; and why damaged results are left out."""
    found, bad = _stored(results / DRY_RUNS, lambda path: json_file(path, DryRunResult), "a dry run")
    ordered = sorted(found, key=lambda result: result.started)
    newest = {(result.run, result.layout): result for result in ordered}
    last = sorted(newest.values(), key=lambda result: -result.started)[:MOST]
    return [_picture(number, result) for number, result in enumerate(last, 1)], bad


def _picture(number: int, result: DryRunResult) -> Plot:
    history, names = result.history, [name for name in CATEGORIES if _in_any(result, name)]
    traces: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "stackgroup": "memory",
            "x": list(range(len(history))),
            "y": [significant(moment.bytes.get(name, 0) / GIB) for moment in history],
            "line": {"width": 0.5, "color": colour(CATEGORIES.index(name)), "shape": "hv"},
            "fillpattern": {"shape": "/" if CATEGORIES.index(name) >= 8 else ""},
            "hovertemplate": "%{y:,.4g} GiB",
        }
        for name in names
    ]
    peak = result.peak.total / GIB
    whole = f"peak of the whole step, {result.micro_batches} micro-batches"
    for name, height, dash in ((whole, peak, "dash"), _memory(result)):
        if height:
            line = {"color": "--ink", "width": 1.5, "dash": dash}
            traces.append(
                {"type": "scatter", "mode": "lines", "name": name, "x": [0, len(history)], "y": [height] * 2}
                | {"line": line, "hovertemplate": "%{y:,.4g} GiB"}
            )
    highest = max(history, key=lambda moment: moment.total)
    rows: list[list[Cell]] = [
        [name, f"{result.peak.bytes.get(name, 0) / GIB:,.3f}", f"{highest.bytes.get(name, 0) / GIB:,.3f}"]
        for name in names
    ]
    return Plot(
        id=f"dry-run-{number}",
        title=f"{result.run}, {result.layout}: rank {result.rank} of {result.ranks:,}, {utc(result.started)}",
        says=_says(result),
        traces=traces,
        layout={
            "xaxis": {
                "title": {"text": f"allocations and frees of a step of {result.executed} micro-batches, in order"}
            }
            | {"showticklabels": False},
            "yaxis": {"title": {"text": "GiB"}, "rangemode": "tozero"},
        },
        columns=["for", "GiB at the whole step's peak", f"GiB at the peak of {result.executed} micro-batches"],
        rows=[*rows, ["sum", f"{peak:,.3f}", f"{highest.total / GIB:,.3f}"]],
        height=420,
    )


def _in_any(result: DryRunResult, name: str) -> bool:
    return any(moment.bytes.get(name) for moment in (*result.history, result.peak))


def _memory(result: DryRunResult) -> tuple[str, float, str]:
    """The line of an accelerator's memory; of none, and far above the rest, its height is 0."""
    name, memory = result.board or ("", 0.0)
    return f"memory of {name}", memory / GIB if memory <= FAR * result.peak.total else 0.0, "dot"


def _says(result: DryRunResult) -> str:
    peak = result.peak.total
    words = [
        f"{result.ranks:,} ranks of {result.kinds} kinds: {result.verdict}, "
        f"{result.exact_figures} exact figures agree.",
        f"The fullest, rank {result.rank} of stage {result.stage}, holds {peak / GIB:,.4g} GiB at most in a whole "
        f"step, in its {result.peak.phase}; predicted: {result.predicted_peak / GIB:,.4g} GiB.",
    ]
    if result.executed < result.micro_batches:
        words.append(
            f"The area is a step of {result.executed} micro-batches, which was executed; the whole has "
            f"{result.micro_batches}, whose peak is the dashed line."
        )
    if result.board is not None:
        name, memory = result.board
        words.append(f"That is {peak / memory:.0%} of the {memory / GIB:,.4g} GiB of {name}.")
    return " ".join(words)


MIB = 2.0**20
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
    found, bad = _stored(results / LADDERS, read, "the ladder")
    newest = {_key(ladder): ladder for ladder in sorted(found, key=_order)}
    plots = [plot for key in sorted(newest) for track in Track if (plot := _track(newest[key], track)) is not None]
    return plots, bad


def _key(ladder: LadderResult) -> tuple[str, ...]:
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
            *(f"gain predicted, {unit}", f"gain measured, {unit}", "of the baseline", f"gain at the top, {unit}"),
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
    track = result.rung.track
    yield None if gain is None or gain.predicted is None else gain_words(gain.predicted, track)
    yield None if gain is None else gain_words(gain.measured, track)
    yield None if result.share is None else f"{result.share:.2f}"
    yield None if at_top is None else f"{gain_words(at_top.at_top, track)} (noise {at_top.noise * scale:,.1f})"
    yield "; ".join(f"{check.name} {check.mark}: {check.says}" for check in result.checks)
