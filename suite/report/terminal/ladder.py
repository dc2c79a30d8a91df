"""The ladder as tables: what every rung took and gave, what it promised, and which gains do not add up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape

from suite.ladder.judge import Mark
from suite.ladder.measurement import RungMeasurement, RungPrediction
from suite.ladder.result import LadderResult, RungResult, failures, verdict
from suite.ladder.rung import RUNGS, Track
from suite.metrics.difference_words import Direction, direction
from suite.metrics.figures import StepTerm
from suite.report.tables import Coloured
from suite.report.terminal.tables import NOT_JUDGED, print_folded, print_table

MIB = 2.0**20
COLOURS = {Mark.PASS: "green", Mark.FAIL: "bold red", Mark.SHOWN: "dim", Mark.INCONCLUSIVE: "magenta"}
NOT_RUN = "NOT RUN"
MARKS = {mark: mark.value for mark in Mark} | {Mark.SHOWN: NOT_JUDGED, Mark.INCONCLUSIVE: "not decided"}
GAIN_COLUMNS = ("rung", "gain predicted", "measured", "noise", "of base", "promises")
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
_TERM_COLUMNS = (*_SHORT.values(), "step", "predicted", "slowdown")


def print_ladder(out: Console, ladder: LadderResult) -> None:
    """Print both tracks, the interactions, all failures, and what the numbers are."""
    for track in Track:
        results = [result for result in ladder.rungs if result.rung.track is track]
        if results:
            out.print(f"\n[bold]{track}[/]", highlight=False)
            _print_track(out, track, results)
    if ladder.interactions:
        out.print("\n[bold]interactions[/]: what a rung gains over the one below it, and at the top of its track")
        titles = ["rung", "track", "in its place", "at the top", "noise", "says"]
        print_table(out, _interactions(ladder), titles, right=titles[2:-1])
    out.print()
    for note in _notes(ladder):
        print_folded(out, note)
    for line in failures(ladder):
        print_folded(out, line, "bold red")
    ran = sum(result.measured is not None for result in ladder.rungs)
    not_run = sum(bool(result.not_run) for result in ladder.rungs)
    out.print(f"{ladder.run}: {verdict(ladder)}, {ran} rungs run, {not_run} not run")


def _notes(ladder: LadderResult) -> Iterator[str]:
    if any(result.ablated for result in ladder.rungs):
        yield "interactions: with --ablate no top is launched without each rung: it lacks one already."
    reserved = "the largest resident set before the timed steps (a CPU's allocator reserves nothing)"
    if ladder.device == "cuda":
        reserved = "what CUDA's allocator reserved"
    yield f"allocated: PyTorch's allocator, the largest sum in one eager step; reserved: {reserved}."
    yield f"tokenising: {ladder.sample_seconds * 1e3:.2f} ms a sample; profile: {ladder.profile}"
    if ladder.divisor > 1:
        words = f"samples: 1/{ladder.divisor} of those declared, so that the larger baseline fits into the GPU's memory"
        yield f"{words}, by its predicted peak."


def _print_track(out: Console, track: Track, results: Sequence[RungResult]) -> None:
    """Three tables of a track: what each rung took, its gain with its promises, and the terms of its step."""
    ran = [(result, m, p) for result in results if (m := result.measured) is not None and (p := result.expected)]
    took = [[result.title, *_measured(measured, predicted)] for result, measured, predicted in ran]
    titles = ["rung", "MiB allocated", "predicted", "at", "reserved", "step ms", "us/token", "Gflop/s", "waits"]
    print_table(out, took, titles, right={*titles} - {"rung", "at"})
    print_table(out, _gains(track, results), GAIN_COLUMNS, right=GAIN_COLUMNS[1:-1])
    print_folded(out, f"gains: in {_unit(track)}, over the rung that each stands on", "")
    terms = [[result.rung.name, *_terms(measured, predicted)] for result, measured, predicted in ran]
    print_table(out, terms, ["ms of a step", *_TERM_COLUMNS], right=_TERM_COLUMNS)
    for result in results:
        if result.not_run:
            print_folded(out, f"{result.rung.name}: {NOT_RUN}: {result.not_run}", "")


def _unit(track: Track) -> str:
    return "MiB of peak memory" if track is Track.MEMORY else "microseconds a token"


def _scale(track: Track) -> float:
    return 1 / MIB if track is Track.MEMORY else 1e6


def _number(value: float | None, form: str, scale: float = 1, *, missing: str = "-") -> str:
    return missing if value is None else format(value * scale, form)


def gain_words(gain: float | None, track: Track) -> str:
    """A gain in the track's unit: "120.5 less" memory or "3.1 faster" a token; "-" for None."""
    if gain is None:
        return "-"
    amount = f"{abs(gain) * _scale(track):,.1f}"
    scale = Direction.AMOUNT if track is Track.MEMORY else Direction.TIME
    return "equal" if amount == "0.0" else f"{amount} {direction(0.0, gain, scale)}"


def _measured(measured: RungMeasurement, predicted: RungPrediction) -> Iterator[str]:
    reserved = measured.resident_bytes if measured.reserved_bytes is None else measured.reserved_bytes
    yield _number(measured.peak_bytes, ",.1f", 1 / MIB)
    yield _number(predicted.peak_bytes, ",.1f", 1 / MIB)
    yield predicted.phase or "-"
    yield _number(reserved, ",.0f", 1 / MIB)
    yield _number(measured.step_seconds, ",.0f", 1e3)
    yield _number(measured.token_seconds, ",.0f", 1e6)
    yield _number(measured.model_flop_per_second, ",.1f", 1e-9)
    yield _number(measured.synchronisations, ",d")


def _gains(track: Track, results: Sequence[RungResult]) -> Iterator[list[object]]:
    scale = _scale(track)
    for result in results:
        gain = result.gain
        if result.measured is None or result.expected is None:
            yield [result.rung.name, *[""] * 4, NOT_RUN if result.not_run else "failed"]
            continue
        gains = [""] * 3
        if gain is not None:
            gains = [gain_words(value, track) for value in (gain.predicted, gain.measured)]
            gains.append(_number(gain.noise, ",.1f", scale))
        yield [result.title, *gains, _number(result.share, ".2f", missing=""), Coloured(tuple(_promises(result)))]


def _promises(result: RungResult) -> Iterator[tuple[str, str]]:
    """Texts and colours of what the rung promises, and whether it came true."""
    for number, check in enumerate(result.checks):
        yield from ((f"{'; ' if number else ''}{check.name} ", ""), (MARKS[check.mark], COLOURS[check.mark]))
        yield f": {check.says}", ""


def _terms(measured: RungMeasurement, predicted: RungPrediction) -> Iterator[str]:
    for term in _SHORT:
        yield f"{measured.terms.get(term.value, 0.0) * 1e3:,.1f}" if measured.terms else "-"
    yield _number(measured.step_seconds, ",.0f", 1e3)
    yield _number(predicted.step_seconds, ",.0f", 1e3)
    yield _number(measured.cpu_slowdown, ".2f")


def _interactions(ladder: LadderResult) -> Iterator[list[str]]:
    tracks = {rung.name: rung.track for rung in RUNGS}
    for interaction in ladder.interactions:
        track = tracks[interaction.rung]
        worth = (gain_words(value, track) for value in (interaction.in_track, interaction.at_top))
        yield [interaction.rung, track.value, *worth, f"{interaction.noise * _scale(track):,.1f}", interaction.says]


def print_rungs(out: Console) -> None:
    """Print every rung with its title, its promise of the losses, and how its gain is predicted."""
    for rung in RUNGS:
        needs = f"; needs: {', '.join(need.name.lower() for need in rung.needs)}" if rung.needs else ""
        bound = f" {rung.bound:.1e}" if rung.bound else ""
        out.print(f"[bold]{rung.name}[/] ({rung.track}): {escape(rung.title)}")
        print_folded(out, f"    predicted: {rung.predicts}", "")
        print_folded(out, f"    losses {rung.promise}{bound}: {rung.loss}{needs}", "")


def as_json(ladder: LadderResult) -> dict[str, Any]:
    """The result with what failed and the verdict, for machines."""
    built: dict[str, Any] = msgspec.to_builtins(ladder)
    for entry, result in zip(built["rungs"], ladder.rungs, strict=True):
        if result.measured is not None:
            entry["measured"]["token_seconds"] = result.measured.token_seconds
    for entry, interaction in zip(built["interactions"], ladder.interactions, strict=True):
        entry |= {"adds_up": interaction.adds_up, "says": interaction.says}
    return built | {"failures": failures(ladder), "verdict": verdict(ladder)}


def rung_line(result: RungResult) -> str:
    """A rung in one line, for progress."""
    if result.not_run:
        return f"{result.rung.name}: {NOT_RUN}: {result.not_run}"
    measured = result.measured
    if measured is None or result.failed:
        return f"{result.rung.name}: {result.failed}"
    checks = ", ".join(f"{check.name} {MARKS[check.mark]} ({check.says})" for check in result.checks)
    return (
        f"{result.rung.name}: {measured.peak_bytes / MIB:,.1f} MiB, {measured.step_seconds * 1e3:,.0f} ms a step, "
        f"{measured.token_seconds * 1e6:,.0f} us a token; {checks}"
    )
