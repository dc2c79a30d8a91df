"""Runs calibrations: plans, measures with ranks under torchrun, stores a profile, or extends one by what it lacks."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.calibration.assemble import assembled, combined, fitted_lines, load_average, timings_of_tasks
from suite.calibration.density import DENSITIES, QUICK_DENSITIES, QUICK_DENSITY, Density, Scope
from suite.calibration.plan import REFERENCE_ROUNDS, Calibration, computing, messages, plan, reference_steps
from suite.job.calibration_job import CalibrationJob
from suite.job.events import Event, Status
from suite.launch.launcher import HERE, LaunchOutcome, launch
from suite.launch.multi_host import Hosts
from suite.launch.rank_starts import check_rank_starts
from suite.machine import cpu_caches
from suite.machine.devices import resolved_device, usable_cores
from suite.machine.fingerprint import fingerprint
from suite.machine.half_precision import kernels_for
from suite.machine.packages import compilation_missing
from suite.machine.profile import Profile, encode, machines_directory
from suite.machine.reference_step import ReferenceStep
from suite.machine.scratch import scratch_directory
from suite.predict.simulation.step_correction import step_correction
from suite.records import store

COLLECTIVE_TIMEOUT_SECONDS = 300.0
USUAL_SECONDS = 90.0  # from start to end, as printed to a waiting user


class CalibrationResult(msgspec.Struct, frozen=True, kw_only=True):
    """End of a calibration. Profile and path are missing if it failed.

    Args:
        ranks_at_fault, log_tail: see `suite.launch.launcher.LaunchOutcome`.
    """

    status: Status
    message: str
    profile: Profile | None = None
    path: str = ""
    ranks_at_fault: list[int] = []
    log_tail: str = ""


def planned_calibration(
    results: Path,
    *,
    device: str = "auto",
    ranks: int | None = None,
    density: Density | None = None,
    quick: bool = False,
) -> Calibration:
    """The plan of a whole calibration, by default with the usual density of the device.

    Args:
        ranks: None: 2 on the CPU, otherwise all GPUs.
        quick: with the quick density, for want of another.

    Raises:
        InputError: unknown device, or ranks out of range.
    """
    device, default_ranks = resolved_device(device)
    ranks = default_ranks if ranks is None else ranks
    if ranks < 1 or (device == "cuda" and ranks > default_ranks):
        allowed = f"1 to {default_ranks}" if device == "cuda" else "1 or more"
        raise InputError("ranks", got=ranks, allowed=allowed, where="--ranks")
    check_rank_starts(ranks, device)  # before each of them is planned
    usual = (QUICK_DENSITIES if quick else DENSITIES)[device]
    scope = Scope(device, ranks, usable_cores(), _on_this_machine(density or usual, device))
    return Calibration(
        device=device,
        ranks=ranks,
        results=results,
        planned=plan(scope),
        reference_steps=reference_steps(scope),
        rounds=scope.density.rounds,
    )


def _on_this_machine(density: Density, device: str) -> Density:
    """The density with the sizes of this machine's caches, which decide the sizes of copies on a CPU.

    Nothing compiled is timed where a compiler is missing.
    """
    compiled = () if density.compiled and compilation_missing(device) else density.compiled
    return density._replace(caches=cpu_caches.all_bytes() if device == "cpu" else 0, compiled=compiled)


def calibrate(calibration: Calibration, on_event: Callable[[int, Event], None]) -> CalibrationResult:
    """Measure everything that is planned, and store the profile below the results directory.

    Raises:
        InputError: the results directory cannot be written.
        StoreFullError: there is no room in it.
    """
    directory = store.writable(machines_directory(calibration.results), calibration.results)
    result = measured_profile(calibration, on_event)
    if (profile := result.profile) is None:
        return result
    path = directory / f"{profile.fingerprint.node}__{profile.fingerprint.hash}.json"
    return msgspec.structs.replace(result, path=str(stored(profile, path)))


def measured_profile(calibration: Calibration, on_event: Callable[[int, Event], None]) -> CalibrationResult:
    """Measure everything that is planned; the profile is not stored."""
    before, load = fingerprint(calibration.device), load_average()
    outcome = measured(calibration, on_event, cores=usable_cores())
    if outcome.status is not Status.OK:
        return _failed(outcome)
    profile = assembled(calibration, outcome.events, before, load)
    if calibration.extends is not None:
        profile = combined(calibration.extends, profile)
    return CalibrationResult(status=Status.OK, message="", profile=profile)


def _failed(outcome: LaunchOutcome) -> CalibrationResult:
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
    with scratch_directory() as scratch:
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
            moments=calibration.moments,
            interface=interface,
        )
        (Path(scratch) / "job.json").write_bytes(msgspec.json.encode(job))
        return launch(job, identity, on_event, hosts=hosts)


def stored(profile: Profile, path: Path) -> Path:
    """Write the profile, never over another one. A second one of the same machine has the time in its name.

    If several end in the same second, all but one also have a random number in their names.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(profile.measured))
    for name in (path.name, f"{path.stem}__{stamp}.json"):
        with contextlib.suppress(FileExistsError):
            store.write_new(path.with_name(name), encode(profile))
            return path.with_name(name)
    last = path.with_name(f"{path.stem}__{stamp}__{secrets.token_hex(4)}.json")
    store.write_new(last, encode(profile))
    return last


def between_hosts(
    profile: Profile, hosts: Hosts, *, interface: str | None, on_event: Callable[[int, Event], None]
) -> CalibrationResult:
    """`profile` with the times of messages between hosts, one rank each. They are measured now and not stored.

    All other times remain those of this machine.

    Args:
        interface: of the hosts; None: the library chooses.
    """
    ranks, device = len(hosts.names), profile.fingerprint.device
    density, cores = DENSITIES[device], usable_cores() * (ranks if hosts.elsewhere else 1)
    planned = messages(Scope(device, ranks, cores, density))
    calibration = Calibration(device=device, ranks=ranks, results=Path(), planned=planned, rounds=density.rounds)
    outcome = measured(calibration, on_event, cores=cores, hosts=hosts, interface=interface)
    if outcome.status is not Status.OK:
        return _failed(outcome)
    between = {line.subject: line for line in fitted_lines(planned, timings_of_tasks(planned, outcome.events))}
    lines = [between.get(line.subject, line) for line in profile.lines]
    steps = []
    for timed in profile.reference_steps:  # they were trained on this machine, with its messages
        kernels = kernels_for(timed.step.recipe.precision, device)
        parts_seconds = step_correction(profile, timed, kernels=kernels).parts_seconds
        steps.append(msgspec.structs.replace(timed, parts_seconds=parts_seconds))
    profile = msgspec.structs.replace(profile, lines=lines, reference_steps=steps)
    return CalibrationResult(status=Status.OK, message="", profile=profile)


def with_ranks(
    profile: Profile, ranks: int, *, on_event: Callable[[int, Event], None], density: Density | None = None
) -> CalibrationResult:
    """`profile` extended to `ranks` ranks at once, more than it has. The times are measured now and not stored.

    For more ranks than cores, only messages are measured, and one rank per core where the profile has fewer (see
    `suite.machine.timing_tables.Oversubscribed`). The conditions (how busy the machine was) are the new ones. The CPU
    speed is that of the times in the profile: if one rank per core was timed before, there is none for the
    oversubscribed ranks.

    Args:
        density: None: the device's; on a CPU the quick one.
    """
    device, cores = profile.fingerprint.device, usable_cores()
    density = _on_this_machine(density or (QUICK_DENSITY if device == "cpu" else DENSITIES[device]), device)
    scope = Scope(device, ranks, cores, density)
    timed_before = device == "cpu" and ranks > cores and profile.conditions.ranks >= cores
    steps: list[ReferenceStep] = []
    if device == "cpu" and ranks > cores:
        planned = [entry for entry in messages(scope) if entry.task.subject.ranks == ranks]
        if not timed_before:
            planned += computing(scope, [cores])
    else:
        planned = plan(scope, [ranks])
        steps = [step for step in reference_steps(scope) if step.layout.ranks == ranks]
    calibration = Calibration(
        device=device, ranks=ranks, results=Path(), planned=planned, reference_steps=steps, rounds=density.rounds
    )
    load = load_average()
    outcome = measured(calibration, on_event, cores=cores)
    if outcome.status is not Status.OK:
        return _failed(outcome)
    both = combined(profile, assembled(calibration, outcome.events, profile.fingerprint, load))
    if timed_before:
        conditions = msgspec.structs.replace(both.conditions, cpu_speed=profile.conditions.cpu_speed)
        both = msgspec.structs.replace(both, conditions=conditions)
    return CalibrationResult(status=Status.OK, message="", profile=both)
