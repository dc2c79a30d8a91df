"""The first hour's parts for people: a line a part, then all that disagrees with what was expected."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape

from suite.first_hour.part import HourPart
from suite.first_hour.result import PartResult, PartStatus
from suite.report.tables import MARKDOWN, table
from suite.report.terminal.tables import print_folded

_Ended = Iterable[tuple[HourPart, PartResult | None]]
_COLOURS = {
    PartStatus.DONE: "green",
    PartStatus.FAILED: "bold red",
    PartStatus.TOO_LONG: "bold red",
    PartStatus.NOT_RUN: "dim",
}
NOT_BEGUN = "not begun"


def ended_line(part: HourPart, result: PartResult) -> str:
    """A part that has just ended, in one line."""
    differences = f"; {len(result.differences)} differences" if result.differences else ""
    return f"{part.name}: {result.status.value} in {result.seconds:.0f} s: {result.says}{differences}"


def print_parts(out: Console, ended: _Ended) -> None:
    """Print a line a part, then the differences, then what to do about them."""
    listed = [*ended]
    for part, result in listed:
        if result is None:
            words = f"{part.name}, at most {part.seconds:.0f} s: {part.shows}"
            if part.expected is not None:
                words += f"; expected of an H100: {part.expected.milliseconds:,.0f} ms ({part.expected.bound_by})"
            out.print(f"[dim]{NOT_BEGUN:11} {escape(words)}[/]")
            continue
        status = f"[{_COLOURS.get(result.status, 'yellow')}]{result.status.value:11}[/]"
        out.print(f"{status} {escape(part.name)}, {result.seconds:.0f} s: {escape(result.says)}", soft_wrap=True)
    differing = [(part, line) for part, result in listed if result is not None for line in result.differences]
    if differing:
        print_folded(out, "disagrees with what was expected:", "bold")
    elif any(result is not None for _, result in listed):
        print_folded(out, "nothing that was measured disagrees with what was expected", "bold")
    for part, line in differing:
        out.print(escape(f"  {part.name}: {line}"), soft_wrap=True)
    if steps := _next_steps(listed):
        print_folded(out, "what to do next:", "bold")
    for line in steps:
        out.print(escape(f"  {line}"), soft_wrap=True)


def _next_steps(ended: _Ended) -> list[str]:
    return [f"{part.name}: {line}" for part, result in ended if result is not None for line in result.next_steps]


def summary(ended: _Ended, *, page: str) -> str:
    """The same as Markdown."""
    listed = [*ended]
    rows = [
        [
            part.name,
            part.shows,
            NOT_BEGUN if result is None else result.status.value,
            "-" if result is None else f"{result.seconds:.0f}",
            "-" if result is None else result.says.replace("|", "\\|"),
        ]
        for part, result in listed
    ]
    differing = [f"- {part.name}: {line}" for part, result in listed if result for line in result.differences]
    head = ["part", "shows", "status", "seconds", "found"]
    parts = ["# The first hour", table(rows, head, style=MARKDOWN, right=["seconds"])]
    parts += ["## Disagrees with what was expected", "\n".join(differing) or "Nothing that was measured."]
    if steps := _next_steps(listed):
        parts += ["## What to do next", "\n".join(f"- {step}" for step in steps)]
    parts.append(f"Page: {page}")
    return "\n\n".join(parts) + "\n"
