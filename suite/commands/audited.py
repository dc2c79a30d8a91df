"""`fit DIRECTORY` and `dry-run DIRECTORY`: which configurations of other software can run, before a cluster says so."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import typer

from reference_runs.configurations.models import sized_model
from reference_runs.errors import InputError
from reference_runs.named_runs import meant_run, run_names
from reference_runs.printable import csv_cell
from suite.commands import exit_codes
from suite.commands.options import print_json
from suite.paths import whole_file
from suite.predict.plan.audit import Audited, AuditVerdict, Filling, audit
from suite.report.terminal.audit import in_order, print_audit
from suite.report.terminal.progress import seconds_reported
from suite.report.terminal.tables import console


def audit_directory(directory: Path, filling: Filling, *, table: Path | None, as_json: bool) -> None:
    """Print a row for each configuration below the directory, and end as they did.

    Args:
        table: CSV file to write too.

    Raises:
        InputError: the directory or the table cannot be read or written, or an option names what is not known.
        Exit: 1 if any cannot run, 3 if none is judged or any is not, 0 if all run.
    """
    with seconds_reported("reading configurations", console(stderr=True)):
        rows = in_order([*audit(directory, filling)])
    if table is not None:
        _write(rows, table)
    if as_json:
        for row in rows:
            print_json(row)
    else:
        print_audit(console(), rows)
    raise typer.Exit(_exit_code(rows))


def check_place(name: str | None) -> None:
    """Refuse a path at which there is nothing; names of runs and of models pass.

    Raises:
        InputError: no such file or directory.
    """
    if name is None or name.endswith((".toml", ".json")) or ":" in name:
        return
    path = Path(name)
    begun = name.startswith(("/", "./", "../", "~")) or name.endswith("/") or name in (".", "..")
    if not begun and "/" in name:  # or the owner of a model in front of its name, as in meta-llama/Llama-3.1-8B
        begun = path.parent.is_dir() or (sized_model(name) is None and meant_run(name, run_names()) is None)
    if begun and not path.exists():
        raise InputError("no such file or directory", got=name)


def refuse_of_one(given: Mapping[str, object]) -> None:
    """Refuse options that are of one run.

    Raises:
        InputError: one is given.
    """
    if named := [option for option, value in given.items() if value]:
        raise InputError(
            "is of one run, not of a directory", got=", ".join(named), allowed="--on, --gpus, --network, --model, --csv"
        )


def _exit_code(rows: Sequence[Audited]) -> int:
    verdicts = {row.verdict for row in rows}
    if AuditVerdict.CANNOT in verdicts:
        return exit_codes.FAIL
    if AuditVerdict.NOT_JUDGED in verdicts or AuditVerdict.RUNS not in verdicts:
        return exit_codes.INCONCLUSIVE
    return exit_codes.PASS


def _write(rows: Sequence[Audited], path: Path) -> None:
    """Write a line of names, then a line a file; empty where there is nothing.

    Raises:
        InputError: it cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text)
    names = [field.name for field in msgspec.structs.fields(Audited)]
    writer.writerow(names)
    for row in rows:
        cells = [getattr(row, name) for name in names]
        writer.writerow([csv_cell(str(cell)) if isinstance(cell, str) else cell for cell in cells])
    try:
        with whole_file(path) as temporary:
            temporary.write_text(text.getvalue(), encoding="utf-8", errors="backslashreplace", newline="")
    except OSError as error:
        raise InputError(f"cannot write the file: {error.strerror}", got=str(path), where="--csv") from error
