"""The machine profile that a command works with: a valid one, or one that is measured first."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape

from reference_runs.errors import InputError
from suite.calibration.calibrate import USUAL_SECONDS, calibrate, planned_calibration
from suite.calibration.needs import Needs, lacking, needs_of, usual_seconds
from suite.calibration.plan import Calibration
from suite.job.events import Status
from suite.machine.cpu_contention import competitors
from suite.machine.devices import usable_cores
from suite.machine.fingerprint import fingerprint
from suite.machine.profile import DISTURBED_SHARE, Profile, current_profile, disturbed, machines_directory, unsuitable
from suite.records import store
from suite.report.terminal.progress import calibration_progress
from suite.report.terminal.tables import refusal
from suite.reproduce.plan import Plan
from suite.reproduce.step_time import check_timed, time_figures_of

OBSERVED_SECONDS = 1.0  # a hundred ticks of each processor's clock


def profile_for(
    plan: Plan, results: Path, *, may_calibrate: bool, messages: Console, whole: bool = False
) -> tuple[Profile | None, str]:
    """The newest profile that holds here and has what the prediction of `plan` needs, and its path; or None and why.

    Where there is none, what is missing is measured now: for the step time of `plan` alone, unless a `whole`
    calibration is asked for. A calibration that fails is no reason not to reproduce: the exit
    code speaks of figures that were counted, and none of those needs a profile. Where ranks share cores, nothing is
    measured without being asked: each number of ranks adds its whole share of points, and the messages of such ranks
    take what their turns leave. On processors that others keep busy nothing is measured either, and what was measured
    meanwhile is not used.

    Raises:
        KeyboardInterrupt: the calibration was interrupted by the user.
    """
    if plan.shares_devices:
        return None, "ranks that share a GPU are not timed"
    needed = None if whole else _needs(plan)
    profile, where = _valid(plan, results, needed)
    if profile is not None or not may_calibrate:
        return profile, where
    ranks, cores = plan.layout.ranks, usable_cores()
    if plan.device == "cpu" and ranks > cores:
        return None, f"{where}; for {ranks} ranks on {cores} cores only by hand: calibrate --ranks {ranks}"
    try:
        with _only_one(results, messages):
            profile, where = _valid(plan, results, needed)  # another command may have measured while this one waited
            if profile is not None:
                return profile, where
            if busy := _busy(plan.device):
                return None, busy
            return _measured(plan, results, needed, where, messages)
    except KeyboardInterrupt:
        messages.print("[bold red]interrupted while calibrating[/]: no profile is stored, nothing is reproduced")
        raise
    except InputError as error:
        return None, _failed(str(error))
    except OSError as error:  # no room or no access for the profile or scratch files
        return None, _failed(refusal(error))


def _needs(plan: Plan) -> Needs | None:
    """Measurements that the prediction of a plan asks of a profile; None where it predicts no step time."""
    try:
        check_timed(plan)
        needed = needs_of(
            lambda measured: time_figures_of(plan, measured),
            device=plan.device,
            ranks=plan.layout.ranks,
            compiled=plan.compiled,
        )
    except InputError:
        return None
    return needed if needed.sizes else None


def _valid(plan: Plan, results: Path, needed: Needs | None) -> tuple[Profile | None, str]:
    """The newest whole calibration, or a partial one that has everything that is needed; or None and why."""

    def refused_for(profile: Profile) -> str | None:
        if not profile.partial or (needed is not None and lacking(needed, profile) is None):
            return None
        return unsuitable(profile)

    return current_profile(results, fingerprint(plan.device), ranks=plan.layout.ranks, refused_for=refused_for)


def _measured(
    plan: Plan, results: Path, needed: Needs | None, missing: str, messages: Console
) -> tuple[Profile | None, str]:
    planned = _whole(plan, results) if needed is None else _partial(plan, results, needed)
    usual = usual_seconds(compiled=plan.compiled) if planned.partial else USUAL_SECONDS
    messages.print(f"calibrating first, about {usual:.0f} s: {escape(missing)}", soft_wrap=True)
    with calibration_progress(planned, messages) as live:
        result = calibrate(planned, live)
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    if result.profile is None:
        return None, _failed(f"{result.status.value}: {result.message}")
    if why := disturbed(result.profile):
        return None, f"the calibration is not used: {result.path}: {why}"
    return result.profile, result.path


def _whole(plan: Plan, results: Path) -> Calibration:
    """A calibration with all GPUs, or the plan's ranks on the CPU: at least 2, so that collectives are measured too."""
    ranks = None if plan.device == "cuda" else max(plan.layout.ranks, min(2, usable_cores()))
    return planned_calibration(results, device=plan.device, ranks=ranks)


def _partial(plan: Plan, results: Path, needed: Needs) -> Calibration:
    """Measurements that the newest profile that holds here lacks, or all that are needed where there is none."""
    before, _ = current_profile(results, fingerprint(plan.device), refused_for=lambda _: None)
    planned = lacking(needed, before)
    assert planned is not None  # else that profile would have been taken
    return msgspec.structs.replace(planned, results=results)


def _busy(device: str) -> str | None:
    """Why a calibration would now measure a busy machine; None where it would not.

    A calibration that is known beforehand to be of no use costs every run as long again.
    """
    if device != "cpu":
        return None
    others, share = competitors(OBSERVED_SECONDS)
    if share <= DISTURBED_SHARE:
        return None
    named = ", ".join(f"{process.name} ({process.pid})" for process in others[:3])
    return f"not calibrated: others take {share:.0%} of the processors now{f': {named}' if named else ''}"


def _failed(why: str) -> str:
    return f"the calibration failed: {' '.join(why.split())}; no profile is stored"


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
