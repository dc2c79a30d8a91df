"""What the battery runs: micro-measurements, launches of miniatures, probes; each returns its evidence."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from reference_runs.accelerator import accelerator
from reference_runs.catalog import reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.miniature import miniature
from reference_runs.placement import coordinates
from suite.acceptance.battery_record import digest
from suite.acceptance.evidence import Exchange, Launched, Micro, Probing, Replay, Soaking
from suite.acceptance.presets import Effort
from suite.calibration.calibrate import CalibrationRequest, calibrate, planned_calibration
from suite.calibration.plan import TABLE, Planned
from suite.job.calibration_job import TimedTask
from suite.job.events import Event, Status, StepKind
from suite.job.probe_job import Exchanged, Probed, ProbeJob, Replayed, Soaked
from suite.launch.launcher import launch
from suite.machine.cpu_contention import others_shares
from suite.machine.devices import usable_cores
from suite.machine.profile import Profile
from suite.machine.timing_tables import Subject
from suite.machine.timings import median
from suite.metrics.comparison import Verdict as RowVerdict
from suite.metrics.figures import EXACT, Quantity, StepTerm, of_job
from suite.predict.machine_model.from_profile import known_accelerator
from suite.records import store
from suite.reproduce.plan import Request, corpus_for, plan
from suite.reproduce.reproduce import reproduce
from suite.reproduce.step_time import predicted_times

COLLECTIVE_TIMEOUT_SECONDS = 300.0
SEED = 20261122
PROBED = "bloom-176b"  # the run whose miniature the replays train
COMPUTE = (StepTerm.FORWARD, StepTerm.BACKWARD, StepTerm.OPTIMIZER)
OnEvent = Callable[[int, Event], None]


def micro(device: str, ranks: int, effort: Effort, results: Path, on_event: OnEvent) -> tuple[Micro, Profile | None]:
    """This node's micro-measurements, and the machine profile that they make; it is stored below `results`."""
    start = time.monotonic()
    request = CalibrationRequest(results=results, ranks=ranks, device=device)
    planned = planned_calibration(request, effort.densities[device])
    points: dict[tuple[int, int], list[TimedTask]] = {}

    def collect(rank: int, event: Event) -> None:
        if isinstance(event, TimedTask):
            points.setdefault((rank, event.task), []).append(event)
        on_event(rank, event)

    result = calibrate(planned, collect)
    seconds = time.monotonic() - start
    if result.profile is None:
        failed = Micro(
            status=result.status,
            message=result.message,
            seconds=seconds,
            ranks_at_fault=result.ranks_at_fault,
            stacks=result.log_tail,
        )
        return failed, None
    profile = result.profile
    matrix, copy, triad = part_rates(planned.planned, points, ranks)
    peak, source = _peak(profile, ranks)
    evidence = Micro(
        status=Status.OK,
        message="",
        seconds=seconds,
        matrix=matrix,
        copy=copy,
        triad=triad,
        host_device=_host_device(profile),
        peak=peak,
        peak_source=source,
        profile=result.path,
        points=product_points(profile),
        others_share=profile.conditions.others_share,
        steal_share=profile.conditions.steal_share,
    )
    return evidence, profile


def part_rates(
    planned: Sequence[Planned], points: Mapping[tuple[int, int], list[TimedTask]], ranks: int
) -> tuple[list[float], list[float], list[float]]:
    """What each rank reached while all measured: flop a second of 16-bit products, bytes a second of copies and triads.

    Of products the large square ones where they were timed, on a GPU; otherwise the best of the miniatures' shapes.

    Args:
        points: by rank and number of the task, its rounds.
    """
    matrix, squares, copy, triad = ([0.0] * ranks for _ in range(4))
    for (rank, number), events in points.items():
        task = planned[number]
        subject = task.task.subject
        if subject.ranks != ranks:
            continue
        if subject.operation == "square_product":
            flop = (size for (size,) in task.task.sizes)
            squares[rank] = max(size / _seconds(events, place) for place, size in enumerate(flop))
        if task.kind != TABLE:
            continue
        if subject.operation == "product" and subject.dtype == "bf16":
            matrix[rank] = max(matrix[rank], *_product_rates(task, events))
        if subject.operation in ("copy", "triad"):
            rates = copy if subject.operation == "copy" else triad
            rates[rank] = task.task.sizes[-1][0] / _seconds(events, -1)
    return squares if all(squares) else matrix, copy, triad


def _product_rates(planned: Planned, events: list[TimedTask]) -> list[float]:
    """Flop a second of every point of a table."""
    return [2.0 * m * n * k / _seconds(events, place) for place, (m, n, k) in enumerate(planned.task.sizes)]


def _seconds(events: list[TimedTask], place: int) -> float:
    """The median of a point's repetitions in all rounds: what a part can do, without the slow phases of the machine."""
    return median(seconds for event in events for seconds in event.points[place].seconds)


def product_points(profile: Profile) -> int:
    """Shapes in which 16-bit products were timed on all ranks at once: more find a faster one, and predict closer."""
    return sum(
        len(table.timings)
        for table in profile.tables
        if (table.subject.operation, table.subject.dtype) == ("product", "bf16")
        and table.subject.ranks == profile.conditions.ranks
    )


def _host_device(profile: Profile) -> dict[str, float]:
    found = {}
    for operation in ("host_to_device", "device_to_host"):
        try:
            line = profile.line(Subject(operation=operation, ranks=profile.conditions.ranks))
        except InputError:
            continue
        found[operation.replace("_", " ")] = line.sizes[-1] / line.timings[-1].median
    return found


def _peak(profile: Profile, ranks: int) -> tuple[float | None, str]:
    """Dense peak of one rank, and where it is from."""
    try:
        known = known_accelerator(profile) if profile.fingerprint.device == "cuda" else accelerator("this-cpu")
    except InputError:
        return None, ""
    if known is None:
        return None, ""
    peaks = known.peak_flop_per_second
    dtype = "bf16" if "bf16" in peaks else "fp32"
    share = ranks if profile.fingerprint.device == "cpu" else 1
    where = f"1/{ranks} of this CPU's {dtype} peak, {peaks[dtype] / 1e9:,.0f} Gflop/s by its clock and vector width"
    if profile.fingerprint.device == "cuda":
        where = f"data sheet of {known.title}, {dtype} dense"
    return peaks[dtype] / share, where


def launched(
    name: str,
    purpose: str,
    *,
    device: str,
    ranks: int,
    steps: int,
    results: Path,
    profile: Profile | None,
    on_event: OnEvent,
) -> Launched:
    """One launch of a miniature, with its record."""
    start = time.monotonic()
    planned = plan(Request(name=name, ranks=ranks, device=device, steps=steps, results=results))
    corpus = corpus_for(planned, None)
    result = reproduce(planned, corpus, results, on_event, profile=profile, profile_source="measured by this battery")
    end = store.read(Path(result.record))
    evidence = Launched(
        run=name,
        purpose=purpose,
        status=result.status,
        message=result.message,
        ranks_at_fault=end.end.ranks_at_fault if end.end else [],
        record=result.record,
        seconds=time.monotonic() - start,
        stacks=end.end.log_tail if end.end else "",
    )
    if result.status is not Status.OK or end.end is None:
        return evidence
    begin = end.begin
    stack = {name: version for name, version in begin.software.items() if name != "suite"} | begin.policy
    stack |= {"cpu": begin.hardware["cpu"], "gpus": begin.hardware["gpus"]}
    exact = [row for row in result.rows if row.quantity in {quantity.value for quantity in EXACT}]
    exact.sort(
        key=lambda row: row.rank is not None
    )  # of the whole job first: what differs is said of it, then of ranks
    whole = next((row for row in result.rows if _is_step(row.quantity, row.rank) and row.term is None), None)
    at_pace = next((row.left for row in result.rows if row.quantity == Quantity.STEP_SECONDS_AT_PACE), None)
    terms = [row for row in result.rows if _is_step(row.quantity, row.rank) and row.term is not None]
    return msgspec.structs.replace(
        evidence,
        message=result.profile if whole is None or whole.left is None else "",
        exact=sum(row.verdict is RowVerdict.PASS for row in exact),
        unequal=[
            f"{' '.join(str(part) for part in (row.quantity, row.axis, row.operation, row.rank) if part is not None)}: "
            f"{row.right} measured, {row.left} predicted"
            for row in exact
            if row.verdict is RowVerdict.FAIL
        ],
        step_seconds=None if whole is None else whole.right,
        predicted_seconds=None if whole is None else whole.left,
        points=0 if profile is None else product_points(profile),
        pace=at_pace / whole.left if at_pace and whole is not None and whole.left else None,
        paces={row.term: row.right for row in result.rows if row.quantity == Quantity.PACE and row.term and row.right},
        measured_terms={row.term: row.right for row in terms if row.term and row.right is not None},
        predicted_terms={row.term: row.left for row in terms if row.term and row.left is not None},
        compute_seconds=[
            math.fsum(
                row.right or 0.0
                for row in result.rows
                if row.quantity == Quantity.STEP_SECONDS and row.rank == rank and row.term in COMPUTE
            )
            for rank in range(planned.layout.ranks)
        ],
        stages=stages_of(planned.layout),
        timed=[
            max(step.seconds for step in of_ranks)
            for of_ranks in zip(*(rank.steps for rank in end.end.ranks), strict=True)
            if of_ranks[0].kind is StepKind.TIMED
        ],
        losses=result.losses,
        learns=planned.learns,
        stack=digest([stack, begin.job.steps, begin.job.seed, begin.corpus]),
        deterministic=begin.policy["deterministic"] == "True",
        others_share=result.others_share,
        steal_share=result.steal_share,
    )


def stages_of(layout: Layout) -> list[int]:
    """The pipeline stage of each rank; empty where there is one alone."""
    if layout.pipeline_stages == 1:
        return []
    return [coordinates(layout, rank)["pp"] for rank in range(layout.ranks)]


def predicted_step_seconds(name: str, device: str, ranks: int, results: Path, profile: Profile | None) -> float | None:
    """Seconds of a miniature's step by the machine profile; None where it has no such operations, or there is none."""
    planned = plan(Request(name=name, ranks=ranks, device=device, results=results))
    try:
        times = predicted_times(planned, profile)
    except InputError:
        return None
    return of_job(times, Quantity.STEP_SECONDS)


def _is_step(quantity: str, rank: int | None) -> bool:
    return quantity == Quantity.STEP_SECONDS and rank is None


def probed(
    device: str,
    ranks: int,
    effort: Effort,
    *,
    replays: bool,
    exchanges: bool,
    soak: bool,
    on_event: OnEvent,
) -> Probing:
    """One probe of all ranks: replays, exchanges and soak, as far as asked for."""
    start = time.monotonic()
    small = miniature(reference_run(PROBED), device, ranks=1, steps=effort.replay_steps)
    seconds = effort.soak_seconds if soak else 0.0
    with tempfile.TemporaryDirectory(prefix="suite-", ignore_cleanup_errors=True) as scratch:
        job = ProbeJob(
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
            soak_seconds=seconds,
            soak_bytes=effort.soak_bytes if device == "cpu" and effort.soak_bytes else 0,
            collective_timeout_seconds=COLLECTIVE_TIMEOUT_SECONDS,
        )
        (Path(scratch) / "job.json").write_bytes(msgspec.json.encode(job))
        outcome = launch(job, store.new_identity(), on_event)
    evidence = Probing(
        status=outcome.status,
        message=outcome.message,
        ranks_at_fault=outcome.ranks_at_fault,
        seconds=time.monotonic() - start,
        stacks=outcome.log_tail,
        soak_seconds=seconds,
    )
    if outcome.status is not Status.OK:
        return evidence
    told = [(rank, event) for rank, events in enumerate(outcome.events) for event in events]
    others_share, steal_share = others_shares([one.shared for _, one in told if isinstance(one, Probed)])
    return msgspec.structs.replace(
        evidence,
        others_share=others_share,
        steal_share=steal_share,
        replays=[
            Replay(
                rank=rank,
                replay=one.replay,
                step=one.step,
                loss=one.loss,
                gradients=one.gradients,
                parameters=one.parameters,
            )
            for rank, one in told
            if isinstance(one, Replayed)
        ],
        exchanges=[
            Exchange(
                rank=rank,
                peer=one.peer,
                bytes_per_second=one.bytes / one.seconds,
                wrong=one.wrong,
                first=one.first,
                bytes=one.bytes,
            )
            for rank, one in told
            if isinstance(one, Exchanged)
        ],
        soaks=[
            Soaking(rank=rank, bytes=one.bytes, passes=one.passes, wrong=one.wrong, first=one.first)
            for rank, one in told
            if isinstance(one, Soaked)
        ],
    )
