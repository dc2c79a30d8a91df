"""A user's table of measurements written again: with its predictions in further columns, or as it was read."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from reference_runs.errors import InputError
from reference_runs.printable import csv_cell
from reference_runs.published import PublishedTable
from reference_runs.published_as_written import canonical_table, canonical_text, read_table_file
from suite.paths import whole_file
from suite.predict.validation.published_tables import RowPrediction, all_predictions

COLUMNS = (
    *("predicted_step_time_s", "predicted_mem_gib_per_gpu", "predicted_stack", "predicted_accelerator"),
    *("predicted_assuming", "not_predicted"),
)


def write_predictions(table: PublishedTable, source: Path, target: Path) -> None:
    """Write the table at `source` to `target`, each row with its prediction, or with the reason why there is none.

    Raises:
        InputError: `target` is the table itself, or cannot be written; nothing is left half-written.
    """
    _check_other(source, target, "--write")
    predicted, reasons = all_predictions(table)
    text = io.StringIO()
    header, separator, lines = read_table_file(source)
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    if taken := [column for column in COLUMNS if column in header]:
        raise InputError("the table has such a column", got=", ".join(taken), allowed="none", where=str(source))
    width = max([len(header), *(len(cells) for _, cells in lines)])  # a row may have more cells than the header

    def padded(cells: list[str]) -> list[str]:
        return [*cells, *[""] * (width - len(cells))]

    writer.writerow(map(csv_cell, [*padded(header), *COLUMNS]))
    for line, cells in lines:
        said = _said(predicted.get(line), reasons.get(line, ""))
        writer.writerow(map(csv_cell, [*padded(cells), *said]))
    _write(text.getvalue(), target, "--write")


def write_as_read(source: Path, target: Path) -> None:
    """Write the table at `source` to `target` as it was read: canonical columns, and notes in a last one.

    Raises:
        InputError: as `write_predictions`.
    """
    _check_other(source, target, "--as-read")
    _write(canonical_text(canonical_table(source), str(source)), target, "--as-read")


def _check_other(source: Path, target: Path, option: str) -> None:
    if target.exists() and target.samefile(source):
        raise InputError("is the table itself", got=str(target), allowed="another file", where=option)


def _write(text: str, target: Path, option: str) -> None:
    try:
        with whole_file(target) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror}", got=str(target), where=option) from error


def _said(found: RowPrediction | None, reason: str) -> list[str]:
    if found is None:
        return ["", "", "", "", "", reason]
    row, peak = found.row, found.peak_bytes / 2**30
    return [f"{found.step_seconds:.6g}", f"{peak:.6g}", row.stack, row.accelerator, "; ".join(row.assumed), ""]
