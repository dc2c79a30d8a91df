"""The diagnosis of one measured run: what it took, what was to be expected, whether it was counted rightly, and why."""

from __future__ import annotations

import math
import statistics
from enum import StrEnum

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.run import Workload
from reference_runs.training_logs.facts import Sign
from reference_runs.training_logs.options import framework_of_stack, option_of
from reference_runs.training_logs.training_log import PrintedStep, TrainingLog
from suite.predict.analytic.step_time import StepTime
from suite.predict.diagnosis.causes import ExpectedStep, SlowCause, candidates, seen_causes
from suite.predict.diagnosis.counting import CountedRate, Printed, counted, counted_by_log
from suite.predict.diagnosis.pace import Pace
from suite.predict.plan.changes import helpful_changes
from suite.predict.plan.plan import question_of
from suite.predict.plan.predicted_run import Predicted
from suite.predict.plan.search import Found
from suite.predict.recorded_run.sweep import layout_figures

MOST_CAUSES = 3
OTHER_WORK = 1.5  # times the model's flop: what prints more, or so much less, runs something else
LEAST_SAVED = 0.05  # of a step
# An interval of 80 % is widened to 95 %, as that of a log-normal error: who is called slow should be slow
_WIDER = statistics.NormalDist().inv_cdf(0.975) / statistics.NormalDist().inv_cdf(0.9)


class RunOutcome(StrEnum):
    """Verdict on a measured step."""

    EXPECTED = "as expected"
    SLOW = "slow"
    FAST = "faster than expected"
    IMPLAUSIBLE = "implausible"
    COUNTED_WRONGLY = "counted wrongly"
    NOT_PREDICTED = "not predicted"


class Saving(msgspec.Struct, frozen=True):
    """A single change of the layout that the prediction says saves time, and that fits.

    Args:
        share: of the predicted time of the same tokens.
        more_bytes: on the fullest rank.
        option: what the framework of the log calls it; None: not known.
    """

    words: str
    share: float
    more_bytes: float
    option: str | None = None


class MeasuredTerm(msgspec.Struct, frozen=True):
    """Seconds of a step that a trace shows, and those that are predicted; None: nothing is predicted."""

    name: str
    seconds: float
    predicted_seconds: float | None


class RunDiagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All that is found of a measured run.

    Args:
        interval: least and most seconds that are to be expected of the step, 95 of 100.
        flop_per_second: of one accelerator, every product of the model counted once; None: not predicted.
        mfu: that over the dense peak.
        terms: of the predicted step, the longest first: seconds by name.
    """

    outcome: RunOutcome
    pace: Pace
    counted: list[CountedRate]
    causes: list[SlowCause]
    notes: list[str]
    predicted_seconds: float | None = None
    interval: tuple[float, float] | None = None
    tokens_per_second: float | None = None
    flop_per_second: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    terms: dict[str, float] = {}
    measured: list[MeasuredTerm] = []
    helpful: list[Saving] = []


def printed_rates(log: TrainingLog) -> Printed:
    """Medians of the rates that the log prints."""

    def median(field: str) -> float | None:
        values = [value for step in log.steps[len(log.steps) // 4 :] if (value := getattr(step, field)) is not None]
        return statistics.median(values) if values else None

    whole = median("tokens_per_second")
    last: PrintedStep | None = log.steps[-1] if log.steps else None
    if whole is None and last is not None:
        whole = last.printed_tokens_per_second
    return Printed(median("flop_per_second"), median("mfu"), median("device_tokens_per_second"), whole)


def diagnosis(
    log: TrainingLog | None, pace: Pace, printed: Printed, predicted: Predicted | None, *, states_layout: bool
) -> RunDiagnosis:
    """The diagnosis of a run.

    Args:
        log: None where numbers were given in its place.
        predicted: the run as it should be; None: it is not known.
        states_layout: whether its layout was given, and not searched.
    """
    seen = sorted(seen_causes(log, pace), key=lambda cause: -(cause.seconds or 0.0)) if log else []
    by_log, notes = (counted_by_log(log), list(log.notes)) if log else ([], [])
    if predicted is None or predicted.run is None or predicted.layout is None or predicted.prediction is None:
        wrong = bool(by_log) or (printed.mfu or 0.0) > 1 or bool(log and log.signs[Sign.FOREIGN_PEAK])
        if wrong and not by_log:
            notes.append("the printed MFU is by another part's peak: many tools fall back to an A100's 312 Tflop/s")
        outcome = RunOutcome.COUNTED_WRONGLY if wrong else RunOutcome.NOT_PREDICTED
        return RunDiagnosis(outcome=outcome, pace=pace, counted=by_log, causes=seen[:MOST_CAUSES], notes=notes)
    run, layout, step = predicted.run, predicted.layout, predicted.prediction.step
    machine = predicted.machine.machine if predicted.machine else None
    peak = machine.peak_flop_per_second if machine else None
    of_products = predicted.machine.product_peak if predicted.machine else None
    most = max(peak, of_products or 0.0) if peak else None
    batch = run.recipe.global_batch
    counts = by_log + counted(
        printed,
        run.architecture,
        batch=batch,
        gpus=layout.ranks,
        seconds=pace.seconds,
        peak=peak,
        precision=run.recipe.precision,
    )
    flop, executed = (
        amount / pace.seconds / layout.ranks if amount else None
        for amount in (predicted.prediction.model_flop, predicted.prediction.hardware_flop)
    )
    if other_work := _other_work(counts):
        notes.insert(0, other_work)
    interval = _wider(predicted.step_interval, step.total_seconds) if step and predicted.step_interval else None
    causes = seen
    expected = expected_step(predicted)
    if expected and interval and pace.seconds > interval[1] and not other_work:
        causes = seen + candidates(expected, pace.seconds, known=layout if states_layout else None)
    return RunDiagnosis(
        outcome=RunOutcome.COUNTED_WRONGLY if other_work else _outcome(pace.seconds, interval, flop, most, counts),
        pace=pace,
        counted=counts,
        causes=causes[:MOST_CAUSES],
        notes=notes,
        predicted_seconds=step.total_seconds if step else None,
        interval=interval,
        tokens_per_second=batch * run.architecture.sequence / pace.seconds,
        flop_per_second=flop,
        mfu=flop / peak if flop and peak else None,
        hfu=executed / peak if executed and peak else None,
        terms=_terms(step) if step else {},
        helpful=_helpful(predicted, layout, log.format.name if log else "") if step else [],
    )


def expected_step(predicted: Predicted) -> ExpectedStep | None:
    """The step of a prediction with its workload and machine; None: no step is predicted."""
    run, layout, machine = predicted.run, predicted.layout, predicted.machine
    if run is None or layout is None or machine is None or machine.machine is None:
        return None
    step = predicted.prediction.step if predicted.prediction else None
    return step and ExpectedStep(Workload(run.architecture, run.recipe, layout), machine.machine, step)


def _other_work(counts: list[CountedRate]) -> str | None:
    """Words for a printed rate of far more or less work than the model has, if no formula gives it."""
    for each in counts:
        ratio = each.printed / each.computed
        if each.explanation is None and each.quantity == "Tflop/s" and not 1 / OTHER_WORK < ratio < OTHER_WORK:
            said = f"the log counts {ratio:.3g} times the work of this model in this batch"
            return f"{said}: another model, sequence, batch or number of accelerators? Candidates are left out"
    return None


def _terms(step: StepTime) -> dict[str, float]:
    terms = sorted(step._asdict().items(), key=lambda item: -item[1])
    return {name.removesuffix("_seconds").replace("_", "-"): seconds for name, seconds in terms if seconds > 0}


def _helpful(predicted: Predicted, layout: Layout, framework: str) -> list[Saving]:
    """Changes that the software executes, that fit, and that save a twentieth of the step or more.

    Args:
        framework: of the log; empty: not known, and the predicted software's.
    """
    run, on = predicted.run, predicted.machine
    if run is None or on is None:
        return []
    framework = framework or framework_of_stack(on.stack.name)
    try:
        question = question_of(run, on, ranks=layout.ranks, fixed={}, global_batch=None)
        figures = layout_figures(Workload(run.architecture, run.recipe, layout), question.machine)
        changes = helpful_changes(question, Found(layout, figures), top=10)
    except InputError:  # what is searched is not all that can be predicted
        return []
    able = [each for each in changes if each.fits and each.allowed and each.time <= -LEAST_SAVED]
    return [
        Saving(each.words, -each.time, each.more_bytes, option_of(framework, each.words)) for each in able[:MOST_CAUSES]
    ]


def _wider(interval: tuple[float, float], middle: float) -> tuple[float, float]:
    low, high = (middle * math.exp(_WIDER * math.log(end / middle)) for end in interval)
    return low, high


def _outcome(
    seconds: float,
    interval: tuple[float, float] | None,
    flop: float | None,
    peak: float | None,
    counts: list[CountedRate],
) -> RunOutcome:
    if flop is not None and peak is not None and flop > peak:
        return RunOutcome.IMPLAUSIBLE
    if interval is not None and seconds > interval[1]:
        return RunOutcome.SLOW
    if any(each.wrong for each in counts):
        return RunOutcome.COUNTED_WRONGLY
    if interval is None:
        return RunOutcome.NOT_PREDICTED
    return RunOutcome.EXPECTED if seconds >= interval[0] else RunOutcome.FAST
