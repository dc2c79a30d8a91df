"""A table of one row from a result log of MLPerf Training, for `import`."""

from __future__ import annotations

import sys
from pathlib import Path

from reference_runs.errors import InputError
from reference_runs.mlperf_row import MlperfRow, mlperf_row, row_text
from reference_runs.stack import stack as known_stack
from suite.commands.new_file import STDOUT, write_new
from suite.commands.options import print_json
from suite.commands.planned_run import print_command
from suite.commands.training_options import Asked
from suite.report.terminal.tables import console, print_folded


def import_log(
    log: Path, config: Path | None, asked: Asked, *, recipe: str | None, output: str | None, force: bool, as_json: bool
) -> None:
    """Write the row of a log, and print where its numbers come from and the command that reads it.

    Args:
        config: shell file of the layout; None: the one beside the log.
        output: the table, a new file ending in .csv, or - for stdout; None: of the log's name.

    Raises:
        InputError: a file that cannot be read as what it is, or an option that is none of a row's.
    """
    row = mlperf_row(log, config, _stated(asked, recipe))
    if output == STDOUT:
        sys.stdout.write(row_text(row))
        return
    path = Path(f"{log.stem}.csv" if output is None else output)
    if path.suffix != ".csv":
        raise InputError("not a table's name", got=str(path), allowed="one ending in .csv", where="--output")
    write_new(path, row_text(row), force=force)
    if as_json:
        print_json({"table": str(path), "cells": row.cells, "notes": row.notes})
        return
    _print(path, row)


def _print(path: Path, row: MlperfRow) -> None:
    out = console()
    print_folded(out, f"{path}: {row.cells['model']}, {row.cells['source']}", "bold")
    for note in row.notes:
        print_folded(out, f"note: {note}")
    print_command(out, "next", ["validate", str(path)], {})


def _stated(asked: Asked, recipe: str | None) -> dict[str, str]:
    """Cells that options say.

    Raises:
        InputError: an option that belongs to the configuration of a model, or no stack of that name.
    """
    training = asked.training
    for option, given in (("--recipe", recipe), ("--batch", training.batch), ("--tokens", training.tokens)):
        if given is not None:
            what = "belongs to the configuration of a model, and not to the log of a run"
            raise InputError(what, got=given, where=option)
    if asked.stack is not None:
        known_stack(asked.stack)
    cells = {
        "gpu": asked.on,
        "gpus": asked.gpus,
        "seq_len": training.sequence,
        "micro_batch": training.micro_batch,
        "dtype": training.precision,
        "framework": asked.stack,
        "network_bytes_per_second": None if asked.network is None else f"{asked.network * 1e9 / 8:.12g}",
    }
    return {column: str(value) for column, value in cells.items() if value is not None}
