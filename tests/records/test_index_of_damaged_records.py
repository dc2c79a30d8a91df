"""Two dozen kinds of damage: each is named, its record is left out, the others are used, the exit code says so."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from suite.__main__ import main
from suite.records.index import launches
from tests.support.timed_records import MEASURED, record

NOBODY = 65534


def written(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def replaced(old: bytes, new: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        data = path.read_bytes()
        assert re.search(old, data), old
        written(path, re.sub(old, new, data, count=1))

    return change


def directory_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def loop_instead(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere.json")


def pipe_instead(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def no_permission(path: Path) -> None:
    path.chmod(0)


def other_encoding(path: Path) -> None:
    written(path, path.read_text(encoding="utf-8").encode("utf-16"))


def latin_1_in_a_text_that_no_table_needs(path: Path) -> None:
    data = path.read_bytes()
    key = b'"source": "' if b'"source": "' in data else b'"log_tail": "'
    written(path, data.replace(key, key + "\u00e9".encode("latin-1"), 1))


# what is done to either half -> what the line about it says
OF_A_HALF: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (lambda path: written(path, path.read_bytes()[: path.stat().st_size // 2]), "damaged record: "),
    "one-byte-short": (lambda path: written(path, path.read_bytes().rstrip()[:-1]), "damaged record: "),
    "empty": (lambda path: written(path, b""), "damaged record: "),
    "zeros": (lambda path: written(path, bytes(4096)), "damaged record: "),
    "wrong-type": (replaced(rb'"(started|finished)": [0-9.]+', rb'"\1": "yesterday"'), "Expected `float`, got `str`"),
    "no-object": (lambda path: written(path, b"[1, 2]"), "damaged record: "),
    "nested-without-end": (lambda path: written(path, b"[" * 100_000), "damaged record: "),
    "not-a-number": (replaced(rb'"(started|finished)": [0-9.]+', rb'"\1": NaN'), "damaged record: "),
    "beyond-numbers": (replaced(rb'"(started|finished)": [0-9.]+', rb'"\1": 1e999'), "damaged record: "),
    "future-schema": (replaced(rb'"schema": "1[.]', rb'"schema": "2.'), "unknown schema version; got '2."),
    "schema-10": (replaced(rb'"schema": "1[.]', b'"schema": "10.'), "unknown schema version; got '10."),
    "earlier-schema": (replaced(rb'"schema": "1[.]', b'"schema": "0.'), "unknown schema version; got '0."),
    "field-missing": (replaced(rb'"id"', b'"di"'), "damaged record: "),
    "no-schema": (replaced(rb'"schema": "[^"]*",', b""), "unknown schema version; got ''"),
    "schema-of-another-type": (replaced(rb'"schema": "[^"]*"', b'"schema": 1'), "damaged record: "),
    "other-encoding": (other_encoding, "damaged record: "),
    "other-encoding-in-part": (latin_1_in_a_text_that_no_table_needs, "damaged record: "),
    "symlink-loop": (loop_instead, "Too many levels of symbolic links"),
    "symlink-to-nothing": (link_to_nothing, "No such file or directory"),
    "no-permission": (no_permission, "Permission denied"),
    "directory": (directory_instead, "Is a directory"),
    "named-pipe": (pipe_instead, "not a regular file"),
    "id-of-another": (replaced(rb'"id": "[^"]*"', b'"id": "another"'), "got 'another'"),
}


def same_id_in_another_run(path: Path) -> Path:
    copy = Path(shutil.copy(path, other_run(path)))
    replaced(rb'"run": "small"', b'"run": "other"')(copy)
    return path  # "other" comes before "small"


def copied_into_another_run(path: Path) -> Path:
    return Path(shutil.copy(path, other_run(path)))


def other_run(path: Path) -> Path:
    other = path.parent.parent / "other"
    other.mkdir(exist_ok=True)
    return other


def under_another_name(path: Path) -> Path:
    return path.rename(path.with_name(f"another{path.name}"))


def end_without_a_begin(path: Path) -> Path:
    path.unlink()
    return path.with_name(path.name.replace("begin", "end"))


OF_A_RECORD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "duplicate-id": (same_id_in_another_run, "the id of "),
    "copied-into-another-run": (copied_into_another_run, "its run is not the directory's name; got 'small'"),
    "under-another-name": (under_another_name, "its id is not the file's name"),
    "end-without-a-begin": (end_without_a_begin, "an end without its first half"),
}
USED = {"duplicate-id", "copied-into-another-run"}  # one copy of the record is whole
CASES = [*((name, half) for name in OF_A_HALF for half in ("begin", "end")), *((name, "") for name in OF_A_RECORD)]


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All modules that the commands need, before a user asks for them whom Python's own directory may refuse."""
    root = tmp_path_factory.mktemp("imported")
    record(root, measured=MEASURED, started=1000.0)
    (root / "records" / "small" / "x.begin.json").write_bytes(b"")
    for command in (["results", "list"], ["results", "check"], ["report", "--no-page"]):
        assert main([*command, "--results", str(root)]) == 2


@contextmanager
def records(count: int) -> Iterator[Path]:
    """So many records in a directory that every user may enter, read by a user whom permissions bind."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for number in range(count):
            record(root, measured=MEASURED, started=1000.0 * (number + 1))
        for path in (root, *root.rglob("*")):
            os.chown(path, NOBODY, NOBODY) if os.getuid() == 0 else None
        unprivileged = os.getuid() == 0
        if unprivileged:
            os.setresuid(NOBODY, NOBODY, 0)
        try:
            yield root
        finally:
            if unprivileged:
                os.setresuid(0, 0, 0)


@pytest.fixture
def results(imported: None) -> Iterator[Path]:
    """Three records."""
    with records(3) as root:
        yield root


def damage(path: Path, kind: str, half: str) -> tuple[Path, str]:
    """The file of a record, given by its first half, that was damaged; and what must be said of it."""
    if half:
        change, words = OF_A_HALF[kind]
        path = path.with_name(path.name.replace("begin", half))
        change(path)
        return path, words
    change_record, words = OF_A_RECORD[kind]
    return change_record(path), words


def test_each_damage_is_named_and_the_other_records_are_used(
    imported: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with records(len(CASES) + 2) as results:
        begins = sorted((results / "records" / "small").glob("*.begin.json"))
        whole = {path.name.removesuffix(".begin.json") for path in begins[len(CASES) :]}
        expected: dict[str, str] = {}
        for path, (kind, half) in zip(begins, CASES, strict=False):
            where, words = damage(path, kind, half)
            expected[str(where)] = words
            if kind in USED:
                whole.add(path.name.removesuffix(".begin.json"))
            if kind == "under-another-name":
                end = path.with_name(path.name.replace("begin", "end"))
                expected[str(end)] = OF_A_RECORD["end-without-a-begin"][1]

        found, bad = launches(results)
        lines = {str(error.where): str(error) for error in bad}
        assert len(lines) == len(bad)
        assert lines.keys() == expected.keys()
        assert [(path, lines[path]) for path, words in expected.items() if words not in lines[path]] == []
        assert {launch.id for launch in found} == whole

        assert main(["results", "list", "--json", "--results", str(results)]) == 2
        out, err = capsys.readouterr()
        assert [json.loads(entry)["id"] for entry in out.splitlines()] == [launch.id for launch in found]
        assert [line for line in lines.values() if f"left out: {line}" not in err] == []

        assert main(["report", "--no-page", "--results", str(results)]) == 2
        err = capsys.readouterr().err
        assert [line for line in lines.values() if f"left out: {line}" not in err] == []
        tables = (results / "TABLES.md").read_text(encoding="utf-8")
        ok = sum(launch.run == "small" and launch.status == "ok" for launch in found)
        assert re.search(rf"\| small \| 2 \| [^|]+ \| eager \| {ok} \|", tables)

        assert main(["results", "check", "--json", "--results", str(results)]) == 2
        checked = json.loads(capsys.readouterr().out)
        assert checked["whole"] == len(found)
        assert {entry["path"] for entry in checked["damaged"]} == expected.keys()


def test_damage_where_no_table_looks_is_found_by_check(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next((results / "records" / "small").glob("*.begin.json"))
    replaced(rb'"learning_rate": [0-9.e-]+', b'"learning_rate": "high"')(path)
    assert main(["results", "list", "--results", str(results)]) == 0
    capsys.readouterr()
    assert main(["results", "check", "--results", str(results)]) == 2
    assert f"{path}: damaged record: Expected `float`, got `str`" in capsys.readouterr().err


def test_records_that_cannot_be_looked_into_are_named(results: Path) -> None:
    (results / "records" / "closed").mkdir(mode=0)
    (results / "records" / "loop").symlink_to("loop")
    (results / "records" / "note.txt").write_text("no record", encoding="utf-8")
    found, bad = launches(results)
    assert len(found) == 3
    assert [str(error) for error in bad] == [
        f"{results / 'records' / 'closed'}: cannot read the records: Permission denied",
        f"{results / 'records' / 'loop'}: cannot read the records: Too many levels of symbolic links",
    ]


def test_a_file_in_place_of_all_records_is_named(tmp_path: Path) -> None:
    (tmp_path / "records").write_text("no directory", encoding="utf-8")
    found, bad = launches(tmp_path)
    assert not found
    assert [str(error) for error in bad] == [f"{tmp_path / 'records'}: cannot read the record: Not a directory"]


def test_damaged_records_go_on_request_and_then_all_is_well(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = damage(next((results / "records" / "small").glob("*.begin.json")), "truncated", "end")
    before = sorted(results.rglob("*.json"))
    assert main(["results", "prune", "--damaged", "--results", str(results)]) == 0
    assert sorted(results.rglob("*.json")) == before
    assert main(["results", "prune", "--damaged", "--yes", "--results", str(results)]) == 0
    stem = path.name.removesuffix(".end.json")
    assert sorted(results.rglob("*.json")) == [file for file in before if not file.name.startswith(stem)]
    assert main(["results", "list", "--results", str(results)]) == 0
    capsys.readouterr()
