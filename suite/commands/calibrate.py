"""Measure what this machine can do, print it, and store it as a machine profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from suite.calibration.calibrate import CalibrationResult, calibrate, planned_calibration
from suite.commands import exit_codes
from suite.commands.options import JsonWithProgress, print_json
from suite.job.events import Status
from suite.launch.interruption import end_as_interrupted
from suite.launch.rank_starts import check_rank_starts
from suite.machine.packages import compilation_missing, require
from suite.machine.profile import UNSEEN
from suite.machine.timings import median
from suite.paths import RESULTS
from suite.report.terminal.machine_profile import print_profile, step_corrections
from suite.report.terminal.progress import calibration_progress
from suite.report.terminal.tables import console, print_refusal
from suite.reproduce.request import Device


def calibrate_command(
    ranks: Annotated[
        int | None, typer.Option(help="Most processes that measure at once; default 2 on the CPU, else all GPUs.")
    ] = None,
    device: Device = "auto",
    results: Annotated[Path, typer.Option(help="Where the profile is stored, in machines/.")] = RESULTS,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes, fewer times: predictions are rougher.")] = False,
    json: JsonWithProgress = False,
) -> None:
    """Measure GEMMs, memory, operators and collectives of this machine, with 1, 2, 4 and more ranks at once.

    The profile is stored as results/machines/NODE__FINGERPRINT.json, never over another; the newest valid one counts. A
    rank that is silent for 120 s ends the command as a hang. Other work on the machine makes the numbers worse: the
    last line says how much there was.

    Examples: python -m suite calibrate; python -m suite calibrate --ranks 4 --json

    Exit codes: 0 measured and stored, 2 bad input, 4 the execution failed (nothing is stored),
    128 + n ended by signal n.
    """
    require("torch")
    end_as_interrupted()
    messages = console(stderr=True)
    planned = planned_calibration(results, device=device, ranks=ranks, quick=quick)
    if slow := check_rank_starts(planned.ranks, planned.device):
        messages.print(slow, soft_wrap=True)
    if missing := compilation_missing(planned.device):
        messages.print(f"nothing compiled is timed: {escape(missing)}", soft_wrap=True)
    try:
        with calibration_progress(planned, messages) as live:
            result = calibrate(planned, live)
    except OSError as error:  # no room or no access for the profile or scratch files
        print_refusal(error)
        raise typer.Exit(exit_codes.EXECUTION_FAILED) from error
    if json:
        print_json(_entry(result))
    else:
        _print(result)
    if result.status is Status.INTERRUPTED:
        raise typer.Exit(exit_codes.INTERRUPTED)
    raise typer.Exit(exit_codes.PASS if result.status is Status.OK else exit_codes.EXECUTION_FAILED)


def _entry(result: CalibrationResult) -> dict[str, object]:
    profile = result.profile
    errors = [abs(check.error) for check in profile.checks if check.kind == UNSEEN] if profile else []
    return {
        "status": result.status,
        "message": result.message,
        "path": result.path,
        "interpolation_error": median(errors) if errors else None,
        "reference_steps": [
            {
                "ranks": correction.timed.step.layout.ranks,
                "compiled": correction.timed.step.compiled,
                "factor": correction.factor,
            }
            for correction in (step_corrections(profile) if profile else [])
        ],
        "profile": profile,
    }


def _print(result: CalibrationResult) -> None:
    out = console()
    if result.profile is None:
        out.print(f"[bold red]calibration: {result.status.value}[/]: {escape(result.message)}; no profile is stored")
        return
    print_profile(out, result.profile)
    out.print(f"profile {escape(result.path)}", soft_wrap=True)
