"""The ladder as tables: what every rung took and gave, what it promised, and which gains do not add up."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from suite.ladder.climb import Climb, failures, verdict
from suite.ladder.judge import Mark
from suite.ladder.run import Height
from suite.ladder.rungs import RUNGS, Walk
from suite.metrics.figures import StepTerm

MIB = 2.0**20
COLOURS = {Mark.PASS: "green", Mark.FAIL: "bold red", Mark.SHOWN: "dim", Mark.INCONCLUSIVE: "magenta"}
NOT_RUN = "NOT RUN"
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


def print_climb(out: Console, climb: Climb) -> None:
    """Both walks, the interactions, what failed, and what the numbers are."""
    for walk in Walk:
        heights = [height for height in climb.heights if height.rung.walk is walk]
        if heights:
            out.print(f"\n[bold]{walk}[/]: {_unit(walk)}; gains are over the rung named last", soft_wrap=True)
            out.print(_gains(walk, heights))
            out.print(_terms(heights))
            for height in heights:
                if height.not_run:
                    out.print(f"{escape(height.rung.name)}: {NOT_RUN}: {escape(height.not_run)}", soft_wrap=True)
    if climb.interactions:
        out.print("\n[bold]interactions[/]: a rung's gain in its place, and what the top of its walk loses without it")
        out.print(_interactions(climb))
    if any(height.broken for height in climb.heights):
        out.print("[dim]interactions: with --break no top is launched without its rungs: it lacks one already.[/]")
    reserved = "the largest resident set before the timed steps (a CPU's allocator reserves nothing)"
    if climb.device == "cuda":
        reserved = "what CUDA's allocator reserved"
    out.print(f"\n[dim]allocated: PyTorch's allocator, the largest sum in one eager step; reserved: {reserved}.[/]")
    out.print(f"[dim]tokenising: {climb.sample_seconds * 1e3:.2f} ms a sample; profile: {escape(climb.profile)}[/]")
    if climb.divisor > 1:
        words = f"samples: 1/{climb.divisor} of those declared, so that the larger baseline fits into the GPU's memory"
        out.print(f"[dim]{words}, by its predicted peak.[/]")
    for line in failures(climb):
        out.print(f"[bold red]{escape(line)}[/]", soft_wrap=True)
    out.print(f"{climb.run}: {verdict(climb)}, {_count(climb)}")


def _count(climb: Climb) -> str:
    ran = sum(height.measured is not None for height in climb.heights)
    return f"{ran} rungs climbed, {sum(bool(height.not_run) for height in climb.heights)} not run"


def _unit(walk: Walk) -> str:
    return "MiB of peak memory" if walk is Walk.MEMORY else "microseconds a token"


def _scale(walk: Walk) -> float:
    return 1 / MIB if walk is Walk.MEMORY else 1e6


def _gains(walk: Walk, heights: list[Height]) -> Table:
    titles = [
        "rung",
        "allocated",
        "predicted",
        "peak in",
        "reserved",
        "step ms",
        "us/token",
        "Gflop/s",
        "waits",
        "gain predicted",
    ]
    table = _table([*titles, "measured", "noise", "of base", "promises"], left=("rung", "peak in", "promises"))
    for height in heights:
        found, said, gain = height.measured, height.expected, height.gain
        if found is None or said is None:
            table.add_row(height.rung.name, NOT_RUN if height.not_run else "failed")
            continue
        reserved = found.reserved_bytes if found.reserved_bytes is not None else found.resident_bytes
        scale = _scale(walk)
        table.add_row(
            height.rung.name + (" (broken)" if height.broken else ""),
            f"{found.peak_bytes / MIB:,.1f}",
            "-" if said.peak_bytes is None else f"{said.peak_bytes / MIB:,.1f}",
            said.phase or "-",
            "-" if reserved is None else f"{reserved / MIB:,.0f}",
            f"{found.step_seconds * 1e3:,.0f}",
            f"{found.token_seconds * 1e6:,.0f}",
            f"{found.model_flop_per_second / 1e9:,.1f}",
            "-" if found.synchronisations is None else str(found.synchronisations),
            "" if gain is None else "-" if gain.predicted is None else f"{gain.predicted * scale:+,.1f}",
            "" if gain is None else f"{gain.measured * scale:+,.1f}",
            "" if gain is None else f"{gain.noise * scale:,.1f}",
            "" if height.share is None else f"{height.share:.2f}",
            ", ".join(f"[{COLOURS[c.mark]}]{c.name} {escape(c.says)}[/]" for c in height.checks),
        )
    return table


def _terms(heights: list[Height]) -> Table:
    table = _table(["ms of a step", *_SHORT.values(), "step", "predicted", "pace"], left=("ms of a step",))
    for height in heights:
        found, said = height.measured, height.expected
        if found is None or said is None:
            continue
        cells = [f"{found.terms.get(term.value, 0.0) * 1e3:,.1f}" if found.terms else "-" for term in _SHORT]
        predicted = "-" if said.step_seconds is None else f"{said.step_seconds * 1e3:,.0f}"
        pace = "-" if found.pace is None else f"{found.pace:.2f}"
        table.add_row(height.rung.name, *cells, f"{found.step_seconds * 1e3:,.0f}", predicted, pace)
    return table


def _interactions(climb: Climb) -> Table:
    walks = {rung.name: rung.walk for rung in RUNGS}
    table = _table(["rung", "walk", "in its place", "at the top", "noise", "says"], left=("rung", "walk", "says"))
    for one in climb.interactions:
        scale = _scale(walks[one.rung])
        colour = "dim" if one.within_noise else "default" if one.adds_up else "yellow"
        values = (f"{value * scale:+,.1f}" for value in (one.in_walk, one.at_top, one.noise))
        table.add_row(one.rung, walks[one.rung].value, *values, f"[{colour}]{one.says}[/]")
    return table


def _table(titles: list[str], *, left: tuple[str, ...]) -> Table:
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
        out.print(f"[bold]{rung.name}[/] ({rung.walk}): {escape(rung.title)}", soft_wrap=True)
        out.print(f"    predicted: {escape(rung.predicts)}", soft_wrap=True)
        out.print(f"    losses {rung.promise}{bound}: {escape(rung.loss)}{needs}", soft_wrap=True)


def as_json(climb: Climb) -> dict[str, Any]:
    """The climb with what failed and the verdict, for machines."""
    built: dict[str, Any] = msgspec.to_builtins(climb)
    for entry, height in zip(built["heights"], climb.heights, strict=True):
        if height.measured is not None:
            entry["measured"]["token_seconds"] = height.measured.token_seconds
    for entry, one in zip(built["interactions"], climb.interactions, strict=True):
        entry |= {"adds_up": one.adds_up, "says": one.says}
    return built | {"failures": failures(climb), "verdict": verdict(climb)}
