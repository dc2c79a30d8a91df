"""A diagnosis in the terminal: what was measured, what was to be expected, how it was counted, and why."""

from __future__ import annotations

from rich.console import Console

from reference_runs.units import printed
from suite.predict.diagnosis.compared import LEAST_LOSS, ComparedRuns
from suite.predict.diagnosis.diagnosis import RunDiagnosis, RunOutcome
from suite.predict.plan.predicted_run import Predicted
from suite.report.terminal.columns import percent
from suite.report.terminal.plan import print_assumptions, where_words
from suite.report.terminal.tables import print_folded

_STYLES = {RunOutcome.EXPECTED: "bold green", RunOutcome.FAST: "bold green", RunOutcome.NOT_PREDICTED: "bold"}
ROUNDS_TO_NOTHING, TWICE = 0.005, 2
_TERMS = 4  # of the predicted step


def print_diagnosis(
    out: Console, name: str, run: str | None, answer: RunDiagnosis, predicted: Predicted | None
) -> None:
    """Print the verdict first, then what it rests on; at most 25 lines."""
    print_folded(out, f"{answer.outcome}: {name}{_against(answer)}", _STYLES.get(answer.outcome, "bold red"))
    if predicted and predicted.machine and predicted.layout and run:
        print_folded(out, where_words(run, predicted.machine, predicted.layout.ranks))
    print_folded(out, _pace_words(answer), "")
    if answer.mfu is not None and answer.flop_per_second is not None and answer.tokens_per_second is not None:
        hfu = f", HFU {percent(answer.hfu)}" if answer.hfu is not None else ""
        rate = f"{answer.tokens_per_second:,.0f} tokens/s, {answer.flop_per_second / 1e12:,.1f} Tflop/s an accelerator"
        print_folded(out, f"{rate}, MFU {percent(answer.mfu)}{hfu} (every product once, of the dense peak)", "")
    for each in answer.counted:
        value = percent(each.printed) if each.quantity == "MFU" else printed(each.printed, "")
        own = percent(each.computed) if each.quantity == "MFU" else printed(each.computed, "")
        how = each.explanation or "no formula that is known gives it: another model, batch, or number of accelerators?"
        mark = "counted wrongly: " if each.wrong else ""
        style = "bold red" if each.wrong else "" if each.explanation else "bold"
        print_folded(out, f"printed {each.quantity} {value}, computed {own}: {mark}{how}", style)
    for number, cause in enumerate(answer.causes, 1):
        seconds = "" if cause.seconds is None else f", {printed(cause.seconds, 's')} s of a step"
        seen = f"seen in the {'trace' if answer.measured else 'log'}" if cause.is_seen else cause.standing
        print_folded(out, f"cause {number}, {seen}: {cause.words}{seconds}", "")
        print_folded(out, f"    look at: {cause.confirm}")
    for term in answer.measured:
        share = percent(term.seconds / answer.pace.seconds)
        expected = "" if term.predicted_seconds is None else f", predicted {printed(term.predicted_seconds, 's')}"
        print_folded(out, f"measured: {term.name} {printed(term.seconds, 's')} s, {share} of the step{expected}", "")
    if answer.terms and not answer.measured:
        whole = sum(answer.terms.values())
        longest = ", ".join(
            f"{term} {percent(seconds / whole)}" for term, seconds in list(answer.terms.items())[:_TERMS]
        )
        whose = "predicted" if predicted else "measured"
        print_folded(out, f"where the {whose} step goes: {longest}")
    for change in answer.helpful:
        option = f" ({change.option})" if change.option else ""
        print_folded(out, f"would save {percent(change.share)} of the predicted time: {change.words}{option}", "")
    for note in answer.notes:
        print_folded(out, f"note: {note}")
    if predicted:
        print_assumptions(out, predicted.assumed)
    elif answer.outcome is RunOutcome.NOT_PREDICTED:
        print_folded(out, "--run RUN or config.json, with --on and --gpus, says what to expect")


def _against(answer: RunDiagnosis) -> str:
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
        time = "" if cause.seconds is None else f", {printed(cause.seconds, 's')} s of a step"
        print_folded(out, f"cause {number}: {cause.words}{time}", "")
        print_folded(out, f"    look at: {cause.confirm}")
    if found.of_step:
        print_folded(out, "the batches or numbers of accelerators are not known: --gpus, --batch, --against-gpus")
