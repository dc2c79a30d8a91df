"""Extends a profile by measurements that it lacks: more ranks at once, or messages between hosts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from suite.calibration.assemble import assembled, combined, fitted_lines, load_average, timings_of_tasks
from suite.calibration.calibrate import CalibrationResult, failed, measured, with_caches
from suite.calibration.density import DENSITIES, QUICK_DENSITY, Density, Scope
from suite.calibration.plan import Calibration, computing, messages, plan, reference_steps
from suite.job.events import Event, Status
from suite.launch.multi_host import Hosts
from suite.machine.devices import usable_cores
from suite.machine.half_precision import kernels_for
from suite.machine.profile import Profile
from suite.machine.reference_step import ReferenceStep
from suite.predict.simulation.step_correction import step_correction


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
        return failed(outcome)
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
    density = with_caches(density or (QUICK_DENSITY if device == "cpu" else DENSITIES[device]), device)
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
        return failed(outcome)
    both = combined(profile, assembled(calibration, outcome.events, profile.fingerprint, load))
    if timed_before:
        conditions = msgspec.structs.replace(both.conditions, cpu_speed=profile.conditions.cpu_speed)
        both = msgspec.structs.replace(both, conditions=conditions)
    return CalibrationResult(status=Status.OK, message="", profile=both)
