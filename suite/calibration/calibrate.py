"""One calibration: planned, measured by ranks under torchrun, fitted, and stored as this machine's profile."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.calibration.density import DENSITIES, QUICK_DENSITY, Density
from suite.calibration.plan import BURSTS, LINE, TABLE, Planned, computing, messages, plan, trials
from suite.calibration.shapes import miniature_shapes
from suite.job.calibration_job import Calibrated, CalibrationJob, ReferenceSteps, TimedTask
from suite.job.events import Event, Status
from suite.job.training_job import WARM_UP_STEPS
from suite.launch.launcher import HERE, LaunchOutcome, launch
from suite.launch.multi_host import Hosts
from suite.machine import cpu_caches, cpu_speed
from suite.machine.cpu_speed import SpeedSample
from suite.machine.devices import resolved_device, usable_cores
from suite.machine.fingerprint import Fingerprint, fingerprint
from suite.machine.half_precision import kernels_for
from suite.machine.operations import COLLECTIVES
from suite.machine.profile import Check, Conditions, Profile, encode, machines_directory
from suite.machine.reference_step import ReferenceStep, TimedReferenceStep
from suite.machine.timing_tables import Line, Table, fitted
from suite.machine.timings import Repetitions, Timing, middle_over_ranks, over_ranks, over_rounds
from suite.predict.simulation.step_correction import beside_parts
from suite.records import store

COLLECTIVE_TIMEOUT_SECONDS = 300.0
USUAL_SECONDS = 90.0  # from start to end, as it is told to those who wait
BUDGET_SECONDS = 74.0  # of them: starting, fitting and storing took 14 s on 2 cores (2026-11-23)
TRIAL_SECONDS = 18.0  # of these


class CalibrationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for; `ranks` None: 2 on the CPU, otherwise all GPUs."""

    results: Path
    ranks: int | None = None
    device: str = "auto"


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request: the device, and everything that is timed."""

    device: str
    ranks: int
    results: Path
    planned: list[Planned]
    trials: list[ReferenceStep] = []
    rounds: int


class CalibrationResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a calibration ended; no profile and no path where it did not end well.

    Args:
        ranks_at_fault, log_tail: see `suite.launch.launcher.Outcome`.
    """

    status: Status
    message: str
    profile: Profile | None = None
    path: str = ""
    ranks_at_fault: list[int] = []
    log_tail: str = ""


def planned_calibration(request: CalibrationRequest, density: Density | None = None) -> Calibration:
    """The checked plan for a request, as dense as is usual for the device unless told otherwise.

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
        trials=trials(device=device, cores=cores, ranks=ranks, density=density),
        rounds=density.rounds,
    )


def calibrate(calibration: Calibration, on_event: Callable[[int, Event], None]) -> CalibrationResult:
    """Measure what is planned, and store the profile below the results directory when all of it is there.

    Raises:
        InputError: the results directory cannot be written.
        StoreFullError: there is no room in it.
    """
    directory = store.writable(machines_directory(calibration.results), calibration.results)
    before, load = fingerprint(calibration.device), _load()
    outcome = _measured(calibration, on_event, cores=usable_cores())
    if outcome.status is not Status.OK:
        return _failed(outcome)
    profile = assembled(calibration, outcome.events, before, load)
    path = directory / f"{profile.fingerprint.node}__{profile.fingerprint.hash}.json"
    return CalibrationResult(status=Status.OK, message="", profile=profile, path=str(stored(profile, path)))


def between_hosts(
    profile: Profile,
    hosts: Hosts,
    *,
    interface: str | None,
    on_event: Callable[[int, Event], None],
) -> CalibrationResult:
    """`profile` with messages as they are between hosts that have a rank each: measured now, and stored nowhere.

    Everything else a rank does there is what it does on this machine.

    Args:
        interface: of the hosts; None: whichever the library chooses.
    """
    ranks, device = len(hosts.names), profile.fingerprint.device
    density, cores = DENSITIES[device], usable_cores() * (ranks if hosts.elsewhere else 1)
    used = miniature_shapes(device, ranks=ranks)
    planned = messages(used, device=device, cores=cores, ranks=ranks, density=density)
    calibration = Calibration(device=device, ranks=ranks, results=Path(), planned=planned, rounds=density.rounds)
    outcome = _measured(calibration, on_event, cores=cores, hosts=hosts, interface=interface)
    if outcome.status is not Status.OK:
        return _failed(outcome)
    between = {line.subject: line for line in _lines(planned, _timings(planned, outcome.events))}
    lines = [between.get(line.subject, line) for line in profile.lines]
    # trial steps were trained on this machine, with its messages
    tried = [msgspec.structs.replace(timed, parts_seconds=_parts_seconds(profile, timed)) for timed in profile.trials]
    profile = msgspec.structs.replace(profile, lines=lines, trials=tried)
    return CalibrationResult(status=Status.OK, message="", profile=profile)


def _parts_seconds(profile: Profile, timed: TimedReferenceStep) -> float:
    kernels = kernels_for(timed.trial.recipe.precision, profile.fingerprint.device)
    return beside_parts(profile, timed, kernels=kernels).parts_seconds


def with_ranks(
    profile: Profile,
    ranks: int,
    *,
    on_event: Callable[[int, Event], None],
    density: Density | None = None,
) -> CalibrationResult:
    """`profile` with what so many ranks at once take, more than it has: measured now, and stored nowhere.

    Where they are more than cores that is their messages, and what one for each core takes where the profile has fewer
    (see `suite.machine.oversubscription`). Its conditions are those of now: how busy the machine was with others. Its
    pace is that of the times in it: where what ranks that take turns compute was timed before, it has none for them.

    Args:
        density: None: the device's; on a CPU the quick one.
    """
    device, cores = profile.fingerprint.device, usable_cores()
    density = density or (QUICK_DENSITY if device == "cpu" else DENSITIES[device])
    density = density._replace(caches=cpu_caches.all_bytes() if device == "cpu" else 0)
    used = miniature_shapes(device, ranks=ranks)
    timed_before = device == "cpu" and ranks > cores and profile.conditions.ranks >= cores
    more: list[ReferenceStep] = []
    if device == "cpu" and ranks > cores:
        exchanged = messages(used, device=device, cores=cores, ranks=ranks, density=density)
        planned = [one for one in exchanged if one.task.subject.ranks == ranks]
        if not timed_before:
            planned += computing(used, device=device, cores=cores, counts=[cores], density=density)
    else:
        planned = plan(used, device=device, cores=cores, ranks=ranks, density=density, counts=(ranks,))
        every = trials(device=device, cores=cores, ranks=ranks, density=density)
        more = [one for one in every if one.layout.ranks == ranks]
    calibration = Calibration(
        device=device, ranks=ranks, results=Path(), planned=planned, trials=more, rounds=density.rounds
    )
    load = _load()
    outcome = _measured(calibration, on_event, cores=cores)
    if outcome.status is not Status.OK:
        return _failed(outcome)
    own = assembled(calibration, outcome.events, profile.fingerprint, load)
    before, now = profile.conditions, own.conditions
    both = msgspec.structs.replace(
        profile,
        conditions=msgspec.structs.replace(
            now, threads=before.threads | now.threads, pace=before.pace if timed_before else before.pace | now.pace
        ),
        tables=[*profile.tables, *own.tables],
        lines=[*profile.lines, *own.lines],
        checks=[*profile.checks, *own.checks],
        trials=[*profile.trials, *own.trials],
    )
    return CalibrationResult(status=Status.OK, message="", profile=both)


def _failed(outcome: LaunchOutcome) -> CalibrationResult:
    return CalibrationResult(
        status=outcome.status,
        message=outcome.message,
        ranks_at_fault=outcome.ranks_at_fault,
        log_tail=outcome.log_tail,
    )


def _measured(
    calibration: Calibration,
    on_event: Callable[[int, Event], None],
    *,
    cores: int,
    hosts: Hosts = HERE,
    interface: str | None = None,
) -> LaunchOutcome:
    identity = store.new_identity()
    with tempfile.TemporaryDirectory(prefix="suite-", ignore_cleanup_errors=True) as scratch:
        job = CalibrationJob(
            directory=scratch,
            device=calibration.device,
            ranks=calibration.ranks,
            threads=max(1, cores // calibration.ranks),
            tasks=tuple(planned.task for planned in calibration.planned),
            rounds=calibration.rounds,
            budget_seconds=BUDGET_SECONDS,
            collective_timeout_seconds=COLLECTIVE_TIMEOUT_SECONDS,
            trials=tuple(calibration.trials),
            bursts=BURSTS if calibration.trials else 0,
            trial_seconds=TRIAL_SECONDS if calibration.trials else 0.0,
            interface=interface,
        )
        (Path(scratch) / "job.json").write_bytes(msgspec.json.encode(job))
        return launch(job, identity, on_event, hosts=hosts)


def stored(profile: Profile, path: Path) -> Path:
    """Write the profile whole, never over another one: a second one of the same machine has the time in its name.

    Of several that end in the same second, all but one have a number of chance too.
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


def assembled(
    calibration: Calibration, events: list[list[Event]], found: Fingerprint, load_before: float | None
) -> Profile:
    """The profile in the ranks' reports: lines fitted, each check beside the table that it was planned for."""
    timings = _timings(calibration.planned, events)
    timed = list(zip(calibration.planned, timings, strict=True))
    tables = [
        Table(subject=planned.task.subject, axes=planned.axes, timings=points)
        for planned, points in timed
        if planned.kind == TABLE
    ]
    own_table = {(table.subject, table.axes): table for table in tables}
    checks = [
        Check(
            kind=planned.kind,
            subject=planned.task.subject,
            sizes=sizes,
            predicted_seconds=own_table[planned.task.subject, planned.axes].seconds(sizes),
            timing=timing,
        )
        for planned, points in timed
        if planned.kind not in (TABLE, LINE)
        for sizes, timing in zip(planned.task.sizes, points, strict=True)
    ]
    return Profile(
        measured=time.time(),
        fingerprint=found,
        conditions=_conditions(calibration, events, load_before),
        tables=tables,
        lines=_lines(calibration.planned, timings),
        checks=checks,
        trials=_trials(calibration, events),
    )


def _lines(planned: Sequence[Planned], timings: Sequence[tuple[Timing, ...]]) -> list[Line]:
    return [
        fitted(one.task.subject, one.unit, [float(size) for (size,) in one.task.sizes], points)
        for one, points in zip(planned, timings, strict=True)
        if one.kind == LINE
    ]


def _trials(calibration: Calibration, events: list[list[Event]]) -> list[TimedReferenceStep]:
    """Of every trial the ranks' mean of the median over all steps: what is told of a launch is the median too."""
    found = []
    for number, one in enumerate(calibration.trials):
        ranks = [
            [
                seconds
                for event in own
                if isinstance(event, ReferenceSteps) and event.trial == number
                for seconds in event.seconds
            ]
            for own in events[: one.layout.ranks]
        ]
        bursts = sum(isinstance(event, ReferenceSteps) and event.trial == number for event in events[0])
        found.append(TimedReferenceStep(trial=one, timing=middle_over_ranks(ranks, warm_up=WARM_UP_STEPS + bursts)))
    return found


def _timings(planned: Sequence[Planned], events: list[list[Event]]) -> list[tuple[Timing, ...]]:
    """Of every task its points, over all rounds and over the ranks that took part."""
    rounds: dict[tuple[int, int], list[tuple[Repetitions, ...]]] = {}  # of a rank and a task
    for rank, own in enumerate(events):
        for event in own:
            if isinstance(event, TimedTask):
                rounds.setdefault((rank, event.task), []).append(event.points)
    alike: dict[tuple[int, str], list[int]] = {}  # tasks of a number of ranks and a kind
    for number, one in enumerate(planned):
        subject = one.task.subject
        kind = "message" if subject.operation in COLLECTIVES else cpu_speed.kind(subject)  # messages wait for all ranks
        alike.setdefault((subject.ranks, kind), []).append(number)
    found: dict[int, tuple[Timing, ...]] = {}
    for (ranks, _), numbers in alike.items():
        of_ranks = [
            [[over_rounds(point) for point in zip(*rounds[rank, number], strict=True)] for rank in range(ranks)]
            for number in numbers
        ]
        found |= dict(zip(numbers, over_ranks(of_ranks), strict=True))
    return [found[number] for number in range(len(planned))]


def _conditions(calibration: Calibration, events: list[list[Event]], load_before: float | None) -> Conditions:
    ends = [event for own in events for event in own if isinstance(event, Calibrated)]
    first = ends[0]
    steal = others = None
    if first.all_seconds and first.steal_seconds is not None and first.busy_seconds is not None:
        steal = first.steal_seconds / first.all_seconds
        others = max(0.0, first.busy_seconds - sum(end.cpu_seconds for end in ends)) / first.all_seconds
    return Conditions(
        ranks=calibration.ranks,
        threads={planned.task.subject.ranks: planned.task.threads for planned in calibration.planned},
        seconds=max(end.seconds for end in ends),
        load_before=load_before,
        load_after=_load(),
        steal_share=steal,
        others_share=others,
        facts=first.environment,
        pace=_pace(ends),
        gpus=[{"rank": rank, **sample} for rank, end in enumerate(ends) for sample in end.gpus],
    )


def _pace(ends: Sequence[Calibrated]) -> dict[int, SpeedSample]:
    found = {}
    for ranks in sorted({ranks for end in ends for ranks in end.pace}):
        own = cpu_speed.over_ranks([end.pace[ranks] for end in ends if ranks in end.pace])
        assert own is not None
        found[ranks] = own
    return found


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
