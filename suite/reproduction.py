"""One reproduction: the job of a plan is launched, recorded and compared with its prediction."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite import store
from suite.arithmetic import kernels_for
from suite.compare import Row, Verdict, overall
from suite.corpus import Corpus
from suite.devices import usable_cores
from suite.figures import Figure, Quantity, of_job
from suite.hosts import Hosts, Way
from suite.job import Averaging, Event, Failed, Finished, KernelChoice, Phase, Status, Step
from suite.judgement import countable, expected_figures, judged
from suite.launch import Outcome, launch
from suite.machine_profile import Profile
from suite.measured import counted_figures
from suite.measured_seconds import Measured
from suite.network_namespaces import hosts as namespaces
from suite.pace import AtPace, Pace, over_ranks, slowdown
from suite.plan import Plan, job_for
from suite.predict.executed_time_figures import time_figures
from suite.predict.in_step import beside_parts, nearest_trial
from suite.record import SCHEMA, End, RankOutcome, begin_record
from suite.residuals import Residuals, residuals
from suite.shared_processors import others_shares
from suite.taking_turns import TakingTurns
from suite.utilisation import Peak, peaks, utilisation

LOSS_MUST_FALL_STEPS = 20
LOSS_MUST_FALL = 0.5
PACE_REASON = "what fixed work takes, over what it took in the calibration (docs/step_time.md); not judged"
AT_PACE_REASON = "the calibrated machine with its processors at that pace; not judged"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One launch, its record and its comparison; no rows where it did not end well.

    Args:
        loss_scales: of each step, where the precision needs one.
        skipped: numbers of the steps that an overflow skipped.
        profile: path of the machine profile, or why there is none.
        time: the step time beside its prediction, where there is one.
        others_share, steal_share: see `End`.
        finished: what every rank counted.
        steps: of rank 0.
        figures: what was measured.
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
    others_share: float | None = None
    steal_share: float | None = None
    finished: list[Finished] = []
    steps: list[Step] = []
    figures: list[Figure] = []


def reproduce(
    plan: Plan,
    corpus: Corpus,
    results: Path,
    on_event: Callable[[int, Event], None],
    *,
    profile: Profile | None = None,
    profile_source: str = "",
    sample_seconds: float = 0.0,
) -> Result:
    """Launch the plan once, keep its record below `results`, and compare it with the prediction.

    Step time is predicted before anything is launched; only at the pace that the processors had, behind it.

    Args:
        profile: what this machine was measured to do; None where nothing valid is known.
        profile_source: its path, or why there is none.
        sample_seconds: to read and tokenise a sample's documents, where the plan's script does so.

    Raises:
        InputError: the results directory cannot be written.
        StoreFullError: the record could not be written.
    """
    directory = store.records_directory(results, plan.name)
    identity = store.new_identity()
    times: list[Figure] = []
    unpredicted = ""
    try:
        times, _ = with_time(plan, profile, [], sample_seconds=sample_seconds)
    except InputError as error:  # the run's own shapes or precision, which no calibration covers
        unpredicted = f": step time is not predicted: {error}"
    with tempfile.TemporaryDirectory(prefix="suite-", ignore_cleanup_errors=True) as scratch:
        job = job_for(plan, corpus, scratch)
        (Path(scratch) / "job.json").write_bytes(msgspec.json.encode(job))
        opened = store.Opened(directory, begin_record(job, corpus, identity))
        outcome: Outcome | None = None
        try:
            with hosts_of(plan) as where:
                outcome = launch(job, identity, on_event, hosts=where)
            figures: list[Figure] = []
            if outcome.status is Status.OK:
                steps = [[e for e in events if isinstance(e, Step)] for events in outcome.events]
                figures = countable(plan.averaging, counted_figures(job, outcome.finished, steps))
                if profile is not None and not unpredicted:
                    figures += utilisation(figures, _peaks(plan, profile))
                    pace = over_ranks([report.pace for report in outcome.finished if report.pace is not None])
                    if pace is not None:
                        at_pace = with_pace(plan, profile, pace, figures, sample_seconds=sample_seconds)
                        times, figures = times + at_pace[0], figures + at_pace[1]
                profile_source += unpredicted
            else:
                times = []
            ended_well = outcome.finished if outcome.status is Status.OK else []
            others_share, steal_share = others_shares([report.shared for report in ended_well])
            end = msgspec.structs.replace(
                _end(identity, outcome.status, outcome.message, outcome.ranks_at_fault, figures, outcome=outcome),
                predicted=times,
                profile=profile_source,
                others_share=others_share,
                steal_share=steal_share,
            )
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            status = Status.INTERRUPTED if interrupted else Status.CRASHED
            message = f"the launcher ended: {type(error).__name__}"
            opened.close(_end(identity, status, message, [], [], outcome=outcome))
            raise
        opened.close(end)
    rows: list[Row] = []
    if outcome.status is Status.OK:
        kernels = kernels_for(plan.recipe.precision, plan.device)
        rows = judged(expected_figures(job, kernels=kernels, cores=usable_cores()), times, figures)
    ran = [event for event in outcome.events[0] if isinstance(event, Step)]
    losses = [step.loss for step in ran]
    verdict, message = overall(rows), outcome.message
    if outcome.status is Status.OK and plan.learns and not loss_fell(losses):
        verdict = Verdict.FAIL
        message = (
            f"the loss did not fall: {losses[0]:.3f} at first, {last_loss(losses):.3f} at last, "
            f"at least {LOSS_MUST_FALL} less expected"
        )
    return Result(
        run=plan.name,
        status=outcome.status,
        verdict=verdict if outcome.status is Status.OK else Verdict.FAIL,
        message=message,
        record=str(opened.path),
        rows=rows,
        losses=losses,
        loss_scales=[step.loss_scale for step in ran if step.loss_scale is not None],
        skipped=[step.step for step in ran if step.skipped],
        arithmetic=outcome.finished[0].arithmetic if outcome.finished else "",
        profile=profile_source,
        time=residuals(rows),
        others_share=others_share,
        steal_share=steal_share,
        finished=outcome.finished,
        steps=ran,
        figures=figures,
    )


@contextmanager
def hosts_of(plan: Plan) -> Iterator[Hosts]:
    """The plan's hosts: those that it names, or namespaces that live as long as the launch."""
    if plan.host_names:
        yield Hosts(Way.SSH, plan.host_names)
    elif plan.hosts > 1:
        with namespaces(plan.hosts) as names:
            yield Hosts(Way.NAMESPACE, tuple(names))
    else:
        yield Hosts()


def with_time(
    plan: Plan, profile: Profile | None, measured: list[Figure], *, sample_seconds: float = 0.0
) -> tuple[list[Figure], list[Figure]]:
    """Predicted step time with its terms and rates, and the measured figures with their shares of peaks.

    Without a profile nothing is predicted.

    Raises:
        InputError: the profile lacks an operation, or has no times of the kernels.
    """
    if profile is None:
        return [], measured
    if plan.kernels is not KernelChoice.TORCH:
        raise InputError("kernels without a measured time", got=plan.kernels, allowed="torch", where="--kernels")
    if plan.averaging is not Averaging.EXACT:
        where = "--optimizer, --gradient-compression"
        raise InputError("averaging without a measured time", got=plan.averaging, allowed="exact", where=where)
    times = _time_figures(plan, profile, factor=in_step_factor(plan, profile), sample_seconds=sample_seconds)
    shares_of = _peaks(plan, profile)
    return times + utilisation(times, shares_of), measured + utilisation(measured, shares_of)


def _peaks(plan: Plan, profile: Profile) -> list[Peak]:
    return peaks(profile, plan.recipe.precision, ranks=plan.layout.ranks, cores=_cores(plan))


def _cores(plan: Plan) -> int:
    """That the ranks have together: hosts that ssh enters have their own, as many as this one."""
    return usable_cores() * max(1, len(plan.host_names))


def with_pace(
    plan: Plan, profile: Profile, pace: Pace, measured: list[Figure], *, sample_seconds: float = 0.0
) -> tuple[list[Figure], list[Figure]]:
    """The processors' pace against the calibration's, and the step predicted at that pace beside the measured one.

    Nothing where the profile has no pace, or the step is not predicted.

    Args:
        pace: of the processors while the steps in `measured` were timed.
    """
    calibrated = profile.pace(ranks=plan.layout.ranks)
    if calibrated is None:
        return [], []
    slower = slowdown(pace, calibrated)
    factor = in_step_factor(plan, profile)  # steps and parts were as slow as each other when it was measured
    at_pace = _time_figures(plan, AtPace(profile, slower), factor=factor, sample_seconds=sample_seconds)
    expected, took = of_job(at_pace, Quantity.STEP_SECONDS), of_job(measured, Quantity.STEP_SECONDS)
    if expected is None or took is None:
        return [], []
    kinds = msgspec.structs.asdict(slower)
    return [
        *(Figure(quantity=Quantity.PACE, term=kind, value=1.0, why=PACE_REASON) for kind in kinds),
        Figure(quantity=Quantity.STEP_SECONDS_AT_PACE, value=expected, why=AT_PACE_REASON),
    ], [
        *(Figure(quantity=Quantity.PACE, term=kind, value=value) for kind, value in kinds.items()),
        Figure(quantity=Quantity.STEP_SECONDS_AT_PACE, value=took),
    ]


def in_step_factor(plan: Plan, profile: Profile) -> float:
    """How many times as long the plan's step takes as its parts: as the nearest trial step; 1 where none was timed.

    Raises:
        InputError: the profile lacks an operation.
    """
    timed = nearest_trial(profile.trials, ranks=min(plan.layout.ranks, _cores(plan)), compiled=plan.compiled)
    if timed is None:
        return 1.0
    return beside_parts(profile, timed, kernels=kernels_for(timed.trial.recipe.precision, plan.device)).factor


def _time_figures(plan: Plan, measured: Measured, *, factor: float, sample_seconds: float) -> list[Figure]:
    if plan.device == "cpu":
        measured = TakingTurns(measured, cores=_cores(plan))
    return time_figures(
        measured,
        plan.architecture,
        plan.recipe,
        plan.layout,
        kernels=kernels_for(plan.recipe.precision, plan.device),
        compiled=plan.compiled,
        script=plan.script,
        sample_seconds=sample_seconds,
        cores=usable_cores(),
        in_step_factor=factor,
    )


def loss_fell(losses: list[float]) -> bool:
    """Whether training learned: the last loss is below the first by 0.5 nats a token or more.

    Runs of fewer than 20 steps are not judged.
    """
    return len(losses) < LOSS_MUST_FALL_STEPS or last_loss(losses) <= losses[0] - LOSS_MUST_FALL


def last_loss(losses: list[float]) -> float:
    """Mean loss of the last 3 steps."""
    return sum(losses[-3:]) / len(losses[-3:])


def _end(
    identity: str,
    status: Status,
    message: str,
    faulty: list[int],
    figures: list[Figure],
    *,
    outcome: Outcome | None = None,
) -> End:
    ranks = [] if outcome is None else [_rank_outcome(n, events) for n, events in enumerate(outcome.events)]
    return End(
        schema=SCHEMA,
        id=identity,
        status=status,
        message=message,
        ranks_at_fault=faulty,
        finished=time.time(),
        figures=figures,
        ranks=ranks,
        log_tail=outcome.log_tail if outcome else "",
    )


def _rank_outcome(rank: int, events: list[Event]) -> RankOutcome:
    finished = next((event for event in events if isinstance(event, Finished)), None)
    failed = next((event for event in events if isinstance(event, Failed)), None)
    steps = [event for event in events if isinstance(event, Step)]
    phases = [event.name for event in events if isinstance(event, Phase)]
    last = f"step {steps[-1].step} done" if steps else (phases[-1] if phases else "not started")
    return RankOutcome(
        rank=rank,
        steps=steps,
        last="finished" if finished else last,
        environment=finished.environment if finished else {},
        arithmetic=finished.arithmetic if finished else "",
        failure=failed.traceback if failed else "",
        resident_bytes=finished.resident_bytes if finished else None,
        reserved_bytes=finished.reserved_bytes if finished else None,
        synchronisations=finished.synchronisations if finished else None,
    )
