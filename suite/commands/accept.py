"""Judge this node: run the battery, print its verdict, keep its record."""

from __future__ import annotations

import os
import platform
import select
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from reference_runs.errors import InputError
from reference_runs.this_cpu import is_virtual_machine
from suite.acceptance.battery import BatteryReport, run_battery
from suite.acceptance.context import Settings
from suite.acceptance.presets import effort, selected_checks, selected_miniatures
from suite.commands import exit_codes
from suite.commands.new_file import Force, check_new
from suite.commands.options import JsonWithProgress, command_line, command_of, print_json
from suite.fleet.health_events import health_events
from suite.fleet.node_patch import node_condition
from suite.launch.interruption import check_minutes, end_as_interrupted
from suite.machine.devices import NO_DEVICE, accelerators, cuda_state, resolved_device, usable_cores
from suite.machine.packages import LAUNCHES, require
from suite.paths import RESULTS
from suite.records.battery import CheckFinding, CheckVerdict, Decision
from suite.records.record import shared_fields
from suite.report.terminal.acceptance import junit, print_checks, print_findings, print_verdict, rows, summary
from suite.report.terminal.tables import console, print_refusal, write_line
from suite.reproduce.request import Device

MOST_DEVICES = 1_000_000  # of a node; without GPUs these are cores
ANSWER_SECONDS = 15.0  # for the answer whether to stop
LOOK_SECONDS = 0.2
ANSWERS = {"": True, "y": True, "yes": True, "n": False, "no": False}
CODES = {
    Decision.ACCEPTED: exit_codes.PASS,
    Decision.REJECTED: exit_codes.FAIL,
    Decision.UNDECIDED: exit_codes.INCONCLUSIVE,
    Decision.EXECUTION_FAILED: exit_codes.EXECUTION_FAILED,
}


class AcceptOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `accept`, in the order of its --help."""

    profile: Annotated[
        str, typer.Option(help="quick (about 5 minutes), accept (about 30) or soak (2 hours and more).")
    ] = "quick"
    only: Annotated[
        str | None, typer.Option(help="Run these checks alone, by number or name: --only 7,14 or --only 'step time'.")
    ] = None
    skip: Annotated[str | None, typer.Option(help="Leave these checks out: --skip 15.")] = None
    miniatures: Annotated[
        str | None, typer.Option(help="Launch and time these alone: --miniatures gpt2-mini,bloom-mini.")
    ] = None
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the newest battery of the same options that was interrupted.")
    ] = False
    resume_if_any: Annotated[
        bool, typer.Option("--resume-if-any", help="Same as --resume; without one a new battery begins.")
    ] = False
    stop_if_invalid: Annotated[
        bool, typer.Option("--stop-if-invalid", help="End at once where the environment is invalid from the start.")
    ] = False
    minutes: Annotated[float | None, typer.Option(help="Time limit in place of the profile's: --minutes 12.")] = None
    device: Device = "auto"
    ranks: Annotated[
        int | None, typer.Option(help="Number of processes (default: 2 on the CPU, otherwise all GPUs).")
    ] = None
    devices: Annotated[
        int | None, typer.Option(help="GPUs (without one: processor cores) that this node must have: --devices 8.")
    ] = None
    others: Annotated[
        float, typer.Option(help="Share of the processors that other processes may use: --others 0.1.")
    ] = 0.05
    fleet: Annotated[
        Path | None, typer.Option(readable=False, help="Records of other nodes: --fleet /shared/results.")
    ] = None
    results: Annotated[Path, typer.Option(help="Where records are stored, in acceptance/ and records/.")] = RESULTS
    junit_file: Annotated[
        Path | None, typer.Option("--junit", readable=False, help="Write JUnit XML too: --junit accept.xml.")
    ] = None
    force: Force = False
    summary_only: Annotated[
        bool, typer.Option("--summary", help="Print one line on stdout, for a scheduler's health check.")
    ] = False
    all_findings: Annotated[
        bool, typer.Option("--all", help="Print the table of all findings with their evidence.")
    ] = False
    json: JsonWithProgress = False
    checks: Annotated[bool, typer.Option("--checks", help="Print what is checked, with formulas; run nothing.")] = False


GROUPS = {
    "What is checked": ("only", "skip", "miniatures", "checks"),
    "This node": ("device", "ranks", "devices", "others", "fleet"),
    "A battery that was interrupted": ("resume", "resume_if_any", "stop_if_invalid"),
    "Output": ("results", "junit_file", "force", "summary_only", "all_findings", "json"),
}


@command_of(AcceptOptions, GROUPS)
def accept_command(asked: AcceptOptions) -> None:
    """Judge this node: matrix rate, memory, links, exact figures and step times of the miniatures, replays, soak.

    All measurements of one run are a battery. Every expected value is computed or measured, and printed with its
    source. A time that fails is measured again before the node is rejected. What cannot run here is NOT RUN, with the
    reason, and never counts as passed. The profile's time limit ends a battery whatever the machine does: what it left
    unmeasured is INCONCLUSIVE. docs/acceptance.md says what to do with each verdict.

    Examples: python -m suite accept; python -m suite accept --profile accept --fleet /shared/results --summary

    Exit codes: 0 accepted, 1 rejected, 2 bad usage or input, a missing package, or GPUs that PyTorch cannot use, 3 not
    decidable, nothing ran, or a package does not import, 4 an execution failed (hang, crash, out of memory, NaN), 128 +
    n ended by signal n.
    """
    if asked.checks:
        print_checks(console())
        return
    _check(asked)
    require(*LAUNCHES, anew=True)
    chosen = effort(asked.profile)
    if asked.minutes is not None:
        chosen = msgspec.structs.replace(chosen, limit_seconds=60 * asked.minutes)
    launched, timed = selected_miniatures(asked.miniatures, chosen)
    kind, processes = _device_and_ranks(asked.device, asked.ranks, asked.devices)
    if kind == "cuda":
        require("pynvml")  # without it no counter is read
    same = shared_fields(Settings, AcceptOptions, "device", "ranks", "miniatures")
    settings = Settings(
        **{name: getattr(asked, name) for name in same},
        effort=chosen,
        device=kind,
        ranks=processes,
        selected=selected_checks(asked.only, asked.skip),
        miniatures=launched,
        timed=timed,
        device_named=asked.device != "auto",
    )
    report = _run(settings, stops=asked.stop_if_invalid)
    if asked.json:
        print_json(_entry(report))
    elif asked.summary_only:
        write_line(summary(report))
    else:
        again = _again(asked, report.findings)
        (print_findings if asked.all_findings else print_verdict)(console(), report, again)
    if asked.junit_file is not None:
        _write_junit(report, asked.junit_file)
    raise typer.Exit(CODES[report.decision])


def _again(asked: AcceptOptions, findings: Sequence[CheckFinding]) -> str:
    """The same battery once more; a longer one where the short one could not decide."""
    short = asked.profile == "quick" and asked.minutes is None
    open_ones = any(finding.verdict is CheckVerdict.INCONCLUSIVE for finding in findings)
    if short and open_ones:
        asked = msgspec.structs.replace(asked, profile="accept")
    asked = msgspec.structs.replace(asked, force=asked.junit_file is not None)  # which exists by then
    return command_line(["accept"], asked, "resume", "resume_if_any")


def _run(settings: Settings, *, stops: bool) -> BatteryReport:
    """The report of a battery; without room for records, or interrupted, the command ends."""
    end_as_interrupted()
    messages = console(stderr=True)

    def say(line: str) -> None:
        messages.print(f"[dim]{escape(line)}[/]", soft_wrap=True)

    try:
        return run_battery(settings, say, (lambda _why: True) if stops else _asking(messages))
    except OSError as error:  # no room or no access for records or scratch files
        print_refusal(error)
        raise typer.Exit(exit_codes.EXECUTION_FAILED) from error
    except KeyboardInterrupt:
        messages.print("interrupted: accept --resume goes on with the phases that are left")
        raise typer.Exit(exit_codes.INTERRUPTED) from None


def _asking(messages: Console) -> Callable[[str], bool]:
    """Says that no time will be judged, and asks at a terminal whether to stop; without an answer it goes on."""

    def stops(why: str) -> bool:
        messages.print(f"[yellow]environment INVALID: {escape(why)}[/]", soft_wrap=True)
        going_on = "times will not be judged, figures and bits will"
        if not _has_terminal():
            messages.print(f"[dim]it goes on: {going_on}; --stop-if-invalid would end here[/]", soft_wrap=True)
            return False
        end = time.monotonic() + ANSWER_SECONDS
        while (left := end - time.monotonic()) > 0:
            messages.print(f"stop here? \\[Y/n] In {left:.0f} s it goes on: {going_on}", soft_wrap=True)
            if not _answered(end):
                return False
            answer = sys.stdin.readline()
            if not answer:  # end of input: nobody will answer
                return False
            if (word := answer.strip().lower()) in ANSWERS:
                return ANSWERS[word]
        return False

    return stops


def _answered(end: float) -> bool:
    """Whether there is input before that moment: in short waits, as none is woken by a signal that came just before."""
    while (left := end - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], min(left, LOOK_SECONDS))[0]:
            return True
    return False


def _has_terminal() -> bool:
    """Whether somebody can answer: reading stops a process in the background of its terminal (SIGTTIN)."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # it is not the terminal that controls this process
        return False


def _write_junit(report: BatteryReport, file: Path) -> None:
    """Write the file if possible: the verdict is printed, and stands."""
    try:
        file.write_text(junit(report), encoding="utf-8")
    except OSError as error:
        print_refusal(error)


def _device_and_ranks(device: str, ranks: int | None, expected: int | None) -> tuple[str, int]:
    """The kind of device, and the number of processes; fewer than asked for where GPUs are missing, which rejects."""
    kind, most = ("cuda", 0) if _has_lost_all(device) else resolved_device(device)
    if kind == "cuda" and most < (expected or 1):
        return kind, most if ranks is None else min(ranks, most)
    if kind == "cpu":
        most = usable_cores()
    count = (min(2, most) if kind == "cpu" else most) if ranks is None else ranks
    if not 1 <= count <= most:
        available = f"1 to {most}, the {'cores' if kind == 'cpu' else 'GPUs'} here"
        raise InputError("ranks", got=count, allowed=available, where="--ranks")
    return kind, count


def _has_lost_all(device: str) -> bool:
    """Whether the node is to blame for having no GPU: a driver that has none or does not start.

    Where nobody asked for GPUs, only a driver that does not start counts, for GPUs that are on the bus: for the others
    check 0 looks for signs that the node had some.
    """
    if device == "cuda":
        return bool(cuda_state().why_gone)
    if device != "auto" or cuda_state().driver_error in (0, NO_DEVICE):
        return False
    return bool(cuda_state().why_gone and accelerators("NVIDIA"))


def _check(asked: AcceptOptions) -> None:
    """Raises InputError for an option out of range, a fleet that is no directory, or a file that cannot be written."""
    check_minutes(asked.minutes, "--minutes")
    for what, count in (("ranks", asked.ranks), ("devices", asked.devices)):
        if count is not None and not 1 <= count <= MOST_DEVICES:
            raise InputError(what, got=count, allowed=f"1 to {MOST_DEVICES:,}", where=f"--{what}")
    if not 0 <= asked.others <= 1:
        raise InputError("share of the processors", got=asked.others, allowed="0 to 1", where="--others")
    if asked.fleet is not None and not asked.fleet.is_dir():
        allowed = "a directory of records"
        raise InputError("the fleet is no directory", got=str(asked.fleet), allowed=allowed, where="--fleet")
    check_new(asked.junit_file, "--junit", force=asked.force)


def _entry(report: BatteryReport) -> dict[str, object]:
    return {
        **{name: getattr(report, name) for name in ("id", "profile", "decision")},
        "exit_code": CODES[report.decision],
        "summary": summary(report),
        "condition": node_condition(CODES[report.decision], summary(report)),
        "health_events": health_events(
            report.findings,
            node=os.environ.get("NODE_NAME") or platform.node(),
            virtual=is_virtual_machine(),
            now=time.time(),
        ),
        **{name: getattr(report, name) for name in ("seconds", "record", "notes")},
        "findings": list(rows(report.findings)),
    }
