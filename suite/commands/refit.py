"""Fits the machine model to the published step times; --write stores it, --leave-out says what it is worth."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from reference_runs.errors import InputError
from reference_runs.machine_model import (
    FitScores,
    MachineModel,
    current_edition,
    edition_files,
    editions,
    fit_scores,
    machine_model,
    read_again,
)
from reference_runs.published import load_table
from reference_runs.published_tables import held_out_tables, load_tables, shipped_tables
from suite.machine.packages import require
from suite.metrics.figures import Quantity
from suite.paths import INSTALLED, RECORDED_H100, ROOT, whole_file
from suite.predict.analytic.memory_uncertainty import PeakKind
from suite.predict.machine_model.model import PreparedRow, prepared_row
from suite.predict.validation.measured_peaks import MeasuredPeak, calibrated, measured_peaks, peak_coverage
from suite.records.store import read
from suite.report.machine_model import fit_page, print_fit, print_left_out
from suite.report.terminal.tables import console

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,39}")
PAGE = ROOT / "docs" / "machine_model_numbers.md"
_MODEL_HEAD = """\
# The machine model: parameters of the step time, and the families of accelerators that share them.
# Written by `refruns refit --write`: edition, spreads and residual, and value, uncertainty, rows and tables of
# parameters. By hand: everything else.
# A parameter whose spread is 1 is not fitted. `NAME.FAMILY` holds for that family alone.

"""
_SCORES_HEAD = """\
# Errors of the machine model's step times in percent, by table. Written by `refruns refit --write --leave-out`.

"""


def refit_command(
    write: Annotated[
        bool, typer.Option("--write", help="Store the result in reference_runs/; without it, print only.")
    ] = False,
    edition: Annotated[
        str | None, typer.Option(help="Name of the result, with --write: letters, digits, - and ., such as 2026-12.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Take the name of an edition that is there, and replace that one.")
    ] = False,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="Score the stored parameters, as after a change of the form; --leave-out still fits each fold.",
        ),
    ] = False,
    only_later: Annotated[
        bool,
        typer.Option("--later", help="Fit those parameters alone that a single table determines; keep the others."),
    ] = False,
    leave_out: Annotated[
        bool, typer.Option("--leave-out", help="Also fit without each table, size, run and term (minutes).")
    ] = False,
) -> None:
    """Fit the machine model's free parameters to the published step times.

    With --write the result becomes the current edition; what was current is kept under its name, for `--edition` of
    `predict`, `fit`, `plan`, `explore` and `validate`.

    Examples: python -m suite refit; python -m suite refit --write --leave-out --edition 2026-12;
    python -m suite refit --keep --write --leave-out --edition 2026-12.1

    Exit codes: 0 fitted; 2 bad usage or input.
    """
    if write and INSTALLED:
        raise InputError("stores into the facts of a checkout, and this is installed", where="--write")
    if keep and only_later:
        raise InputError("--keep fits nothing", allowed="one of the two", where="--later")
    _check_name(edition, write=write, force=force)
    require("tomli_w", "scipy")  # with the first msgspec writes TOML
    from suite.predict.machine_model import fit, later
    from suite.predict.machine_model.intervals import MIXTURES
    from suite.predict.machine_model.leave_out import left_out_scores

    model, tables = machine_model(), later.later_tables()
    alone = {name for each in tables for name in each.parameters}
    published = [row for path in shipped_tables() for row in load_table(path).rows]
    rows = [prepared_row(row) for row in published if row.step_seconds is not None]
    together = later.with_free(model, lambda name: name not in alone)
    together = fit.determined(together if keep or only_later else _fitted(together, rows), rows)
    own = {name: model.parameters[name] for name in alone}
    model = msgspec.structs.replace(together, parameters=together.parameters | own)
    model = model if keep else later.with_later(model, tables)
    out = console()
    print_fit(out, model, fit.errors_by_table(model, [*rows, *(row for each in tables for row in each.rows)]))
    scores = None
    if leave_out:
        peaks = published_peaks()
        spreads_of_peaks = calibrated([*peaks, *launched_peaks()])
        scores = left_out_scores(together, rows, peaks=spreads_of_peaks, peak_coverage=peak_coverage(peaks))
        of_later = {each.name: later.later_scores(model, each) for each in tables}
        widest = max(each[MIXTURES].half_width for each in of_later.values())
        scores = msgspec.structs.replace(scores, later=of_later, half_width=scores.half_width | {MIXTURES: widest})
        print_left_out(out, scores)
    if edition is not None:
        if scores is None:
            out.print(f"errors and intervals stay those of {current_edition()}; --leave-out fits them too")
        _store_edition(msgspec.structs.replace(model, edition=edition), scores)
        PAGE.write_text(fit_page(machine_model(), fit_scores(), load_tables()), encoding="utf-8")


def _fitted(model: MachineModel, rows: Sequence[PreparedRow]) -> MachineModel:
    """The model fitted to all rows: parameters, the spreads that their residuals have, and with these again."""
    from suite.predict.machine_model import fit, spreads

    first = fit.fit(model, rows, start=model.values())
    residuals = [math.log1p(error) for error in fit.errors(model, first.values, rows)]
    found = spreads.estimated([each.row for each in rows], residuals, model.spreads)
    model = msgspec.structs.replace(model, spreads=found)
    return fit.with_values(model, fit.fit(model, rows, start=first.values))


def _check_name(edition: str | None, *, write: bool, force: bool) -> None:
    """Refuse what is no name of a new edition.

    Raises:
        InputError: --write without a name or a name without --write, a wrong one, or one that is taken.
    """
    if not write:
        for option in ("--edition",) * (edition is not None) + ("--force",) * force:
            raise InputError("nothing is stored without --write", where=option)
    elif edition is None:
        raise InputError("the fit needs a name", allowed="--edition NAME, such as 2026-12", where="--write")
    elif not _NAME.fullmatch(edition):
        allowed = "at most 40 letters, digits, - and ., a letter or digit first"
        raise InputError("not a name of an edition", got=edition, allowed=allowed, where="--edition")
    elif edition in editions() and not force:
        raise InputError("is there already", got=edition, allowed="another name, or --force", where="--edition")


def _store_edition(model: MachineModel, scores: FitScores | None) -> None:
    """Make a fit the current edition, and keep the one before it under its name.

    Whatever ends this early, each file is whole, and every edition that was there still is.

    Args:
        scores: None: they stay as they are.
    """
    current, replaced = edition_files(), edition_files(model.edition)
    if (before := current_edition()) != model.edition:
        kept = edition_files(before)
        kept.model.parent.mkdir(parents=True, exist_ok=True)
        for source, target in ((current.scores, kept.scores), (current.model, kept.model)):  # the model makes it one
            _write(target, source.read_text(encoding="utf-8"))
    if scores is not None:
        _write(current.scores, _SCORES_HEAD + _toml(scores))
    _write(current.model, _MODEL_HEAD + _toml(model))
    if replaced.model.exists():  # an earlier edition of the name
        replaced.model.unlink()
        replaced.scores.unlink()
        replaced.model.parent.rmdir()
    read_again()


def published_peaks() -> list[MeasuredPeak]:
    """The measured peaks of all tables, those that no fit of step times reads too."""
    return [peak for path in (*shipped_tables(), *held_out_tables()) for peak in measured_peaks(load_table(path))]


def launched_peaks() -> list[MeasuredPeak]:
    """Bytes that PyTorch's allocator reserved in the launches recorded on an H100, over those of tensors.

    The walk has the latter within 2 % (tests/predict/simulation/test_walked_memory.py).
    """
    peaks = []
    for path in sorted(RECORDED_H100.glob("records/*/*.begin.json")):
        end = read(path).end
        if end is None or not (reserved := end.ranks[0].reserved_bytes):
            continue
        held = next(
            f.value for f in end.figures if f.quantity == Quantity.PEAK_BYTES and f.rank == 0 and f.term is None
        )
        peaks.append(MeasuredPeak(PeakKind.WALKED, len(end.ranks), math.log(reserved / held)))
    return peaks


def _write(path: Path, text: str) -> None:
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _toml(content: object) -> str:
    return msgspec.toml.encode(_rounded(msgspec.to_builtins(content))).decode()


def _rounded(content: object) -> object:
    """Numbers to four digits, which is more than the fit knows; absent values left out, as TOML has none."""
    if isinstance(content, dict):
        return {key: _rounded(value) for key, value in content.items() if value is not None}
    if isinstance(content, list | tuple):
        return [_rounded(value) for value in content]
    if isinstance(content, float) and math.isfinite(content):
        return float(f"{content:.4g}")
    return content
