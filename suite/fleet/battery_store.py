"""The columnar store itself: its files, their columns, and the database that reads and writes them.

Apart from what takes records in, which imports more: a question is answered in the time that Python and DuckDB start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reference_runs.errors import InputError
from suite.machine.devices import usable_cores
from suite.machine.packages import described, lacking

STORE = "fleet-store"
BATTERIES, FLEETS = "batteries", "fleets"
COLUMNS = {
    BATTERIES: {
        "file": "VARCHAR",
        "id": "VARCHAR",
        "node": "VARCHAR",
        "finished": "DOUBLE",
        "verdict": "VARCHAR",
        "part": "VARCHAR",
        "evidence": "VARCHAR",
        "siblings": "VARCHAR",
        "hardware": "VARCHAR",
        "firmware": "VARCHAR",
        "figures": 'STRUCT("name" VARCHAR, "value" DOUBLE, "unit" VARCHAR)[]',
    },
    FLEETS: {
        "file": "VARCHAR",
        "finished": "DOUBLE",
        "name": "VARCHAR",
        "verdict": "VARCHAR",
        "part": "VARCHAR",
        "evidence": "VARCHAR",
        "rack": "VARCHAR",
        "battery": "VARCHAR",
    },
}


def database() -> Any:
    """A connection to an empty database in memory: one core, because each process has its own.

    Raises:
        InputError: DuckDB is not installed.
    """
    return _duckdb().connect(config={"threads": usable_cores(), "memory_limit": "1GB"})


def _duckdb() -> Any:
    if lacking(["duckdb"]):
        raise InputError(f"packages are missing: {described(lacking(['duckdb']))}")
    import duckdb

    return duckdb


@contextlib.contextmanager
def usable(store: Path) -> Iterator[None]:
    """Within it, what DuckDB cannot do with the store's files is one line.

    Raises:
        InputError: a file is damaged, unreadable, or of something else; or DuckDB is not installed.
    """
    errors = _duckdb().Error
    try:
        yield
    except errors as error:
        words = str(error).splitlines()[0]
        allowed = "a store of fleet report; delete a damaged one, and the next report makes it anew"
        raise InputError(f"cannot use the store: {words}", got=str(store), allowed=allowed, where="--store") from error


def parts(store: Path, kind: str) -> list[str]:
    """The Parquet files of a kind that are whole."""
    return sorted(str(path) for path in store.glob(f"{kind}-*.parquet"))


def empty_columns(kind: str) -> str:
    """The columns of a kind of which nothing is stored, for SQL."""
    return ", ".join(f"{name} {type_}" for name, type_ in COLUMNS[kind].items())
