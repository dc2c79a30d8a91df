"""Tables as people write them are read today as they were read when odd_tables.json was written.

odd_tables.toml has the tables, each with what it shows; odd_tables.json what is read of each row: the first as it
differs from that of the table "plain", the others as they differ from the first. After a wanted change
`python -m tests.reference_runs.test_published_of_odd_tables` writes it anew: read the difference and commit both.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from reference_runs.catalog import reference_run, run_names
from reference_runs.errors import InputError
from reference_runs.published import PublishedRow, PublishedTable, load_table
from reference_runs.published_as_written import canonical_table, canonical_text

TABLES = tomllib.loads(Path(__file__).with_name("odd_tables.toml").read_text(encoding="utf-8"))
READ = Path(__file__).with_name("odd_tables.json")


RECORDED = {name: reference_run(name).architecture for name in run_names()}


def loaded(table: dict[str, Any], directory: Path) -> PublishedTable:
    path = directory / table.get("file", "own.csv")
    path.write_text(table["text"], encoding="utf-8", newline="")
    return load_table(path)


def said(row: PublishedRow) -> dict[str, Any]:
    """All that is known of a row, each field under a name of its own."""
    known = msgspec.to_builtins(row)
    if recorded := next((name for name, shape in RECORDED.items() if shape == row.architecture), None):
        known["architecture"] = {"is that of": recorded}
    known["assumed"] = folded(row.assumed)
    parts = {name: known.pop(name) for name in ("architecture", "recipe", "layout")}
    return known | {f"{part}.{field}": value for part, fields in parts.items() for field, value in fields.items()}


def folded(notes: Sequence[str]) -> list[str]:
    """The notes, those of cells that are as another table or run has them in one: "layers, hidden as bloom-176b"."""
    short: list[str] = []
    for note in notes:
        column, _, rest = note.partition(" = ")
        where = rest.partition(" as ")[2]
        if where and short and short[-1].endswith(f" as {where}"):
            short[-1] = f"{short[-1].removesuffix(f' as {where}')}, {column} as {where}"
        else:
            short.append(f"{column} as {where}" if where else note)
    return short


def differences(row: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The fields of a row that are not the other's; of the assumptions those that it has more or less."""
    changed = {name: value for name, value in row.items() if value != other.get(name, "absent") and name != "assumed"}
    gone = [name for name in other if name not in row and not name.startswith("architecture.")]
    changed |= dict.fromkeys(gone, "absent")
    lines = difflib.unified_diff(other["assumed"], row["assumed"], lineterm="", n=0)
    notes = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
    return changed | ({"assumed": notes} if notes else {})


def all_rows(table: PublishedTable) -> list[PublishedRow | None]:
    """Each row of the table's file, counted or not; None where it is none."""
    rows = {row.line: row for row in table.rows} | {each.line: each.row for each in table.skipped}
    return [row for _, row in sorted(rows.items())]


def reading(table: dict[str, Any], plain: dict[str, Any], directory: Path) -> list[Any]:
    """Reading of a table: columns that are not read, conventions, and each row or why it is none."""
    try:
        found = loaded(table, directory)
    except InputError as error:
        return [{"refused": re.sub(r"(allowed: .{60}).*", r"\1...", str(error).replace(f"{directory}/", ""))}]
    read: list[Any] = []
    first: dict[str, Any] = {}
    if found.unread or found.facts.conventions:
        read.append({"unread": list(found.unread), "conventions": list(found.facts.conventions)})
    rows = {row.line: (row, "") for row in found.rows} | {each.line: (each.row, each.reason) for each in found.skipped}
    for line, (row, reason) in sorted(rows.items()):
        why = {"line": line} | ({"skipped": re.sub(r"(allowed: .{60}).*", r"\1...", reason)} if reason else {})
        if row is None:
            read.append(why)
            continue
        read.append(why | differences(said(row), first or plain))
        first = first or said(row)
    return read


def readings(directory: Path) -> dict[str, list[Any]]:
    plain = said(loaded(TABLES["plain"], directory).rows[0])
    odd = {name: reading(table, plain, directory) for name, table in TABLES.items() if name != "plain"}
    return json.loads(json.dumps({"plain": [plain]} | odd))


def test_odd_tables_are_read_as_they_were(tmp_path: Path) -> None:
    expected, found = json.loads(READ.read_text(encoding="utf-8")), readings(tmp_path)
    assert found.keys() == expected.keys()
    wrong = [
        f"{name} (shows {TABLES[name]['shows']}): {before} is now {now}"
        for name, read in found.items()
        for before, now in itertools.zip_longest(expected[name], read)
        if before != now
    ]
    assert wrong == []


def test_the_canonical_form_of_a_table_is_read_as_the_table_without_its_notes(tmp_path: Path) -> None:
    wrong, compared = [], 0
    for name, table in TABLES.items():
        try:
            found = all_rows(loaded(table, tmp_path))
        except InputError:
            continue
        canonical = canonical_table(tmp_path / table.get("file", "own.csv"))
        again = all_rows(loaded(table | {"text": canonical_text(canonical, "table")}, tmp_path))
        for written, before, now in zip(canonical.rows, found, again, strict=True):
            compared += 1
            if before is None or now is None or written.unread:
                wrong += [] if before is now is None else [(name, written)]
            elif now != msgspec.structs.replace(before, line=now.line, assumed=before.assumed[len(written.notes) :]):
                wrong.append((name, written))
    assert wrong == []
    assert compared > 800


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        blocks = {name: ",\n".join(map(json.dumps, read)) for name, read in readings(Path(scratch)).items()}
    text = ",\n".join(f"{json.dumps(name)}: [\n{rows}\n]" for name, rows in blocks.items())
    READ.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")
