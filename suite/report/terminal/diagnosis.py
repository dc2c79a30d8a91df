"""A diagnosis in the terminal: what was measured, what was to be expected, how it was counted, and why."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from reference_runs.units import printed
from suite.predict.diagnosis.causes import SlowCause
from suite.predict.diagnosis.compared import LEAST_LOSS, ComparedRuns
from suite.predict.diagnosis.counting import CountedRate
from suite.predict.diagnosis.diagnosis import RunDiagnosis, RunOutcome, Saving
from suite.predict.plan.predicted_run import Predicted
from suite.report.terminal.columns import percent
from suite.report.terminal.plan import where_words
from suite.report.terminal.tables import print_folded

_STYLES = {RunOutcome.EXPECTED: "bold green", RunOutcome.FAST: "bold green", RunOutcome.NOT_PREDICTED: "bold"}
ROUNDS_TO_NOTHING, TWICE = 0.005, 2
_TERMS, _MEASURED_TERMS = 4, 6  # of a step, that are printed


def print_diagnosis(
    out: Console, name: str, run: str | None, answer: RunDiagnosis, predicted: Predicted | None
) -> None:
    """Print the verdict first, then what it rests on; at most 25 lines."""
    print_folded(out, f"{answer.outcome}: {name}{against_words(answer)}", _STYLES.get(answer.outcome, "bold red"))
    for line in summary_lines(run, answer, predicted):
        print_folded(out, line, "")
    for each in answer.counted:
        style = "bold red" if each.wrong else "" if each.explanation else "bold"
        print_folded(out, counted_words(each), style)
    for number, cause in enumerate(answer.causes, 1):
        standing = standing_words(cause, measured=bool(answer.measured))
        print_folded(out, f"cause {number}, {standing}: {cause.words}{_of_a_step(cause)}", "")
        print_folded(out, f"    look at: {cause.confirm}")
    for line in _measured_words(answer):
        print_folded(out, line, "")
    if answer.terms and not answer.measured:
        whole = sum(answer.terms.values())
        longest = ", ".join(
            f"{term} {percent(seconds / whole)}" for term, seconds in list(answer.terms.items())[:_TERMS]
        )
        print_folded(out, f"where the predicted step goes: {longest}")
    for change in answer.helpful:
        print_folded(out, saving_words(change), "")
    for note in answer.notes:
        print_folded(out, f"note: {note}")
    if predicted and predicted.assumed:
        print_folded(out, f"assumed: {'; '.join(f'{each.words} ({each.option})' for each in predicted.assumed)}")
    elif not predicted and answer.outcome is RunOutcome.NOT_PREDICTED:
        print_folded(out, "--run RUN or config.json, with --on and --gpus, says what to expect")


def _measured_words(answer: RunDiagnosis) -> Iterator[str]:
    """The longest terms, measured or predicted, and what the others take together."""
    ordered = sorted(answer.measured, key=lambda term: -max(term.seconds, term.predicted_seconds or 0.0))
    shown, others = ordered[:_MEASURED_TERMS], ordered[_MEASURED_TERMS:]
    for term in sorted(shown, key=lambda term: -term.seconds):
        share = percent(term.seconds / answer.pace.seconds)
        expected = "" if term.predicted_seconds is None else f", predicted {printed(term.predicted_seconds, 's')}"
        yield f"measured: {term.name} {printed(term.seconds, 's')} s, {share} of the step{expected}"
    if others:
        share = percent(sum(term.seconds for term in others) / answer.pace.seconds)
        terms = "1 other term" if len(others) == 1 else f"{len(others)} other terms"
        yield f"measured: {terms}, {share} of the step (--json, --html)"


def summary_lines(run: str | None, answer: RunDiagnosis, predicted: Predicted | None) -> Iterator[str]:
    """The run and its machine, the pace, and the rates: a line each, as far as they are known."""
    if predicted and predicted.machine and predicted.layout and run:
        yield where_words(run, predicted.machine, predicted.layout.ranks)
    yield _pace_words(answer)
    if answer.mfu is not None and answer.flop_per_second is not None and answer.tokens_per_second is not None:
        hfu = f", HFU {percent(answer.hfu)}" if answer.hfu is not None else ""
        rate = f"{answer.tokens_per_second:,.0f} tokens/s, {answer.flop_per_second / 1e12:,.1f} Tflop/s an accelerator"
        machine = predicted.machine if predicted else None
        peak = f"dense {machine.dtype} peak" if machine and machine.product_peak else "dense peak"
        yield f"{rate}, MFU {percent(answer.mfu)}{hfu} (every product once, of the {peak})"


def counted_words(each: CountedRate) -> str:
    """A printed rate beside the computed one, and the formula that gives it."""
    value = percent(each.printed) if each.quantity == "MFU" else printed(each.printed, "")
    own = percent(each.computed) if each.quantity == "MFU" else printed(each.computed, "")
    how = each.explanation or "no formula that is known gives it: another model, batch, or number of accelerators?"
    mark = "counted wrongly: " if each.wrong else ""
    return f"printed {each.quantity} {value}, computed {own}: {mark}{how}"


def standing_words(cause: SlowCause, *, measured: bool) -> str:
    """How a cause is known."""
    return ("measured" if measured else "seen in the log") if cause.is_seen else cause.standing


def _of_a_step(cause: SlowCause) -> str:
    return "" if cause.seconds is None else f", {printed(cause.seconds, 's')} s of a step"


def saving_words(change: Saving) -> str:
    """A change of the layout, with the time that it saves and the framework's option."""
    option = f" ({change.option})" if change.option else ""
    return f"would save {percent(change.share)} of the predicted time: {change.words}{option}"


def against_words(answer: RunDiagnosis) -> str:
    """How the measured step compares with the predicted one; empty: nothing is predicted."""
    if answer.predicted_seconds is None or answer.interval is None:
        return ""
    ratio = answer.pace.seconds / answer.predicted_seconds
    if abs(ratio - 1) < ROUNDS_TO_NOTHING:
        how = "as long as predicted"
    elif ratio > TWICE:
        how = f"{ratio:,.3g} times as long as predicted"
    else:
        how = f"{100 * abs(ratio - 1):.0f} % {'longer' if ratio > 1 else 'shorter'} than predicted"
    return f", a step is {how}"


def _pace_words(answer: RunDiagnosis) -> str:
    pace = answer.pace
    words = f"step {printed(pace.seconds, 's')} s"
    if pace.steps > 1:
        left = f" after the first {pace.warm_up}" if pace.warm_up else ""
        words += f" (median of {pace.steps}{left}; half of them {printed(pace.low, 's')} to {printed(pace.high, 's')})"
    if answer.predicted_seconds is not None and answer.interval is not None:
        low, high = (printed(end, "s") for end in answer.interval)
        words += f"; predicted {printed(answer.predicted_seconds, 's')}, expected between {low} and {high}"
    return words


def print_printed_mfu(out: Console, mfu: float, name: str, peak: float, shares: dict[str, float]) -> None:
    """Print which peaks a printed MFU may divide by, and what it is by the dense one."""
    if not shares:
        print_folded(out, f"not predicted: an MFU of {percent(mfu)} alone; a log, or --step-time with --run, says more")
        return
    print_folded(out, f"counted wrongly: no run has an MFU of {percent(mfu)}", "bold red")
    for other, share in shares.items():
        dense = f"{percent(share)} of the {peak / 1e12:,.0f} dense Tflop/s of {name}"
        print_folded(out, f"if it divides by the peak of {other}: {dense}", "")


def print_comparison(out: Console, found: ComparedRuns) -> None:
    """Print how two runs differ, and why."""
    what = "step" if found.of_step else "sample and accelerator"
    ratio = found.slowdown
    if abs(ratio - 1) < LEAST_LOSS:
        words, style = f"as fast as {found.other}, each {what}", "bold green"
    elif ratio > 1:
        words, style = f"{printed(ratio, '1')} times as long as {found.other}, each {what}", "bold red"
    else:
        words, style = f"{printed(1 / ratio, '1')} times as fast as {found.other}, each {what}", "bold green"
    print_folded(out, f"{found.here}: {words}", style)
    seconds = f"step {printed(found.seconds, 's')} s here, {printed(found.other_seconds, 's')} s there"
    print_folded(out, seconds, "")
    if found.formula_changed:
        print_folded(out, "both count different flop for the same work: compare step times, not Tflop/s", "bold")
    for number, cause in enumerate(found.causes, 1):
        print_folded(out, f"cause {number}: {cause.words}{_of_a_step(cause)}", "")
        print_folded(out, f"    look at: {cause.confirm}")
    if found.of_step and not found.of_traces:
        print_folded(
            out,
            "the batches or numbers of accelerators are not known: --gpus, --batch, --against-gpus, --against-batch",
        )
