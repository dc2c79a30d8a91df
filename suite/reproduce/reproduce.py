"""One reproduction: the job of a plan is launched, recorded and compared with its prediction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import msgspec

from reference_runs.errors import InputError
from reference_runs.placement import coordinates
from suite.job.checkpoints import LaunchGoodput
from suite.job.corpus import Corpus
from suite.job.events import Event, Finished, Status, Step
from suite.job.launch_nodes import LaunchNode
from suite.job.training_job import Job
from suite.launch.launcher import LaunchOutcome, launch
from suite.launch.multi_host import HostAccess, Hosts
from suite.launch.network_namespaces import hosts as namespaces
from suite.machine.cpu_contention import others_shares
from suite.machine.cpu_speed import over_ranks
from suite.machine.devices import usable_cores
from suite.machine.fingerprint import hardware
from suite.machine.half_precision import kernels_for
from suite.machine.interpreter import OWN, Interpreter
from suite.machine.profile import Profile
from suite.metrics.comparison import Row, Verdict, overall
from suite.metrics.figures import Figure, Quantity, last_loss
from suite.predict.executed_run.between_nodes import payload_by_place, wire_bytes
from suite.predict.executed_run.figures import countable, expected_figures, judged, memory_options
from suite.predict.executed_run.pipeline_bubble import LaunchSurroundings, with_measured_bubble
from suite.predict.executed_run.routing import given_routing
from suite.predict.executed_run.stage_plan import StagePlan, stage_plan
from suite.records import store
from suite.records.record import SCHEMA, End, begin_record, rank_outcome
from suite.reproduce.checked_checkpoints import sole_use
from suite.reproduce.goodput import goodput_of
from suite.reproduce.measured_figures import counted_figures, with_places
from suite.reproduce.plan import Plan, job_for
from suite.reproduce.scheduled import scratch as scratch_directory
from suite.reproduce.sheet_shares import sheet_peaks, slice_shares
from suite.reproduce.step_time import (
    Residuals,
    at_cpu_speed,
    peaks_of,
    predicted_times,
    residuals,
    step_uncertainty,
    utilisation,
)
from suite.reproduce.store_times import predicted_times as store_times

LOSS_MUST_FALL_STEPS = 20
LOSS_MUST_FALL = 0.5


class LaunchResult(msgspec.Struct, frozen=True, kw_only=True):
    """One launch, its record and its comparison; no rows where it did not end well or had too few steps left.

    Args:
        loss_scales: of each step, where the precision needs one.
        skipped: numbers of the steps that an overflow skipped.
        profile: path of the machine profile, or why there is none.
        time: the step time and its prediction, where there is one.
        step_uncertainty: share of the predicted step time that measured ones differ by, see `step_uncertainty`.
        others_share, steal_share: see `End`.
        finished: what every rank counted.
        steps: of rank 0.
        figures: what was measured.
        goodput: of a launch with checkpoints.
        stages: of a pipeline, how layers were dealt and how they should be; None where that is not known.
        nodes: that a scheduler gave it.
    """

    run: str
    status: Status
    verdict: Verdict
    message: str
    record: str
    rows: list[Row]
    losses: list[float]
    loss_scales: list[float]
    skipped: list[int]
    arithmetic: str
    profile: str = ""
    time: Residuals | None = None
    step_uncertainty: float | None = None
    others_share: float | None = None
    steal_share: float | None = None
    finished: list[Finished] = []
    steps: list[Step] = []
    figures: list[Figure] = []
    stages: StagePlan | None = None
    nodes: list[LaunchNode] = []
    goodput: LaunchGoodput | None = None


class _Prediction(NamedTuple):
    """The prediction of step time before a launch.

    Args:
        figures: none where there is no profile, or it does not cover the run.
        source: the profile's path, or why there is no prediction.
        sample_seconds: to read and tokenise a sample's documents.
    """

    figures: list[Figure]
    profile: Profile | None
    source: str
    sample_seconds: float


class _Figures(NamedTuple):
    """Measured figures of a launch, the times that were predicted of it, and how uncertain its step is."""

    measured: list[Figure]
    times: list[Figure]
    step_uncertainty: float | None = None


def reproduce(
    plan: Plan,
    corpus: Corpus,
    results: Path,
    on_event: Callable[[int, Event], None],
    *,
    profile: Profile | None = None,
    profile_source: str = "",
    sample_seconds: float = 0.0,
    interpreter: Interpreter = OWN,
) -> LaunchResult:
    """Launch the plan once, keep its record below `results`, and compare it with the prediction.

    Step time is predicted before the launch; the prediction corrected for CPU speed is made after it.

    Args:
        profile: what this machine was measured to do; None where nothing valid is known.
        profile_source: its path, or why there is none.
        sample_seconds: to read and tokenise a sample's documents, where the plan's script does so.
        interpreter: of the ranks; on this machine alone.

    Raises:
        InputError: the results directory cannot be written.
        StoreFullError: the record could not be written.
    """
    directory = store.records_directory(results, plan.name)
    identity = store.new_identity()
    predicted = _predicted(plan, profile, profile_source, sample_seconds)
    with scratch_directory(results, shared=plan.scheduled is not None) as scratch:
        job = job_for(plan, corpus, scratch)
        (Path(scratch) / "job.json").write_bytes(msgspec.json.encode(job))
        record = store.Opened(directory, begin_record(job, corpus, identity, interpreter.software))
        outcome: LaunchOutcome | None = None
        try:
            with hosts_of(plan) as hosts, sole_use(plan.checkpoints, results):
                outcome = launch(job, identity, on_event, hosts=hosts, interpreter=interpreter)
            figures = _figures(plan, job, outcome, predicted)
            end = _end(identity, outcome, figures, predicted.source, job=job)
        except BaseException as error:
            record.close(_end(identity, outcome, _Figures([], []), "", job=job, error=error))
            raise
        record.close(end)
    return _result(plan, job, outcome, figures, end, str(record.path))


def _predicted(plan: Plan, profile: Profile | None, source: str, sample_seconds: float) -> _Prediction:
    if plan.model is not None:
        return _Prediction([*plan.expected], None, source, 0.0)
    try:
        return _Prediction(predicted_times(plan, profile, sample_seconds), profile, source, sample_seconds)
    except InputError as error:  # the run's own shapes or precision, which no calibration covers
        return _Prediction([], None, f"{source}: step time is not predicted: {error}", sample_seconds)


def _figures(plan: Plan, job: Job, outcome: LaunchOutcome, predicted: _Prediction) -> _Figures:
    """The counted figures, with shares of peaks and the CPU slowdown where there is a profile."""
    if not _was_counted(outcome):
        return _Figures([], [])
    steps = [[event for event in events if isinstance(event, Step)] for events in outcome.events]
    measured = countable(plan.averaging, counted_figures(job, outcome.finished, steps))
    if plan.scheduled is not None:
        measured = with_places(measured, job.layout, outcome)
    if steps[0] and steps[0][0].step:
        measured = [figure for figure in measured if figure.quantity is not Quantity.FIRST_LOSS]
    times, profile = predicted.figures, predicted.profile
    if job.synchronisation is not None:
        times = store_times(job, outcome.finished, steps)
    if profile is not None:
        measured += utilisation(measured, peaks_of(plan, profile))
        speed = over_ranks([report.cpu_speed for report in outcome.finished if report.cpu_speed is not None])
        if speed is not None:
            slower = at_cpu_speed(plan, profile, speed, measured, sample_seconds=predicted.sample_seconds)
            times, measured = times + slower.predicted, measured + slower.measured
    elif plan.device == "cuda" and plan.model is None and plan.scheduled is None and not plan.shares_devices:
        sheet = sheet_peaks(hardware()["gpus"], plan.recipe)
        if plan.slice is None:
            measured += utilisation(measured, sheet)
        else:
            stage = coordinates(plan.layout, plan.slice.rank)["pp"]
            measured += slice_shares(plan.workload, outcome.finished, sheet, rank_stage=stage)
    return _Figures(measured, times, None if profile is None else step_uncertainty(plan, profile))


def _result(plan: Plan, job: Job, outcome: LaunchOutcome, figures: _Figures, end: End, record: str) -> LaunchResult:
    """The launch and its verdict: the rows' own, and that of the loss where the recipe is ours to scale."""
    rows: list[Row] = []
    stages: StagePlan | None = None
    verdict, message = Verdict.FAIL, outcome.message
    steps = [event for event in outcome.events[0] if isinstance(event, Step)]
    losses = [step.loss for step in steps if step.step < job.steps]
    if job.synchronisation is not None and outcome.status is Status.OK:  # each worker has its own
        of_ranks = [[event.loss for event in events if isinstance(event, Step)] for events in outcome.events]
        losses = [fmean(at) for at in zip(*of_ranks, strict=True)]
    if outcome.status is Status.OK and not _was_counted(outcome):
        verdict = Verdict.SHOWN
        message = f"all {job.steps} steps are trained; too few were left to count and time one"
    elif outcome.status is Status.OK and job.model is not None:
        rows = judged([], figures.times, figures.measured)
        verdict = overall(rows)
    elif outcome.status is Status.OK:
        kernels = kernels_for(plan.recipe.precision, plan.device)
        expected = expected_figures(job, kernels=kernels, cores=usable_cores())
        options = memory_options(job.step_options(kernels), job.kernels)
        routed = [report.computed_rows for report in outcome.finished]
        taken = () if job.slice is None else job.slice.places
        expected = given_routing(job.workload, options, expected, routed, places=taken)
        passes = [report.pipeline_times for report in outcome.finished]
        stages = None if job.slice is not None else stage_plan(job.workload, passes)
        surroundings = LaunchSurroundings(usable_cores(), end.others_share, end.steal_share)
        if steps and steps[0].step:  # it went on from a checkpoint
            expected = [figure for figure in expected if figure.quantity is not Quantity.FIRST_LOSS]
        expected = with_measured_bubble(expected, job, passes, surroundings)
        if plan.scheduled is not None and outcome.nodes:
            places = (job.layout, outcome.nodes)
            expected = [*expected, *payload_by_place(expected, *places), *wire_bytes(expected, *places)]
        rows = judged(expected, figures.times, figures.measured)
        verdict = overall(rows)
        if plan.learns and not (steps and steps[0].step) and not loss_fell(losses):
            verdict = Verdict.FAIL
            change = f"{losses[0]:.3f} at first, {last_loss(losses):.3f} at last"
            message = f"the loss did not fall: {change}, at least {LOSS_MUST_FALL} less expected"
    return LaunchResult(
        run=plan.name,
        status=outcome.status,
        verdict=verdict,
        message=message,
        record=record,
        rows=rows,
        losses=losses,
        loss_scales=[step.loss_scale for step in steps if step.loss_scale is not None],
        skipped=[step.step for step in steps if step.skipped],
        arithmetic=outcome.finished[0].arithmetic if outcome.finished else "",
        profile=end.profile,
        time=residuals(rows),
        step_uncertainty=figures.step_uncertainty,
        others_share=end.others_share,
        steal_share=end.steal_share,
        finished=outcome.finished,
        steps=steps,
        figures=figures.measured,
        stages=stages,
        nodes=end.nodes,
        goodput=end.goodput,
    )


@contextmanager
def hosts_of(plan: Plan) -> Iterator[Hosts]:
    """The plan's hosts: those that it names, or namespaces that live as long as the launch."""
    if plan.scheduled is not None:
        yield plan.scheduled.hosts
    elif plan.host_names:
        yield Hosts(HostAccess.SSH, plan.host_names)
    elif plan.hosts > 1:
        with namespaces(plan.hosts) as names:
            yield Hosts(HostAccess.NAMESPACE, tuple(names))
    else:
        yield Hosts()


def _was_counted(outcome: LaunchOutcome) -> bool:
    """Whether the launch ended well, and enough steps were left to count and time one."""
    return outcome.status is Status.OK and all(report.counted for report in outcome.finished)


def loss_fell(losses: list[float]) -> bool:
    """Whether training learned: the last loss is below the first by 0.5 nats a token or more.

    Runs of fewer than 20 steps are not judged.
    """
    return len(losses) < LOSS_MUST_FALL_STEPS or last_loss(losses) <= losses[0] - LOSS_MUST_FALL


def _end(
    identity: str,
    outcome: LaunchOutcome | None,
    figures: _Figures,
    profile: str,
    *,
    job: Job,
    error: BaseException | None = None,
) -> End:
    """The end half of the record; with the `error` that ended the launcher itself."""
    status, message = (Status.CRASHED, "") if outcome is None else (outcome.status, outcome.message)
    if error is not None:
        status = Status.INTERRUPTED if isinstance(error, KeyboardInterrupt) else Status.CRASHED
        message = f"the launcher ended: {type(error).__name__}"
    reports = outcome.finished if outcome is not None and status is Status.OK else []
    others_share, steal_share = others_shares([report.shared for report in reports])
    goodput = None
    if reports and outcome is not None and outcome.began is not None:
        began, start = outcome.began, outcome.start_seconds
        goodput = goodput_of(job, outcome.events, outcome.restarts, began=began, start_seconds=start)
    return End(
        schema=SCHEMA,
        id=identity,
        status=status,
        message=message,
        ranks_at_fault=outcome.ranks_at_fault if outcome is not None and error is None else [],
        finished=time.time(),
        figures=figures.measured,
        ranks=[rank_outcome(n, events) for n, events in enumerate(outcome.events)] if outcome else [],
        log_tail=outcome.log_tail if outcome else "",
        predicted=figures.times,
        profile=profile,
        others_share=others_share,
        steal_share=steal_share,
        nodes=outcome.nodes if outcome else [],
        restarts=[] if outcome is None else outcome.restarts,
        goodput=goodput,
    )
