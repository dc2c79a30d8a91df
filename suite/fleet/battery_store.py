"""The columnar store itself: its files, their columns, and the database that reads and writes them.

Apart from what takes records in, which imports more: a question is answered in the time that Python and DuckDB start.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from reference_runs.errors import InputError
from suite.machine.devices import usable_cores
from suite.machine.packages import require

STORE = "fleet-store"
BATTERIES, FLEETS = "batteries", "fleets"
_HASH = re.compile(r"[0-9a-f]{1,64}", re.ASCII)
_BETWEEN = re.compile(r"-([0-9a-f]+)\.\.([0-9a-f]+)-[0-9a-f]+\.parquet$")
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
    require("duckdb")
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


def parts(store: Path, kind: str, nodes: Collection[str] | None = None) -> list[str]:
    """The Parquet files of a kind that are whole; with `nodes` those that may have one of them, by their names."""
    found = sorted(str(path) for path in store.glob(f"{kind}-*.parquet"))
    return found if nodes is None else [path for path in found if _may_have(path, nodes)]


def part_name(kind: str, nodes: Collection[str]) -> str:
    """A new name: KIND-FIRST..LAST-TOKEN.parquet with the least and greatest of the nodes, where all are hashes."""
    between = f"{min(nodes)}..{max(nodes)}-" if nodes and all(_HASH.fullmatch(node) for node in nodes) else ""
    return f"{kind}-{between}{secrets.token_hex(8)}.parquet"


def _may_have(path: str, nodes: Collection[str]) -> bool:
    named = _BETWEEN.search(path)
    return named is None or any(named[1] <= node <= named[2] for node in nodes)


def empty_columns(kind: str) -> str:
    """The columns of a kind of which nothing is stored, for SQL."""
    return ", ".join(f"{name} {type_}" for name, type_ in COLUMNS[kind].items())
