"""Measurement of the launches of one rung, and its prediction."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from reference_runs.errors import InputError
from suite.job.corpus import Corpus
from suite.job.events import Status, StepKind
from suite.machine.devices import usable_cores
from suite.machine.half_precision import kernels_for
from suite.machine.profile import Profile
from suite.metrics.figures import Figure, Quantity, StepTerm, of_job
from suite.predict.executed_run.figures import expected_figures
from suite.predict.simulation.step_memory import executed_peaks
from suite.reproduce.plan import Plan, job_for
from suite.reproduce.reproduce import LaunchResult
from suite.reproduce.step_time import predicted_times


class RungPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """Prediction of a rung, by arithmetic.

    Args:
        phase: of the step, in which the peak of rank 0 lies.
        step_seconds, terms: None and empty where the time is not predicted, for the reason in `seconds_unknown`.
    """

    peak_bytes: float | None
    phase: str
    step_seconds: float | None
    terms: dict[str, float]
    seconds_unknown: str = ""


class RungMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """Measurement of a rung's launches; of several the median, and the largest memory.

    Args:
        step_seconds: of the median launch's median step; `spread_seconds` half of what lies between the fastest and the
            slowest timed step of a launch, without the quarter at either end: the median of the launches.
        terms: of a launch, mean over ranks.
        peak_bytes: that is judged: of the rank with most, but of the median one where gloo's messages are in it (see
            `_judged_peak`); largest_peak_bytes, reserved_bytes, resident_bytes: of the rank with most.
        launch_seconds: the median step of each launch.
        cpu_slowdown: how many times as long the step should take at the processors' speed as at the calibration's: the
            median over launches; None where it is not known.
        losses: of every step; all launches of a seed have the same ones, or `repeats_differ`.
    """

    launches: int
    tokens: int
    step_seconds: float
    spread_seconds: float
    terms: dict[str, float]
    peak_bytes: int
    largest_peak_bytes: int
    reserved_bytes: int | None
    resident_bytes: int | None
    model_flop_per_second: float
    synchronisations: int | None
    losses: list[float]
    records: list[str]
    repeats_differ: bool = False
    cpu_slowdown: float | None = None
    launch_seconds: list[float] = []

    @property
    def token_seconds(self) -> float:
        """Seconds of a step over its tokens."""
        return self.step_seconds / self.tokens


def expected(
    plan: Plan, corpus: Corpus, profile: Profile | None, *, why_none: str, sample_seconds: float
) -> RungPrediction:
    """Prediction of a plan; its time where a machine profile holds and covers it, and `why_none` is empty."""
    job = job_for(plan, corpus, "")
    kernels = kernels_for(plan.recipe.precision, plan.device)
    peak = of_job(expected_figures(job, kernels=kernels, cores=usable_cores()), Quantity.PEAK_BYTES)
    phase = "" if peak is None else _phase(plan)
    if why_none:
        return RungPrediction(peak_bytes=peak, phase=phase, step_seconds=None, terms={}, seconds_unknown=why_none)
    try:
        times = predicted_times(plan, profile, sample_seconds)
    except InputError as error:  # the run's own shapes, precision or kernels, which no calibration covers
        return RungPrediction(peak_bytes=peak, phase=phase, step_seconds=None, terms={}, seconds_unknown=str(error))
    seconds = of_job(times, Quantity.STEP_SECONDS)
    return RungPrediction(peak_bytes=peak, phase=phase, step_seconds=seconds, terms=_terms(times))


def _phase(plan: Plan) -> str:
    peaks = executed_peaks(plan.workload, plan.step_options, stage=0, replica=0)
    return max(peaks, key=lambda phase: sum(peaks[phase].values()))


def measured(plan: Plan, results: Sequence[LaunchResult]) -> RungMeasurement:
    """Measurement of launches that all ended well."""
    assert results
    assert all(result.status is Status.OK for result in results)
    medians = [of_job(result.figures, Quantity.STEP_SECONDS) or 0.0 for result in results]
    step = statistics.median(medians)
    nearest = min(range(len(medians)), key=lambda index: abs(medians[index] - step))
    finished = [report for result in results for report in result.finished]
    waits = [report.synchronisations for report in results[0].finished if report.synchronisations is not None]
    return RungMeasurement(
        launches=len(results),
        tokens=plan.recipe.global_batch * plan.architecture.sequence,
        step_seconds=step,
        spread_seconds=statistics.median(map(_spread, results)),
        terms=_terms(results[nearest].figures),
        peak_bytes=_judged_peak(plan, [report.peak_bytes for report in finished]),
        largest_peak_bytes=max(report.peak_bytes for report in finished),
        reserved_bytes=max((r.reserved_bytes for r in finished if r.reserved_bytes is not None), default=None),
        resident_bytes=max((r.resident_bytes for r in finished if r.resident_bytes is not None), default=None),
        model_flop_per_second=of_job(results[nearest].figures, Quantity.MODEL_FLOP_PER_SECOND) or 0.0,
        synchronisations=max(waits, default=None),
        losses=results[0].losses,
        records=[result.record for result in results],
        cpu_slowdown=_cpu_slowdown(results),
        launch_seconds=medians,
        repeats_differ=any(result.losses != results[0].losses for result in results),
    )


def _judged_peak(plan: Plan, peaks: Sequence[int]) -> int:
    """The largest of all ranks and launches; the median one where state is sharded over a CPU's ranks.

    gloo's threads free some of a rank's gathered units where the profiler does not see it, so that they stay counted:
    one fsdp-4 rank of four measured 23 % more than the others, which do the same (2 cores of an AMD EPYC, 2026-11-22).
    """
    return statistics.median_low(peaks) if plan.device == "cpu" and plan.layout.fully_sharded else max(peaks)


def _spread(result: LaunchResult) -> float:
    steps = sorted(step.seconds for step in result.steps if step.kind is StepKind.TIMED)
    quarter = len(steps) // 4
    return (steps[-1 - quarter] - steps[quarter]) / 2


def _cpu_slowdown(results: Sequence[LaunchResult]) -> float | None:
    slowdowns: list[float] = []
    for result in results:
        rows = {row.quantity: row.left for row in result.rows if row.rank is None and row.term is None}
        usual, at_speed = rows.get(Quantity.STEP_SECONDS), rows.get(Quantity.STEP_SECONDS_AT_CPU_SPEED)
        if usual and at_speed:
            slowdowns.append(at_speed / usual)
    return statistics.median(slowdowns) if slowdowns else None


def _terms(figures: Sequence[Figure]) -> dict[str, float]:
    seconds = {f.term: f.value for f in figures if f.quantity is Quantity.STEP_SECONDS and f.rank is None}
    return {term.value: seconds[term.value] for term in StepTerm if term.value in seconds}
