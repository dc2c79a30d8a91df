"""Rows of a table of measurements: is each as fast as expected?"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import typer

from reference_runs.errors import InputError
from reference_runs.published import PublishedRow, load_table
from reference_runs.recorded_file import shown_path
from reference_runs.run_of_row import run_of_row
from reference_runs.training_logs.training_log import PrintedStep
from reference_runs.units import printed
from suite.commands.diagnosed_page import Diagnosed, exit_code, show
from suite.commands.options import print_json
from suite.machine.packages import require
from suite.predict.diagnosis.counting import Printed
from suite.predict.diagnosis.diagnosis import RunOutcome, diagnosis
from suite.predict.diagnosis.evidence import DiagnosisEvidence
from suite.predict.diagnosis.pace import pace
from suite.predict.diagnosis.trace_causes import predicted_terms
from suite.predict.plan.predicted_run import PredictionRequest, prediction_of_run
from suite.predict.recorded_run.figures import Prices
from suite.report.terminal.diagnosis import against_words
from suite.report.terminal.tables import console, print_folded

MOST_ROWS = 20


def show_rows(path: Path, line: int | None, counted: Printed, *, html: Path | None, as_json: bool) -> None:
    """Show the diagnosis of a row, or a line for each of several, and exit with the worst one's code.

    Args:
        line: of the row in the file, from 1; None: every row that has a step time.
        counted: rates that are printed of that row.

    Raises:
        InputError: no such row, none with a step time, or a page of several.
    """
    require("pandas")
    table = load_table(path)
    rows = [row for row in table.rows if row.step_seconds is not None and line in (None, row.line)]
    if not rows:
        skipped = [f"line {each.line}: {each.reason}" for each in table.skipped if line in (None, each.line)]
        known = ", ".join(str(row.line) for row in table.rows[:MOST_ROWS] if row.step_seconds is not None)
        what = "no row with a step time" if line is None else f"no row with a step time in line {line}"
        got = skipped[0] if skipped else None
        raise InputError(what, got=got, allowed=f"lines {known}" if known else None, where=shown_path(path))
    if len(rows) == 1:
        show(_diagnosed(rows[0], counted), html=html, as_json=as_json)
        return
    if html is not None or counted != Printed():
        raise InputError("several rows", allowed="--row LINE, for one of them", where=shown_path(path))
    _show_all([(row.line, _diagnosed(row, counted)) for row in rows], as_json=as_json)


def _show_all(found: list[tuple[int, Diagnosed]], *, as_json: bool) -> None:
    if as_json:
        for line, each in found:
            print_json({"line": line, "run": each.run, "diagnosis": each.answer})
    else:
        counts = Counter(each.answer.outcome for _, each in found)
        out = console()
        print_folded(
            out, f"{len(found)} rows: {', '.join(f'{count} {name}' for name, count in counts.items())}", "bold"
        )
        unusual = [pair for pair in found if pair[1].answer.outcome is not RunOutcome.EXPECTED]
        for line, each in [*unusual, *(pair for pair in found if pair not in unusual)][:MOST_ROWS]:
            cause = f"; {each.answer.causes[0].words}" if each.answer.causes else ""
            seconds = printed(each.answer.pace.seconds, "s")
            words = f"line {line}, {each.answer.outcome}: {each.run}, {seconds} s{against_words(each.answer)}{cause}"
            print_folded(out, words, "")
        if len(found) > MOST_ROWS:
            print_folded(out, f"and {len(found) - MOST_ROWS} more (--json has all; --row LINE says why)")
    if code := max(exit_code(each.answer) for _, each in found):
        raise typer.Exit(code)


def _diagnosed(row: PublishedRow, counted: Printed) -> Diagnosed:
    request = PredictionRequest(None, None, None, None, Prices(None, None, 1.0), row.stack)
    predicted = prediction_of_run(run_of_row(row), request, by_stage=False)
    timed = [PrintedStep(seconds=row.step_seconds)]
    answer = diagnosis(None, pace(timed), counted, predicted, states_layout=True)
    answer.notes.extend([f"assumed: {', '.join(row.assumed)}"] if row.assumed else [])
    step = predicted.prediction.step if predicted.prediction else None
    accelerator = predicted.machine.accelerator if predicted.machine else None
    evidence = DiagnosisEvidence(timed, predicted_terms(step) if step else {}, accelerator=accelerator)
    return Diagnosed(f"line {row.line} of {row.table}", row.model, answer, predicted, evidence)
