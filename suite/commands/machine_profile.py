"""The machine profile that a command works with: a valid one, or one that is measured first."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from reference_runs.errors import InputError
from suite.calibration.calibrate import USUAL_SECONDS, CalibrationRequest, calibrate, planned_calibration
from suite.commands.calibrate import CalibrationProgress
from suite.job.events import Status
from suite.machine.competing_processes import competitors
from suite.machine.devices import usable_cores
from suite.machine.fingerprint import fingerprint
from suite.machine.profile import DISTURBED_SHARE, Profile, current_profile, disturbed, machines_directory
from suite.records import store
from suite.reproduce.plan import Plan

LOOKED_SECONDS = 1.0  # a hundred ticks of each processor's clock


def profile_for(plan: Plan, results: Path, *, may_calibrate: bool, messages: Console) -> tuple[Profile | None, str]:
    """The newest valid profile for `plan` and its path, measured now where there is none; or None and why.

    A calibration that fails is told in one line, and no reason not to reproduce: the exit code speaks of figures that
    were counted, and none of those needs a profile. Where ranks share cores, nothing is measured without being asked:
    each number of ranks adds its whole share of points, and the messages of such ranks take what their turns leave. On
    processors that others keep busy nothing is measured either, and what was measured beside them is not used.

    Raises:
        KeyboardInterrupt: the calibration was interrupted by the user.
    """
    profile, where = _valid(plan, results)
    if profile is not None or not may_calibrate:
        return profile, where
    ranks, cores = plan.layout.ranks, usable_cores()
    if plan.device == "cpu" and ranks > cores:
        return None, f"{where}; for {ranks} ranks on {cores} cores only by hand: calibrate --ranks {ranks}"
    try:
        with _only_one(results, messages):
            profile, where = _valid(plan, results)  # another command may have measured while this one waited
            if profile is not None:
                return profile, where
            if busy := _busy(plan.device):
                messages.print(f"[yellow]{escape(busy)}[/]", soft_wrap=True)
                return None, busy
            return _measured(plan, results, where, messages)
    except KeyboardInterrupt:
        messages.print("[bold red]interrupted while calibrating[/]: no profile is stored, nothing is reproduced")
        raise
    except InputError as error:
        return None, _failed(str(error), messages)
    except OSError as error:  # no room or no access for the profile or scratch files
        return None, _failed(": ".join(str(part) for part in (error.strerror, error.filename) if part), messages)


def _valid(plan: Plan, results: Path) -> tuple[Profile | None, str]:
    return current_profile(results, fingerprint(plan.device), ranks=plan.layout.ranks)


def _measured(plan: Plan, results: Path, why: str, messages: Console) -> tuple[Profile | None, str]:
    """With all GPUs, or on the CPU with the ranks of the plan: at least 2, so that collectives are measured too."""
    ranks = None if plan.device == "cuda" else max(plan.layout.ranks, min(2, usable_cores()))
    messages.print(f"calibrating first, about {USUAL_SECONDS:.0f} s: {escape(why)}", soft_wrap=True)
    planned = planned_calibration(CalibrationRequest(results=results, ranks=ranks, device=plan.device))
    with CalibrationProgress(planned, quiet=not messages.is_terminal) as live:
        result = calibrate(planned, live)
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    if result.profile is None:
        return None, _failed(f"{result.status.value}: {result.message}", messages)
    if beside := disturbed(result.profile):
        line = f"the calibration is not used: {result.path}: {beside}"
        messages.print(f"[yellow]{escape(line)}[/]", soft_wrap=True)
        return None, line
    return result.profile, result.path


def _busy(device: str) -> str | None:
    """Why a calibration would now measure a busy machine; None where it would not.

    A calibration that is known beforehand to be of no use costs every run as long again.
    """
    if device != "cpu":
        return None
    others, share = competitors(LOOKED_SECONDS)
    if share is None or share <= DISTURBED_SHARE:
        return None
    named = ", ".join(f"{one.name} ({one.pid})" for one in others[:3])
    return f"not calibrated: others take {share:.0%} of the processors now{f': {named}' if named else ''}"


def _failed(why: str, messages: Console) -> str:
    line = f"the calibration failed: {' '.join(why.split())}; no profile is stored"
    messages.print(f"[bold red]{escape(line)}[/]", soft_wrap=True)
    return line


@contextlib.contextmanager
def _only_one(results: Path, messages: Console) -> Iterator[None]:
    """Wait while another command calibrates for the same directory: two at once would measure each other.

    Where the file system has no locks on directories (NFS), nobody waits; both profiles are stored, and each is whole.
    """
    directory = store.writable(machines_directory(results), results)
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            messages.print("waiting for another calibration to end")
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            pass
        yield
    finally:
        os.close(handle)
