"""Runs one calibration: plans it, measures with ranks under torchrun, and stores the machine's profile."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.calibration.assemble import assembled, load_average
from suite.calibration.combine import combined
from suite.calibration.density import DENSITIES, Density
from suite.calibration.plan import REFERENCE_ROUNDS, Calibration, plan, reference_steps
from suite.calibration.shapes import miniature_shapes
from suite.job.calibration_job import CalibrationJob
from suite.job.events import Event, Status
from suite.launch.launcher import HERE, LaunchOutcome, launch
from suite.launch.multi_host import Hosts
from suite.machine import cpu_caches
from suite.machine.devices import resolved_device, usable_cores
from suite.machine.fingerprint import fingerprint
from suite.machine.profile import Profile, encode, machines_directory
from suite.records import store

COLLECTIVE_TIMEOUT_SECONDS = 300.0
USUAL_SECONDS = 90.0  # from start to end, as printed to a waiting user


class CalibrationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a user; `ranks` None: 2 on the CPU, otherwise all GPUs."""

    results: Path
    ranks: int | None = None
    device: str = "auto"


class CalibrationResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a calibration ended. Profile and path are missing if it failed.

    Args:
        ranks_at_fault, log_tail: see `suite.launch.launcher.LaunchOutcome`.
    """

    status: Status
    message: str
    profile: Profile | None = None
    path: str = ""
    ranks_at_fault: list[int] = []
    log_tail: str = ""


def planned_calibration(request: CalibrationRequest, density: Density | None = None) -> Calibration:
    """The checked plan for a request, by default with the usual density of the device.

    Raises:
        InputError: unknown device, ranks out of range, or a results directory that cannot be written.
    """
    device, default_ranks = resolved_device(request.device)
    ranks = default_ranks if request.ranks is None else request.ranks
    if ranks < 1 or (device == "cuda" and ranks > default_ranks):
        allowed = f"1 to {default_ranks}" if device == "cuda" else "1 or more"
        raise InputError("ranks", got=ranks, allowed=allowed, where="--ranks")
    cores = usable_cores()
    used = miniature_shapes(device, ranks=ranks)
    density = (density or DENSITIES[device])._replace(caches=cpu_caches.all_bytes() if device == "cpu" else 0)
    planned = plan(used, device=device, cores=cores, ranks=ranks, density=density)
    return Calibration(
        device=device,
        ranks=ranks,
        results=request.results,
        planned=planned,
        reference_steps=reference_steps(device=device, cores=cores, ranks=ranks, density=density),
        rounds=density.rounds,
    )


def calibrate(calibration: Calibration, on_event: Callable[[int, Event], None]) -> CalibrationResult:
    """Measure everything that is planned, and store the profile below the results directory.

    Raises:
        InputError: the results directory cannot be written.
        StoreFullError: there is no room in it.
    """
    directory = store.writable(machines_directory(calibration.results), calibration.results)
    before, load = fingerprint(calibration.device), load_average()
    outcome = measured(calibration, on_event, cores=usable_cores())
    if outcome.status is not Status.OK:
        return failed(outcome)
    profile = assembled(calibration, outcome.events, before, load)
    if calibration.extends is not None:
        profile = combined(calibration.extends, profile)
    path = directory / f"{profile.fingerprint.node}__{profile.fingerprint.hash}.json"
    return CalibrationResult(status=Status.OK, message="", profile=profile, path=str(stored(profile, path)))


def failed(outcome: LaunchOutcome) -> CalibrationResult:
    """The result of a calibration whose ranks did not all report."""
    return CalibrationResult(
        status=outcome.status, message=outcome.message, ranks_at_fault=outcome.ranks_at_fault, log_tail=outcome.log_tail
    )


def measured(
    calibration: Calibration,
    on_event: Callable[[int, Event], None],
    *,
    cores: int,
    hosts: Hosts = HERE,
    interface: str | None = None,
) -> LaunchOutcome:
    """Launch the ranks and wait for their reports.

    Args:
        cores: number of cores that the ranks on all hosts share.
        interface: of several hosts; None: the library chooses.
    """
    identity = store.new_identity()
    with tempfile.TemporaryDirectory(prefix="suite-", ignore_cleanup_errors=True) as scratch:
        job = CalibrationJob(
            directory=scratch,
            device=calibration.device,
            ranks=calibration.ranks,
            threads=max(1, cores // calibration.ranks),
            tasks=tuple(planned.task for planned in calibration.planned),
            rounds=calibration.rounds,
            budget_seconds=calibration.budget_seconds,
            collective_timeout_seconds=COLLECTIVE_TIMEOUT_SECONDS,
            reference_steps=tuple(calibration.reference_steps),
            blocks=REFERENCE_ROUNDS if calibration.reference_steps else 0,
            reference_seconds=calibration.reference_seconds if calibration.reference_steps else 0.0,
            interface=interface,
        )
        (Path(scratch) / "job.json").write_bytes(msgspec.json.encode(job))
        return launch(job, identity, on_event, hosts=hosts)


def stored(profile: Profile, path: Path) -> Path:
    """Write the profile, never over another one. A second one of the same machine has the time in its name.

    If several end in the same second, all but one also have a random number in their names.
    """
    data = encode(profile)
    with contextlib.suppress(FileExistsError):
        store.write_new(path, data)
        return path
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(profile.measured))
    later = path.with_name(f"{path.stem}__{stamp}.json")
    with contextlib.suppress(FileExistsError):
        store.write_new(later, data)
        return later
    last = path.with_name(f"{path.stem}__{stamp}__{secrets.token_hex(4)}.json")
    store.write_new(last, data)
    return last
