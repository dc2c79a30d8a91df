"""Judge this node: run the battery, print its verdict, keep its record."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape

from reference_runs.errors import InputError
from suite.acceptance.battery import Report, run_battery
from suite.acceptance.context import Settings
from suite.acceptance.findings import Decision
from suite.acceptance.presets import effort, selected_checks, selected_miniatures
from suite.commands import exit_codes
from suite.launch.interruption import end_as_interrupted
from suite.machine.devices import resolved_device, usable_cores
from suite.paths import ROOT
from suite.report.terminal.acceptance import checks_table, junit, print_report, rows, summary
from suite.report.terminal.tables import console

CODES = {
    Decision.ACCEPTED: exit_codes.PASS,
    Decision.REJECTED: exit_codes.FAIL,
    Decision.UNDECIDED: exit_codes.INCONCLUSIVE,
    Decision.EXECUTION_FAILED: exit_codes.EXECUTION_FAILED,
}


def accept_command(  # noqa: PLR0913  # the command's options
    profile: Annotated[
        str, typer.Option(help="quick (about 5 minutes), accept (about 30) or soak (2 hours and more).")
    ] = "quick",
    only: Annotated[
        str | None, typer.Option(help="Checks by number or name: --only 7,14 or --only 'step time'.")
    ] = None,
    skip: Annotated[str | None, typer.Option(help="Checks to leave out: --skip 15.")] = None,
    miniatures: Annotated[
        str | None, typer.Option(help="Launch and time these alone: --miniatures gpt2-mini,bloom-mini.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the newest interrupted battery of the same options.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    ranks: Annotated[int | None, typer.Option(help="Processes; default 2 on the CPU, otherwise all GPUs.")] = None,
    devices: Annotated[
        int | None, typer.Option(help="GPUs (without one: processor cores) that this node must have: --devices 8.")
    ] = None,
    others: Annotated[
        float, typer.Option(help="Share of the processors that other processes may use: --others 0.1.")
    ] = 0.05,
    fleet: Annotated[
        Path | None, typer.Option(readable=False, help="Records of other nodes: --fleet /shared/results.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Where records are stored, in acceptance/ and records/.")] = ROOT
    / "results",
    junit_file: Annotated[
        Path | None, typer.Option("--junit", readable=False, help="Write JUnit XML too: --junit accept.xml.")
    ] = None,
    summary_only: Annotated[
        bool, typer.Option("--summary", help="One line on stdout, for a scheduler's health check.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object; progress goes to stderr.")] = False,
    checks: Annotated[
        bool, typer.Option("--checks", help="Print what is checked, with formulas; run nothing.")
    ] = False,
) -> None:
    """Judge this node: matrix rate, memory, links, exact figures and step times of the miniatures, replays, soak.

    Every expected value is computed or measured, and printed with its source. A time that fails is measured again
    before the node is rejected. What cannot run here is NOT RUN, with the reason, and never counts as passed.
    docs/acceptance.md says what to do with each verdict.

    Examples: python -m suite accept; python -m suite accept --profile accept --fleet /shared/results --summary

    Exit codes: 0 accepted, 1 rejected, 2 bad usage or input, 3 not decidable or nothing ran, 4 an execution failed
    (hang, crash, out of memory, NaN), 130 interrupted.
    """
    if checks:
        checks_table(console())
        return
    settings = _settings(
        profile=profile,
        only=only,
        skip=skip,
        miniatures=miniatures,
        resume=resume,
        device=device,
        ranks=ranks,
        devices=devices,
        others=others,
        fleet=fleet,
        results=results,
    )
    if junit_file is not None:
        _check_writable(junit_file)
    end_as_interrupted()
    messages = console(stderr=True)
    try:
        report = run_battery(settings, lambda line: messages.print(f"[dim]{escape(line)}[/]", soft_wrap=True))
    except OSError as error:  # no room or no access for records or scratch files
        messages.print(f"[bold red]{escape(f'{error.strerror}: {error.filename}')}[/]", soft_wrap=True)
        raise typer.Exit(exit_codes.EXECUTION_FAILED) from error
    except KeyboardInterrupt:
        messages.print("interrupted: accept --resume goes on with the phases that are left")
        raise typer.Exit(exit_codes.INTERRUPTED) from None
    if json:
        sys.stdout.write(_json(report) + "\n")
    elif summary_only:
        sys.stdout.write(summary(report) + "\n")
    else:
        print_report(console(), report)
    if junit_file is not None:
        try:
            junit_file.write_text(junit(report), encoding="utf-8")
        except OSError as error:  # the verdict has been told, and stands
            messages.print(f"[bold red]{escape(f'{error.strerror}: {error.filename}')}[/]", soft_wrap=True)
    raise typer.Exit(CODES[report.decision])


def _check_writable(junit_file: Path) -> None:
    """Raises InputError where the file could not be written behind a battery."""
    if not junit_file.resolve().parent.is_dir():
        raise InputError("no directory for the file", got=str(junit_file), where="--junit")
    existed = junit_file.exists()
    try:
        with junit_file.open("ab"):
            pass
    except OSError as error:
        raise InputError(f"cannot write the file: {error.strerror}", got=str(junit_file), where="--junit") from error
    if not existed:
        junit_file.unlink()


def _settings(  # noqa: PLR0913  # the command's options
    *,
    profile: str,
    only: str | None,
    skip: str | None,
    miniatures: str | None,
    resume: bool,
    device: str,
    ranks: int | None,
    devices: int | None,
    others: float,
    fleet: Path | None,
    results: Path,
) -> Settings:
    chosen, selected = effort(profile), selected_checks(only, skip)
    launched, timed = selected_miniatures(miniatures, chosen)
    if not 0 <= others <= 1:
        raise InputError("share of the processors", got=others, allowed="0 to 1", where="--others")
    if devices is not None and devices < 1:
        raise InputError("devices", got=devices, allowed="1 or more", where="--devices")
    if fleet is not None and not fleet.is_dir():
        raise InputError("the fleet is no directory", got=str(fleet), allowed="a directory of records", where="--fleet")
    kind, most = resolved_device(device)
    if kind == "cpu":
        most = usable_cores()
    count = (min(2, most) if kind == "cpu" else most) if ranks is None else ranks
    if not 1 <= count <= most:
        what = "cores" if kind == "cpu" else "GPUs"
        raise InputError("ranks", got=count, allowed=f"1 to {most}, the {what} here", where="--ranks")
    return Settings(
        profile=profile,
        effort=chosen,
        device=kind,
        ranks=count,
        results=results,
        fleet=fleet,
        selected=selected,
        miniatures=launched,
        timed=timed,
        devices=devices,
        others=others,
        resume=resume,
        device_named=device != "auto",
    )


def _json(report: Report) -> str:
    entry = {
        "id": report.id,
        "profile": report.profile,
        "decision": report.decision,
        "exit_code": CODES[report.decision],
        "summary": summary(report),
        "seconds": report.seconds,
        "record": report.record,
        "notes": report.notes,
        "findings": list(rows(report.findings)),
    }
    return msgspec.json.encode(entry).decode()
