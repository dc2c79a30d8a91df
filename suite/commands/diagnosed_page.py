"""How a diagnosis leaves the command: as lines, JSON and a page, and as exit code."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import typer

from reference_runs.errors import InputError
from suite.commands import exit_codes
from suite.commands.new_file import check_new
from suite.commands.options import print_json
from suite.machine.packages import require
from suite.paths import whole_file
from suite.predict.diagnosis.diagnosis import RunDiagnosis, RunOutcome
from suite.predict.diagnosis.evidence import DiagnosisEvidence
from suite.predict.plan.predicted_run import Predicted
from suite.report.terminal.diagnosis import print_diagnosis
from suite.report.terminal.tables import console

_OPTION = "--html"


class Diagnosed(NamedTuple):
    """A diagnosis with all that is shown of it.

    Args:
        name: of what was diagnosed; empty: numbers.
        run: the model that was expected.
    """

    name: str
    run: str | None
    answer: RunDiagnosis
    predicted: Predicted | None
    evidence: DiagnosisEvidence


def check_page(html: Path | None, *, force: bool) -> None:
    """Refuse a page that could not be written when the work is done.

    Raises:
        InputError: another ending than .html, a place that cannot be written, or a missing package.
    """
    if html is None:
        return
    if html.suffix != ".html":  # a log that is named here by mistake stays
        raise InputError("not a page's name", got=str(html), allowed="a file ending in .html", where=_OPTION)
    check_new(html, _OPTION, force=force)
    require("plotly", "jinja2")


def show(found: Diagnosed, *, html: Path | None, as_json: bool) -> None:
    """Print a diagnosis, write its page, and exit with its code.

    Raises:
        InputError: the page cannot be written.
    """
    if html is not None:
        _write_page(html, found)
    if as_json:
        print_json({"log": found.name or None, "run": found.run, "diagnosis": found.answer})
    else:
        print_diagnosis(console(), found.name or "the numbers given", found.run, found.answer, found.predicted)
        if html is not None:
            console().print(f"wrote {html}", soft_wrap=True, markup=False, highlight=False)
    if code := exit_code(found.answer):
        raise typer.Exit(code)


def exit_code(answer: RunDiagnosis) -> int:
    """The exit code of a verdict."""
    if answer.outcome is RunOutcome.NOT_PREDICTED:
        return exit_codes.INCONCLUSIVE
    return exit_codes.PASS if answer.outcome in (RunOutcome.EXPECTED, RunOutcome.FAST) else exit_codes.FAIL


def _write_page(path: Path, found: Diagnosed) -> None:
    from suite.report.html.diagnosis import diagnosis_page

    text = diagnosis_page(found.name or "the numbers given", *found[1:])
    try:
        with whole_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror}", got=str(path), where=_OPTION) from error
