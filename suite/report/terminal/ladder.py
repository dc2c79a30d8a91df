"""The ladder as tables: what every rung took and gave, what it promised, and which gains do not add up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from suite.ladder.judge import Mark
from suite.ladder.measurement import RungMeasurement, RungPrediction
from suite.ladder.result import LadderResult, RungResult, failures, verdict
from suite.ladder.rung import Track
from suite.ladder.rungs import RUNGS
from suite.metrics.figures import StepTerm

MIB = 2.0**20
COLOURS = {Mark.PASS: "green", Mark.FAIL: "bold red", Mark.SHOWN: "dim", Mark.INCONCLUSIVE: "magenta"}
NOT_RUN = "NOT RUN"
GAIN_COLUMNS = (
    *("rung", "allocated", "predicted", "peak in", "reserved", "step ms", "us/token", "Gflop/s", "waits"),
    *("gain predicted", "measured", "noise", "of base", "promises"),
)
_SHORT = {
    StepTerm.DATA_LOADING: "data",
    StepTerm.HOST_DEVICE_COPY: "copy",
    StepTerm.FORWARD: "forward",
    StepTerm.BACKWARD: "backward",
    StepTerm.EXPOSED_COMMUNICATION: "comm.",
    StepTerm.OPTIMIZER: "update",
    StepTerm.OVERHEAD: "host",
    StepTerm.UNEXPLAINED: "rest",
}


def print_ladder(out: Console, ladder: LadderResult) -> None:
    """Both tracks, the interactions, what failed, and what the numbers are."""
    for track in Track:
        results = [result for result in ladder.rungs if result.rung.track is track]
        if results:
            out.print(f"\n[bold]{track}[/]: {_unit(track)}; gains are over the rung named last", soft_wrap=True)
            out.print(_gains(track, results))
            out.print(_terms(results))
            for result in results:
                if result.not_run:
                    out.print(f"{escape(result.rung.name)}: {NOT_RUN}: {escape(result.not_run)}", soft_wrap=True)
    if ladder.interactions:
        out.print("\n[bold]interactions[/]: a rung's gain, and what the top of its track loses without it")
        out.print(_interactions(ladder))
    if any(result.ablated for result in ladder.rungs):
        out.print("[dim]interactions: with --ablate no top is launched without each rung: it lacks one already.[/]")
    reserved = "the largest resident set before the timed steps (a CPU's allocator reserves nothing)"
    if ladder.device == "cuda":
        reserved = "what CUDA's allocator reserved"
    out.print(f"\n[dim]allocated: PyTorch's allocator, the largest sum in one eager step; reserved: {reserved}.[/]")
    out.print(f"[dim]tokenising: {ladder.sample_seconds * 1e3:.2f} ms a sample; profile: {escape(ladder.profile)}[/]")
    if ladder.divisor > 1:
        words = f"samples: 1/{ladder.divisor} of those declared, so that the larger baseline fits into the GPU's memory"
        out.print(f"[dim]{words}, by its predicted peak.[/]")
    for line in failures(ladder):
        out.print(f"[bold red]{escape(line)}[/]", soft_wrap=True)
    out.print(f"{ladder.run}: {verdict(ladder)}, {_count(ladder)}")


def _count(ladder: LadderResult) -> str:
    ran = sum(result.measured is not None for result in ladder.rungs)
    return f"{ran} rungs run, {sum(bool(result.not_run) for result in ladder.rungs)} not run"


def _unit(track: Track) -> str:
    return "MiB of peak memory" if track is Track.MEMORY else "microseconds a token"


def _scale(track: Track) -> float:
    return 1 / MIB if track is Track.MEMORY else 1e6


def _gain_cells(
    result: RungResult, measurement: RungMeasurement, prediction: RungPrediction, scale: float
) -> Iterator[str]:
    """The cells of a rung, in the order of GAIN_COLUMNS."""
    gain = result.gain
    yield result.title
    yield _number(measurement.peak_bytes, ",.1f", 1 / MIB)
    yield _number(prediction.peak_bytes, ",.1f", 1 / MIB)
    yield prediction.phase or "-"
    yield _number(
        measurement.reserved_bytes if measurement.reserved_bytes is not None else measurement.resident_bytes,
        ",.0f",
        1 / MIB,
    )
    yield _number(measurement.step_seconds, ",.0f", 1e3)
    yield _number(measurement.token_seconds, ",.0f", 1e6)
    yield _number(measurement.model_flop_per_second, ",.1f", 1e-9)
    yield _number(measurement.synchronisations, ",d")
    yield "" if gain is None else _number(gain.predicted, "+,.1f", scale)
    yield "" if gain is None else _number(gain.measured, "+,.1f", scale)
    yield "" if gain is None else _number(gain.noise, ",.1f", scale)
    yield _number(result.share, ".2f", missing="")
    yield ", ".join(f"[{COLOURS[c.mark]}]{c.name} {escape(c.says)}[/]" for c in result.checks)


def _number(value: float | None, form: str, scale: float = 1, *, missing: str = "-") -> str:
    return missing if value is None else format(value * scale, form)


def _gains(track: Track, results: list[RungResult]) -> Table:
    table = _table(GAIN_COLUMNS, left=("rung", "peak in", "promises"))
    for result in results:
        measurement, prediction = result.measured, result.expected
        if measurement is None or prediction is None:
            table.add_row(result.rung.name, NOT_RUN if result.not_run else "failed")
        else:
            table.add_row(*_gain_cells(result, measurement, prediction, _scale(track)))
    return table


def _terms(results: list[RungResult]) -> Table:
    table = _table(["ms of a step", *_SHORT.values(), "step", "predicted", "slowdown"], left=("ms of a step",))
    for result in results:
        measurement, prediction = result.measured, result.expected
        if measurement is None or prediction is None:
            continue
        cells = [
            f"{measurement.terms.get(term.value, 0.0) * 1e3:,.1f}" if measurement.terms else "-" for term in _SHORT
        ]
        cells += [_number(measurement.step_seconds, ",.0f", 1e3), _number(prediction.step_seconds, ",.0f", 1e3)]
        table.add_row(result.rung.name, *cells, _number(measurement.cpu_slowdown, ".2f"))
    return table


def _interactions(ladder: LadderResult) -> Table:
    tracks = {rung.name: rung.track for rung in RUNGS}
    table = _table(["rung", "track", "in its place", "at the top", "noise", "says"], left=("rung", "track", "says"))
    for one in ladder.interactions:
        scale = _scale(tracks[one.rung])
        colour = "dim" if one.within_noise else "default" if one.adds_up else "yellow"
        values = (f"{value * scale:+,.1f}" for value in (one.in_track, one.at_top, one.noise))
        table.add_row(one.rung, tracks[one.rung].value, *values, f"[{colour}]{one.says}[/]")
    return table


def _table(titles: Sequence[str], *, left: tuple[str, ...]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in titles:
        wraps = title in ("promises", "says")
        table.add_column(title, justify="left" if title in left else "right", no_wrap=not wraps, overflow="fold")
    return table


def print_rungs(out: Console) -> None:
    """Every rung with what it does, what it says of its losses, and how its gain is predicted."""
    for rung in RUNGS:
        needs = f"; needs: {', '.join(need.name.lower() for need in rung.needs)}" if rung.needs else ""
        bound = f" {rung.bound:.1e}" if rung.bound else ""
        out.print(f"[bold]{rung.name}[/] ({rung.track}): {escape(rung.title)}", soft_wrap=True)
        out.print(f"    predicted: {escape(rung.predicts)}", soft_wrap=True)
        out.print(f"    losses {rung.promise}{bound}: {escape(rung.loss)}{needs}", soft_wrap=True)


def as_json(ladder: LadderResult) -> dict[str, Any]:
    """The result with what failed and the verdict, for machines."""
    built: dict[str, Any] = msgspec.to_builtins(ladder)
    for entry, result in zip(built["heights"], ladder.rungs, strict=True):
        if result.measured is not None:
            entry["measured"]["token_seconds"] = result.measured.token_seconds
    for entry, one in zip(built["interactions"], ladder.interactions, strict=True):
        entry |= {"adds_up": one.adds_up, "says": one.says}
    return built | {"failures": failures(ladder), "verdict": verdict(ladder)}


def rung_line(result: RungResult) -> str:
    """A rung in one line, for progress."""
    if result.not_run:
        return f"{result.rung.name}: {NOT_RUN}: {result.not_run}"
    measured = result.measured
    if measured is None or result.failed:
        return f"{result.rung.name}: {result.failed}"
    checks = ", ".join(f"{check.name} {check.mark} ({check.says})" for check in result.checks)
    return (
        f"{result.rung.name}: {measured.peak_bytes / MIB:,.1f} MiB, {measured.step_seconds * 1e3:,.0f} ms a step, "
        f"{measured.token_seconds * 1e6:,.0f} us a token; {checks}"
    )
