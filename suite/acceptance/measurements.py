"""Measurements of a battery: micro-measurements, launches of miniatures, and probes; each returns its evidence."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from reference_runs.catalog import reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.miniature import miniature
from reference_runs.placement import coordinates
from reference_runs.this_cpu import is_virtual_machine
from suite.acceptance.evidence import (
    ALL_TO_ALL,
    Exchange,
    LaunchPurpose,
    MicroMeasurements,
    MiniatureLaunch,
    ProbeResult,
    PulsedLoad,
    ReplayHashes,
    SoakResult,
)
from suite.acceptance.machine_rates import host_device_rates, part_rates, peak_of_rank, product_points, rate_tasks
from suite.acceptance.presets import Effort
from suite.calibration.calibrate import CalibrationResult, calibrate, measured_profile, planned_calibration
from suite.calibration.plan import Calibration
from suite.job.calibration_job import Calibrated, RankMoments, TimedTask
from suite.job.corpus import standard_library_is_tokenised
from suite.job.events import Event, Status, StepKind
from suite.job.probe_job import Exchanged, Loaded, Probed, ProbeJob, Replayed, Soaked
from suite.launch.interruption import OutOfTimeError
from suite.launch.launcher import LaunchOutcome, launch
from suite.machine.cpu_contention import others_shares
from suite.machine.devices import usable_cores
from suite.machine.fingerprint import digest
from suite.machine.profile import Profile
from suite.machine.scratch import scratch_directory
from suite.metrics.comparison import Row, Verdict
from suite.metrics.figures import EXACT, Quantity, StepTerm, of_job
from suite.records import store
from suite.records.record import shared_fields
from suite.reproduce.plan import corpus_for, plan
from suite.reproduce.reproduce import reproduce
from suite.reproduce.request import Request
from suite.reproduce.step_time import predicted_times

COLLECTIVE_TIMEOUT_SECONDS = 300.0
CALIBRATION_START_SECONDS = 8.0  # of a calibration until its first task, and after its last one
MOMENTS, MOMENT_SECONDS = 8, 1.2  # at which ranks are compared, and how long one takes, memory to allocate included
TURN_SECONDS = 0.008  # of a rank: 6 ms of a processor and a message; 60 ranks take turns in half of 1.2 s
SEED = 20261122
REPLAYED_RUN = "bloom-176b"  # whose miniature the replays train
COMPUTE = (StepTerm.FORWARD, StepTerm.BACKWARD, StepTerm.OPTIMIZER)
OnEvent = Callable[[int, Event], None]


def copied_fields(source: msgspec.Struct, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields of `source` that a `kind` has under the same name."""
    return {name: getattr(source, name) for name in shared_fields(kind, type(source))}


def micro_measurements(
    device: str, ranks: int, effort: Effort, results: Path, on_event: OnEvent
) -> tuple[MicroMeasurements, Profile | None]:
    """This node's micro-measurements, and the machine profile made of them, which is stored below `results`."""
    return _micro(_calibration(device, ranks, effort, results), calibrate, on_event)


def rates_again(device: str, ranks: int, effort: Effort, on_event: OnEvent) -> MicroMeasurements:
    """The same products and copies once more, by all ranks at once, and nothing that only predictions need."""
    whole = _calibration(device, ranks, effort, Path())
    rates = msgspec.structs.replace(whole, planned=rate_tasks(whole.planned, ranks), reference_steps=[])
    return _micro(rates, measured_profile, on_event)[0]


def _calibration(device: str, ranks: int, effort: Effort, results: Path) -> Calibration:
    """A calibration that takes as long as the effort says: slow machines repeat less."""
    planned = planned_calibration(results, device=device, ranks=ranks, density=effort.densities[device])
    moments = MOMENTS if device == "cpu" else 0  # ranks on GPUs share no processor that computes
    moment = MOMENT_SECONDS + max(0.0, ranks * TURN_SECONDS - MOMENT_SECONDS / 2)
    left = effort.micro_seconds[device] - CALIBRATION_START_SECONDS - moments * moment
    budget = min(planned.budget_seconds, left)
    reference = planned.reference_seconds * budget / planned.budget_seconds
    return msgspec.structs.replace(planned, budget_seconds=budget, reference_seconds=reference, moments=moments)


def _micro(
    planned: Calibration, measure: Callable[[Calibration, OnEvent], CalibrationResult], on_event: OnEvent
) -> tuple[MicroMeasurements, Profile | None]:
    start, ranks = time.monotonic(), planned.ranks
    points: dict[tuple[int, int], list[TimedTask]] = {}
    numa_nodes: dict[int, str] = {}
    moments: dict[int, RankMoments] = {}

    def collect(rank: int, event: Event) -> None:
        if isinstance(event, TimedTask):
            points.setdefault((rank, event.task), []).append(event)
        elif isinstance(event, Calibrated):
            if "numa_node" in event.environment:
                numa_nodes[rank] = event.environment["numa_node"]
            if event.moments is not None:
                moments[rank] = event.moments
        on_event(rank, event)

    result = measure(planned, collect)
    micro = MicroMeasurements(
        status=result.status,
        message=result.message,
        seconds=time.monotonic() - start,
        ranks_at_fault=result.ranks_at_fault,
        stacks=result.log_tail,
    )
    profile = result.profile
    if profile is None:
        return micro, None
    matrix, copy, triad = part_rates(planned.planned, points, ranks)
    peak, peak_source = peak_of_rank(profile, ranks)
    micro = msgspec.structs.replace(
        micro,
        matrix=matrix,
        copy=copy,
        triad=triad,
        host_device=host_device_rates(profile),
        peak=peak,
        peak_source=peak_source,
        virtual=planned.device == "cpu" and is_virtual_machine(),
        profile=result.path,
        points=product_points(profile),
        numa_nodes=[numa_nodes[rank] for rank in sorted(numa_nodes)],
        moments=[moments[rank] for rank in sorted(moments)],
        others_share=profile.conditions.others_share,
        steal_share=profile.conditions.steal_share,
    )
    return micro, profile


def miniature_launch(
    name: str,
    purpose: LaunchPurpose,
    *,
    device: str,
    ranks: int,
    steps: int,
    compiled: bool,
    results: Path,
    profile: Profile | None,
    on_event: OnEvent,
) -> MiniatureLaunch:
    """One launch of a miniature, with its record.

    Args:
        compiled: where this machine can; False: not in any case.
    """
    start = time.monotonic()
    planned = plan(msgspec.structs.replace(_request(name, device, ranks, results, compiled=compiled), steps=steps))
    corpus = corpus_for(planned, None)
    result = reproduce(planned, corpus, results, on_event, profile=profile, profile_source="measured by this battery")
    record = store.read(Path(result.record))
    end, begin = record.end, record.begin
    launch = MiniatureLaunch(
        **(copied_fields(result, MiniatureLaunch) | {"stages": []}),  # the result's are a plan, or none
        purpose=purpose,
        ranks_at_fault=end.ranks_at_fault if end else [],
        seconds=time.monotonic() - start,
        stacks=end.log_tail if end else "",
    )
    if result.status is not Status.OK or end is None:
        return launch
    stack = {package: version for package, version in begin.software.items() if package != "suite"} | begin.policy
    stack |= {"cpu": begin.hardware["cpu"], "gpus": begin.hardware["gpus"]}
    times = _times(result.rows, planned.layout.ranks)
    return msgspec.structs.replace(
        launch,
        **_exact_figures(result.rows),
        **times,
        message=result.profile if times["predicted_seconds"] is None else "",
        points=0 if profile is None else product_points(profile),
        stages=pipeline_stages(planned.layout),
        timed=[
            max(step.seconds for step in of_ranks)
            for of_ranks in zip(*(rank.steps for rank in end.ranks), strict=True)
            if of_ranks[0].kind is StepKind.TIMED
        ],
        learns=planned.learns,
        stack=digest([stack, begin.job.steps, begin.job.seed, begin.corpus]),
        deterministic=begin.policy["deterministic"] == "True",
    )


def _exact_figures(rows: Sequence[Row]) -> dict[str, Any]:
    """Fields of a launch: how many exact figures are equal, and descriptions of the others, of the whole job first."""
    exact = [row for row in rows if row.quantity in EXACT]
    unequal = sorted((row for row in exact if row.verdict is Verdict.FAIL), key=lambda row: row.rank is not None)
    return {
        "exact": sum(row.verdict is Verdict.PASS for row in exact),
        "unequal": [f"{_figure_name(row)}: {row.right} measured, {row.left} predicted" for row in unequal],
    }


def _figure_name(row: Row) -> str:
    keys = (row.quantity, row.axis, row.operation, row.rank)
    return " ".join(str(key) for key in keys if key is not None)


def _times(rows: Sequence[Row], ranks: int) -> dict[str, Any]:
    """Fields of a launch: step seconds and their terms, measured and predicted, compute by rank, and CPU speed."""
    steps = [row for row in rows if row.quantity == Quantity.STEP_SECONDS]
    terms = [row for row in steps if row.rank is None and row.term]
    whole = next((row for row in steps if row.rank is None and row.term is None), None)
    predicted = None if whole is None else whole.left
    at_cpu_speed = next((row.left for row in rows if row.quantity == Quantity.STEP_SECONDS_AT_CPU_SPEED), None)
    kernels = [row for row in rows if row.quantity == Quantity.CPU_SLOWDOWN]
    compute = [0.0] * ranks
    for row in steps:
        if row.rank is not None and row.term in COMPUTE:
            compute[row.rank] += row.right or 0.0
    return {
        "step_seconds": None if whole is None else whole.right,
        "predicted_seconds": predicted,
        "measured_terms": {row.term: row.right for row in terms if row.right is not None},
        "predicted_terms": {row.term: row.left for row in terms if row.left is not None},
        "compute_seconds": compute,
        "cpu_slowdown": at_cpu_speed / predicted if at_cpu_speed and predicted else None,
        "cpu_slowdowns": {row.term: row.right for row in kernels if row.term and row.right},
    }


def pipeline_stages(layout: Layout) -> list[int]:
    """The pipeline stage of each rank; empty with a single stage."""
    if layout.pipeline_stages == 1:
        return []
    return [coordinates(layout, rank)["pp"] for rank in range(layout.ranks)]


def _request(name: str, device: str, ranks: int, results: Path, *, compiled: bool) -> Request:
    return Request(
        name=name,
        ranks=ranks,
        device=device,
        compiled=None if compiled else False,
        optimizations="none",  # a verdict about hardware: by operators that are PyTorch's own, and calibrated
        results=results,
    )


def predicted_step_seconds(
    name: str, device: str, ranks: int, results: Path, profile: Profile | None, *, compiled: bool
) -> float | None:
    """Seconds of a miniature's step by the machine profile; None without one, or where it lacks an operation."""
    planned = plan(_request(name, device, ranks, results, compiled=compiled))
    try:
        times = predicted_times(planned, profile)
    except InputError:
        return None
    return of_job(times, Quantity.STEP_SECONDS)


def is_tokenised(name: str, device: str, ranks: int, results: Path) -> bool:
    """Whether the miniature's corpus is in the cache; otherwise its first launch makes it."""
    planned = plan(_request(name, device, ranks, results, compiled=False))
    return standard_library_is_tokenised(planned.architecture.vocabulary)


def probe_result(
    device: str, ranks: int, effort: Effort, *, replays: bool, exchanges: bool, soak: bool, on_event: OnEvent
) -> ProbeResult:
    """A probe of all ranks: replays, exchanges and soak, those that are asked for.

    Raises:
        OutOfTimeError: the battery's limit or the phase's budget ended it; what it had reported is in `measured`.
    """
    start = time.monotonic()
    asked = [name for name, is_asked in (("replays", replays), ("exchanges", exchanges), ("soaks", soak)) if is_asked]
    events: list[list[Event]] = [[] for _ in range(ranks)]

    def kept(rank: int, event: Event) -> None:
        events[rank].append(event)
        on_event(rank, event)

    with scratch_directory() as scratch:
        job = _probe_job(device, ranks, effort, scratch, replays=replays, exchanges=exchanges, soak=soak)
        (Path(scratch) / "job.json").write_bytes(msgspec.json.encode(job))
        try:
            outcome = launch(job, store.new_identity(), kept)
        except OutOfTimeError as over:
            message = "ended before its end, for want of time"
            outcome = LaunchOutcome(
                status=Status.INTERRUPTED, message=message, ranks_at_fault=[], events=events, log_tail=""
            )
            over.measured.append(_probed(outcome, job, asked, time.monotonic() - start))
            raise
    return _probed(outcome, job, asked, time.monotonic() - start)


def _probed(outcome: LaunchOutcome, job: ProbeJob, asked: list[str], seconds: float) -> ProbeResult:
    """The evidence of the events of a probe, which may have ended early."""
    probe = ProbeResult(
        **copied_fields(outcome, ProbeResult),
        seconds=seconds,
        stacks=outcome.log_tail,
        soak_seconds=job.soak_seconds,
        asked=asked,
    )
    reports = [(rank, event) for rank, events in enumerate(outcome.events) for event in events]
    others_share, steal_share = others_shares([event.shared for _, event in reports if isinstance(event, Probed)])
    probe = msgspec.structs.replace(
        probe,
        others_share=others_share,
        steal_share=steal_share,
        replays=[
            ReplayHashes(rank=rank, **copied_fields(event, ReplayHashes))
            for rank, event in reports
            if isinstance(event, Replayed)
        ],
        exchanges=[
            Exchange(rank=rank, bytes_per_second=event.bytes / event.seconds, **copied_fields(event, Exchange))
            for rank, event in reports
            if isinstance(event, Exchanged)
        ],
        soaks=[
            SoakResult(rank=rank, **copied_fields(event, SoakResult))
            for rank, event in reports
            if isinstance(event, Soaked)
        ],
        loads=[
            PulsedLoad(rank=rank, **copied_fields(event, PulsedLoad))
            for rank, event in reports
            if isinstance(event, Loaded)
        ],
    )
    return msgspec.structs.replace(probe, finished=_finished(probe, job))


def _finished(probe: ProbeResult, job: ProbeJob) -> list[str]:
    """Parts of a probe that all ranks reported whole, however it ended."""
    messages = [exchange for exchange in probe.exchanges if exchange.peer is not None]
    of_all = [exchange for exchange in probe.exchanges if exchange.peer is None]
    counts = {
        "replays": (len(probe.replays), job.ranks * job.replays * job.replay_steps),
        "messages": (len(messages), job.ranks * (job.ranks - 1)),
        "all-to-all": (sum(one.operation == ALL_TO_ALL for one in of_all), job.ranks if job.ranks > 2 else 0),
        "soaks": (len(probe.soaks), job.ranks),
    }
    whole = [name for name, (reported, expected) in counts.items() if reported == expected]
    return [*whole, "exchanges"] if probe.status is Status.OK or probe.soaks else whole


def _probe_job(
    device: str, ranks: int, effort: Effort, scratch: str, *, replays: bool, exchanges: bool, soak: bool
) -> ProbeJob:
    small = miniature(reference_run(REPLAYED_RUN), device, ranks=1, steps=effort.replay_steps)
    return ProbeJob(
        directory=scratch,
        device=device,
        ranks=ranks,
        threads=max(1, usable_cores() // ranks),
        architecture=small.architecture,
        recipe=small.recipe,
        seed=SEED,
        replays=effort.replays if replays else 0,
        replay_steps=effort.replay_steps,
        samples=1,
        exchanges=effort.exchanges if exchanges else 0,
        exchange_seconds=effort.exchange_seconds,
        exchange_bytes=effort.exchange_bytes[device],
        soak_seconds=effort.soak_seconds[device] if soak else 0.0,
        soak_bytes=effort.soak_bytes if device == "cpu" and effort.soak_bytes else 0,
        product_seconds=effort.product_seconds[device] if soak else 0.0,
        product_size=effort.product_size,
        load_seconds=effort.load_seconds[device] if soak else 0.0,
        load_size=effort.load_size[device],
        load_bytes=effort.exchange_bytes[device] // 4,
        pulse_seconds=effort.pulse_seconds,
        collective_timeout_seconds=COLLECTIVE_TIMEOUT_SECONDS,
    )
