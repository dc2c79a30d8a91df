"""All batteries and fleets below a directory in one columnar store: Parquet files, which DuckDB writes and reads.

A Parquet file holds up to 20,000 records, is written under another name, and gets its own by a rename: many writers may
share the store over a network file system. Records that two of them took at the same time are in it twice, which no
query counts twice. The store holds nothing that the records do not: it may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from reference_runs.errors import InputError
from reference_runs.regular_file import json_of
from suite.fleet import fleet_record
from suite.fleet.battery_store import BATTERIES, COLUMNS, FLEETS, database, part_name, parts, usable
from suite.machine.devices import usable_cores
from suite.records.battery import (
    BatteryBegin,
    BatteryEnd,
    CheckFinding,
    compared_values,
    directories,
    has_batteries,
    read_half,
    worst_of,
)
from suite.records.in_processes import in_processes
from suite.records.record import BEGIN, END, contents, partial
from suite.stored_words import FLEET, in_todays_words

PART_RECORDS = 20_000
ROW_GROUP = 2048  # rows, of which a query of one node reads few: DuckDB's least
_EVIDENCE_LETTERS = 200
_FINDING = partial(CheckFinding, "check", "verdict", "subject", "measured", "unit", "part", "evidence", "compared_as")
_BATTERY = partial(BatteryEnd, "schema", "id", "node", "finished", "decision", "hashes", "options", findings=[_FINDING])
_FIRST_HALF = partial(BatteryBegin, "hardware", "software")


class Ingested(NamedTuple):
    """How many records were new, and why others are left out, each with its file."""

    new: int
    left_out: list[str]


def ingest(results: Path, store: Path) -> Ingested:
    """Take into the store what is not in it yet.

    Raises:
        InputError: the store cannot be written or read, or DuckDB is not installed.
    """
    new: dict[str, list[str]] = {BATTERIES: [], FLEETS: []}
    known = {kind: _known(store, kind) for kind in new}
    for kind, file in _records(str(results)):
        if file not in known[kind]:
            new[kind].append(file)
    known.clear()
    new[BATTERIES].sort(key=_by_node)
    chunks = [
        (str(results), str(store), kind, files[first : first + PART_RECORDS])
        for kind, files in new.items()
        for first in range(0, len(files), PART_RECORDS)
    ]
    if not chunks:
        return Ingested(0, [])
    try:
        with usable(store):
            store.mkdir(parents=True, exist_ok=True)
            left_out = _all_written(chunks)
    except OSError as error:
        raise InputError(f"cannot write the store: {error.strerror}", got=str(store), where="--store") from error
    return Ingested(sum(map(len, new.values())) - len(left_out), left_out)


def _all_written(chunks: Sequence[tuple[str, str, str, list[str]]]) -> list[str]:
    processes = min(len(chunks), usable_cores()) if len(chunks) > 2 else 1  # else one of each kind, or one alone
    return [words for left_out in in_processes(_written, chunks, processes=processes) for words in left_out]


def _known(store: Path, kind: str) -> set[str]:
    files = parts(store, kind)
    if not files:
        return set()
    with usable(store), database() as connection:
        return {row[0] for row in connection.execute("SELECT file FROM read_parquet(?)", [files]).fetchall()}


def _records(results: str) -> Iterator[tuple[str, str]]:
    """Kind and path below `results` of every record: NAME.end.json in acceptance/, fleet/ID/end.json."""
    for place, files in directories(results):
        below = os.path.relpath(place, results)
        if has_batteries(place):
            yield from ((BATTERIES, f"{below}/{name}") for name in files if name.endswith(END))
        elif "end.json" in files and Path(place).parent.name == "fleet":
            yield FLEETS, f"{below}/end.json"


def _by_node(file: str) -> list[str]:
    """TIME__NODE__ID by node, so that few Parquet files have records of one node."""
    name = file.rpartition("/")[2].split("__")
    return [*name[1:2], *name]


def _written(chunk: tuple[str, str, str, list[str]]) -> list[str]:
    """Write a Parquet file of some records; why some are left out."""
    results, store, kind, files = chunk
    left_out: list[str] = []
    half = Path(store, f".{kind}-{secrets.token_hex(8)}.parquet")
    rows = half.with_suffix(".json")
    nodes: set[str] = set()
    written = 0
    try:
        with rows.open("wb") as lines:
            for file in files:
                try:
                    entries = _battery(results, file) if kind == BATTERIES else _fleet(results, file)
                    encoded = [msgspec.json.encode(entry) + b"\n" for entry in entries]
                except UnicodeEncodeError:
                    left_out.append(f"{results}/{ascii(file)[1:-1]}: the name is no UTF-8")
                    continue
                except InputError as error:
                    left_out.append(str(error))
                    continue
                lines.writelines(encoded)
                nodes |= {str(entry.get("node", "")) for entry in entries}
                written += len(encoded)
        if written:
            _parquet(kind, rows, half)
            half.rename(Path(store, part_name(kind, nodes)))
    finally:
        for path in (rows, half):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    return left_out


def _parquet(kind: str, rows: Path, half: Path) -> None:
    columns = ", ".join(f"'{name}': '{type_}'" for name, type_ in COLUMNS[kind].items())
    order = "node, finished" if kind == BATTERIES else "name, finished"
    with database() as connection:
        connection.execute("SET threads = 1; SET memory_limit = '500MB'; SET preserve_insertion_order = false")
        source = f"read_json({_quoted(rows)}, format = 'newline_delimited', columns = {{{columns}}})"
        target = f"{_quoted(half)} (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP})"
        connection.execute(f"COPY (SELECT * FROM {source} ORDER BY {order}) TO {target}")


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _battery(results: str, file: str) -> list[dict[str, object]]:
    """One battery as a row.

    Raises:
        InputError: it cannot be read, is damaged, or of another major schema version.
    """
    path = f"{results}/{file}"
    end = read_half(path, _BATTERY)
    begin_path = path.removesuffix(END) + BEGIN  # which only says what the node is made of: it may be deleted
    begin = read_half(begin_path, _FIRST_HALF, any_version=True) if os.path.lexists(begin_path) else None
    hardware, software = ({}, {}) if begin is None else (begin.hardware, begin.software)
    worst = worst_of(end.findings)
    device, ranks = end.options.get("device", ""), end.options.get("ranks", "")
    return [
        {
            "file": file,
            "id": end.id,
            "node": end.node,
            "finished": end.finished,
            "verdict": end.decision.value,
            "part": worst.part or worst.subject if worst else "",
            "evidence": worst.evidence[:_EVIDENCE_LETTERS] if worst else "",
            "siblings": f"{end.hashes.get('hardware', '')} {device} {ranks}",
            "hardware": f"{hardware.get('cpu', '')}, GPUs {hardware.get('gpus', '')}" if software else "",
            "firmware": f"driver {software.get('driver', '')}, {software.get('system', '')}" if software else "",
            "figures": [
                {"name": f"{finding.check} {finding.compared_as}", "value": value, "unit": finding.unit}
                for finding, value in compared_values(end.findings)
            ],
        }
    ]


def _fleet(results: str, file: str) -> list[dict[str, object]]:
    """One fleet as a row a node; nodes that did not run say nothing.

    Raises:
        InputError: it cannot be read, or is damaged.
    """
    path = f"{results}/{file}"
    try:
        end = json_of(in_todays_words(contents(path), FLEET), fleet_record.FleetEnd)
    except msgspec.MsgspecError as error:
        raise InputError(f"damaged record of a fleet: {error}", where=path) from error
    return [
        {
            "file": file,
            "finished": end.finished,
            "name": row.node,
            "verdict": row.verdict,
            "part": row.part,
            "evidence": row.evidence[:_EVIDENCE_LETTERS],
            "rack": row.switch,
            "battery": row.battery,
        }
        for row in end.rows
    ]
