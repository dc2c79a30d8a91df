"""Fits the machine model to the published step times; --write stores it, --leave-out says what it is worth."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean
from typing import Annotated

import msgspec
import typer

from reference_runs.errors import InputError
from reference_runs.machine_model import FIT_SCORES, MACHINE_MODEL, fit_scores, machine_model
from reference_runs.published import load_table
from reference_runs.published_tables import load_tables, shipped_tables
from suite.machine.packages import require
from suite.paths import INSTALLED, ROOT
from suite.predict.machine_model.model import prepared_row
from suite.predict.validation.measured_peaks import measured_peaks, most_excess, peak_coverage
from suite.predict.validation.published_tables import peak_errors
from suite.report.machine_model import fit_page, print_fit, print_left_out
from suite.report.terminal.tables import console

PAGE = ROOT / "docs" / "machine_model_numbers.md"
_MODEL_HEAD = """\
# The machine model: parameters of the step time, and the families of accelerators that share them.
# Written by `refruns refit --write`: spreads and residual, and value, uncertainty, rows and tables of parameters. By
# hand: everything else.
# A parameter whose spread is 1 is not fitted. `NAME.FAMILY` holds for that family alone.

"""
_SCORES_HEAD = """\
# Errors of the machine model's step times in percent, by table. Written by `refruns refit --write --leave-out`.

"""


def refit_command(
    write: Annotated[
        bool, typer.Option("--write", help="Store the result in reference_runs/; without it, print only.")
    ] = False,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="Score the stored parameters, as after a change of the form; --leave-out still fits each fold.",
        ),
    ] = False,
    leave_out: Annotated[
        bool, typer.Option("--leave-out", help="Also fit without each table, size, run and term (minutes).")
    ] = False,
) -> None:
    """Fit the machine model's free parameters to the published step times.

    Examples: python -m suite refit; python -m suite refit --write --leave-out;
    python -m suite refit --keep --write --leave-out

    Exit codes: 0 fitted; 2 bad usage or input.
    """
    if write and INSTALLED:
        raise InputError("stores into the facts of a checkout, and this is installed", where="--write")
    require("tomli_w", "scipy")  # with the first msgspec writes TOML
    from suite.predict.machine_model import fit, spreads
    from suite.predict.machine_model.leave_out import left_out_scores

    model = machine_model()
    published = [row for path in shipped_tables() for row in load_table(path).rows]
    rows = [prepared_row(row) for row in published if row.step_seconds is not None]
    if not keep:
        fitted = fit.fit(model, rows, start=model.values())
        residuals = [math.log1p(error) for error in fit.errors(model, fitted.values, rows)]
        found = spreads.estimated([each.row for each in rows], residuals, model.spreads)
        model = msgspec.structs.replace(model, spreads=found)
        model = fit.with_values(model, fit.fit(model, rows, start=fitted.values))
    model = fit.determined(model, rows)
    out = console()
    print_fit(out, model, fit.errors_by_table(model, rows))
    if write:
        _store(MACHINE_MODEL, _MODEL_HEAD, _rounded(msgspec.to_builtins(model)))
    if leave_out:
        peaks = [peak for path in shipped_tables() for peak in measured_peaks(load_table(path))]
        scores = left_out_scores(
            model, rows, peak_bytes=_peak_errors(), peak_excess=most_excess(peaks), peak_coverage=peak_coverage(peaks)
        )
        print_left_out(out, scores)
        if write:
            _store(FIT_SCORES, _SCORES_HEAD, _rounded(msgspec.to_builtins(scores)))
    if write:
        machine_model.cache_clear()
        fit_scores.cache_clear()
        PAGE.write_text(fit_page(machine_model(), fit_scores(), load_tables()), encoding="utf-8")


def _peak_errors() -> dict[str, float]:
    """Mean absolute error in percent of each table with measured peaks."""
    measured = {path.stem: peak_errors(load_table(path)) for path in shipped_tables()}
    return {table: 100 * fmean(map(abs, errors)) for table, errors in measured.items() if errors}


def _store(path: Path, head: str, content: object) -> None:
    path.write_text(head + msgspec.toml.encode(content).decode(), encoding="utf-8")


def _rounded(content: object) -> object:
    """Numbers to four digits, which is more than the fit knows; absent values left out, as TOML has none."""
    if isinstance(content, dict):
        return {key: _rounded(value) for key, value in content.items() if value is not None}
    if isinstance(content, list | tuple):
        return [_rounded(value) for value in content]
    if isinstance(content, float) and math.isfinite(content):
        return float(f"{content:.4g}")
    return content
