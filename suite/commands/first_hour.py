"""Show in one hour what a fresh GPU node is worth: all parts, one after the other, each kept at once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from suite.commands import exit_codes
from suite.commands.options import print_json
from suite.first_hour.part import HourPart
from suite.first_hour.parts import chosen, parts
from suite.first_hour.result import DIRECTORY, PartResult, PartStatus
from suite.first_hour.run import Hour, result_of, run_bounded, run_hour
from suite.launch.interruption import check_minutes, end_as_interrupted
from suite.machine.devices import resolved_device
from suite.machine.fingerprint import fingerprint
from suite.machine.packages import LAUNCHES, require
from suite.paths import RESULTS as DEFAULT_RESULTS
from suite.paths import whole_file
from suite.records.store import writable
from suite.report.terminal.first_hour import ended_line, print_parts, summary
from suite.report.terminal.tables import console, print_refusal
from suite.reproduce.request import Device

PAGE_SECONDS = 60.0  # for the page, out of --minutes
SUMMARY = "SUMMARY.md"
MACHINE_SOFTWARE = ("torch", "triton")  # results of others do not count

Names = Annotated[str | None, typer.Option("--parts", help="Run these alone: --parts environment,rates.")]
Again = Annotated[str | None, typer.Option(help="Do these again: --again calibrate.")]
Minutes = Annotated[
    float | None, typer.Option(help="Minutes for this call and its page: --minutes 9 (default: no limit).")
]
Short = Annotated[bool, typer.Option("--short", help="Take a few steps and sizes of each part, to see that all run.")]
Listed = Annotated[bool, typer.Option("--list", help="Print the parts with their bounds and what is stored; run none.")]
Page = Annotated[bool, typer.Option("--page/--no-page", help="Write the page at the end.")]


def first_hour_command(  # the command's options
    results: Annotated[Path, typer.Option(help="Where everything is stored; the same directory goes on.")] = (
        DEFAULT_RESULTS
    ),
    minutes: Minutes = None,
    names: Names = None,
    again: Again = None,
    short: Short = False,
    device: Device = "auto",
    page: Page = True,
    listed: Listed = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object; progress goes to stderr.")] = False,
) -> None:
    """Run what one hour can show of a node, the most valuable first, and say what disagrees with its prediction.

    Needs neither nox nor root nor a network. Every part has a bound in time, and its result is written when it ends:
    a part that fails or hangs is kept as that, and the next begins. The same command with the same --results goes on:
    what is done on this GPU with these versions of torch and triton is not done again, what failed is tried up to three
    times, after all others. The end is a table, a list of differences, and the page (`report`).

    Examples: python -m suite first-hour --results hour; python -m suite first-hour --results hour --minutes 9

    Exit codes: 0 all done and as predicted, 1 something disagrees, 2 bad input, 3 parts are left, 4 a part failed or
    took too long, 128 + n ended by signal n.
    """
    began = time.monotonic()
    check_minutes(minutes, "--minutes")
    kind, _ = resolved_device(device)
    every = parts(kind, short=short)
    facts = fingerprint(kind)
    hour = Hour(
        parts=chosen(every, names, "--parts"),
        results=results.absolute(),
        machine={"gpus": facts.hardware["gpus"], **{name: facts.software[name] for name in MACHINE_SOFTWARE}},
        again=frozenset(part.name for part in chosen(every, again, "--again")) if again else frozenset(),
        deadline=None if minutes is None else began + 60 * minutes - PAGE_SECONDS,
    )
    if listed:
        print_parts(console(), [(part, result_of(hour, part)) for part in hour.parts])
        return
    if any(part.name != "environment" for part in hour.parts):
        require(*LAUNCHES, anew=True)
    end_as_interrupted()
    code = exit_codes.EXECUTION_FAILED
    try:
        writable(hour.results / DIRECTORY, results)
        interrupted = _ran(hour, console(stderr=True))
        hour = msgspec.structs.replace(hour, again=frozenset())
        code = _reported(hour, page=page and not interrupted, json=json)
        code = exit_codes.INTERRUPTED if interrupted else code
    except OSError as error:  # no room or no access for results
        print_refusal(error)
    raise typer.Exit(code)


def _ran(hour: Hour, messages: Console) -> bool:
    """Run what is left; whether a signal ended it."""

    def on_begin(part: HourPart, bound: float) -> None:
        messages.print(f"[dim]{escape(part.name)}: at most {bound:.0f} s[/]", soft_wrap=True)

    def on_end(part: HourPart, result: PartResult) -> None:
        messages.print(escape(ended_line(part, result)), soft_wrap=True)

    try:
        run_hour(hour, on_begin, on_end)
    except KeyboardInterrupt:
        messages.print("interrupted: the same command goes on")
        return True
    return False


def _reported(hour: Hour, *, page: bool, json: bool) -> int:
    """Write the summary and the page, print the summary; the exit code."""
    ended = [(part, result_of(hour, part)) for part in hour.parts]
    directory = hour.results / DIRECTORY
    written = _page(hour.results) if page else "not asked for"
    text = summary(ended, page=written)
    with whole_file(directory / SUMMARY) as temporary:
        temporary.write_text(text, encoding="utf-8")
    if json:
        print_json({"parts": [result for _, result in ended if result], "left": _left(ended), "page": written})
    else:
        print_parts(console(), ended)
        console().print(escape(f"page {written}; summary {directory / SUMMARY}"), soft_wrap=True)
    return _exit_code(ended)


def _page(results: Path) -> str:
    """Write the page of all that is recorded: its path, or why there is none."""
    output, errors = (results / DIRECTORY / f"report{suffix}" for suffix in (".out", ".err"))
    written = results / "index.html"
    before = written.stat().st_mtime if written.exists() else 0.0
    code = run_bounded(["suite", "report", "--results", str(results)], PAGE_SECONDS, output, errors)
    if written.exists() and written.stat().st_mtime > before:
        return str(written)
    words = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"not written: {words[-1] if words else f'exit code {code}'}"


def _left(ended: list[tuple[HourPart, PartResult | None]]) -> list[str]:
    return [part.name for part, result in ended if result is None or not result.has_ended]


def _exit_code(ended: list[tuple[HourPart, PartResult | None]]) -> int:
    results = [result for _, result in ended if result is not None]
    if any(result.status in (PartStatus.FAILED, PartStatus.TOO_LONG) for result in results):
        return exit_codes.EXECUTION_FAILED
    if any(result.differences for result in results):
        return exit_codes.FAIL
    return exit_codes.INCONCLUSIVE if _left(ended) else exit_codes.PASS
