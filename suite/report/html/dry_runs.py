"""Dry runs as pictures: what the fullest rank of a layout holds over a step, by what it is for."""

from __future__ import annotations

from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from reference_runs.regular_file import json_file
from suite.report.html.plot import Cell, Plot, Trace, colour, significant, utc
from suite.report.plots.memory import CATEGORIES
from suite.reproduce.dry_run.result import DIRECTORY, DryRunResult

GIB = 2.0**30
FAR = 2.0  # times the peak
MOST = 12  # pictures: of the newest results


def dry_runs(results: Path) -> tuple[list[Plot], list[InputError]]:
    """A picture of each run and layout, the newest result of it; and why damaged results are left out."""
    newest: dict[tuple[str, str], DryRunResult] = {}
    bad: list[InputError] = []
    for path in sorted((results / DIRECTORY).glob("*.json")):
        try:
            result = json_file(path, DryRunResult)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            bad.append(InputError(f"damaged result of a dry run: {error}", where=str(path)))
            continue
        key = result.run, result.layout
        if key not in newest or result.started > newest[key].started:
            newest[key] = result
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
        fits = "It fits" if peak <= memory else "It does not fit"
        words.append(f"{fits} {name}: {peak / memory:.0%} of its {memory / GIB:,.4g} GiB.")
    return " ".join(words)
