"""Launches as a table for other programs, a column a fact or figure: CSV, or Parquet by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from reference_runs.errors import InputError
from reference_runs.printable import csv_cell
from suite.paths import whole_file
from suite.records.summary import LaunchSummary

Cell = str | int | float | bool | None
_FACTS = (
    *("id", "run", "started", "finished", "status", "message", "node", "machine", "device", "ranks", "layout"),
    *("compiled", "precision", "steps", "seed", "suite", "first_loss", "last_loss", "others_share", "steal_share"),
    *("profile", "path"),
)


def columns(launches: Sequence[LaunchSummary]) -> dict[str, list[Cell]]:
    """By name: facts, hashes, versions, figures; None where a launch has none. Times are seconds since 1970."""
    table: dict[str, list[Cell]] = {name: [getattr(launch, name) for launch in launches] for name in _FACTS}
    table["started_utc"] = [datetime.fromtimestamp(launch.started, UTC).isoformat() for launch in launches]
    for number, launch in enumerate(launches):
        facts = {f"hash.{name}": value for name, value in launch.hashes.items()}
        facts |= {f"software.{name}": value for name, value in launch.software.items()}
        cells: dict[str, Cell] = {**facts}
        for side, values in (("measured", launch.measured), ("predicted", launch.predicted)):
            cells |= {".".join((side, *filter(None, key))): value for key, value in values.items()}
        for name, value in cells.items():
            table.setdefault(name, [None] * len(launches))[number] = value
    return table


def written_csv(table: dict[str, list[Cell]], path: Path) -> None:
    """Write `path`, whole or not at all: a line of names, then a line a launch; empty where there is nothing.

    Raises:
        InputError: it cannot be written.
    """
    import pandas

    with _for_out(path) as temporary:  # as objects: integers of any size stay exact, and next to gaps too
        cells = {csv_cell(name): list(map(_cell, column)) for name, column in table.items()}
        pandas.DataFrame(cells, dtype=object).to_csv(temporary, index=False, lineterminator="\r\n")


def _cell(value: Cell) -> Cell:
    return csv_cell(value) if isinstance(value, str) else value


def written_parquet(table: dict[str, list[Cell]], path: Path) -> None:
    """Write `path`, whole or not at all; a figure is an integer where every value is one of 64 bits.

    Raises:
        InputError: pyarrow is not installed, or the file cannot be written.
    """
    try:
        # imported here: only this format needs it
        from pyarrow import ArrowInvalid, Table, array, float64
        from pyarrow.parquet import write_table
    except ImportError as error:
        raise InputError(
            "Parquet needs pyarrow, which is not installed", got="parquet", allowed="csv", where="--format"
        ) from error
    arrays = {}
    for name, cells in table.items():
        try:
            arrays[name] = array(cells)
        except (ArrowInvalid, OverflowError):  # integers beyond 64 bits, or among others
            arrays[name] = array([None if cell is None else float(cell) for cell in cells], float64())
    with _for_out(path) as temporary:
        write_table(Table.from_pydict(arrays), temporary)


@contextmanager
def _for_out(path: Path) -> Iterator[Path]:
    try:
        with whole_file(path) as temporary:
            yield temporary
    except OSError as error:
        raise InputError(f"cannot write the file: {error.strerror}", got=str(path), where="--out") from error
