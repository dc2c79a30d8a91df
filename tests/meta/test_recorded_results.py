"""The project's own results: whole, of runs that the suite knows, and the tables are what the records say."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from suite.__main__ import main
from suite.machine.profile import read
from suite.paths import RECORDED, RECORDED_H100, RESULTS, stores
from suite.records.index import launches
from suite.records.query import record_path

BOTH = pytest.mark.parametrize("store", [RECORDED, RECORDED_H100], ids=lambda store: store.name)


@BOTH
def test_the_committed_tables_are_made_of_the_committed_records_byte_for_byte(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--no-page", "--results", str(store), "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert (tmp_path / "TABLES.md").read_bytes() == (store / "TABLES.md").read_bytes()


@BOTH
def test_they_have_launches_a_whole_profile_and_kernels_and_nothing_damaged(store: Path) -> None:
    known, damaged = launches(store)
    assert damaged == []
    assert {launch.status for launch in known} <= {"ok", "oom"}
    assert not any(read(path).partial for path in (store / "machines").glob("*.json"))
    for directory in ("machines", "kernels"):
        assert any((store / directory).rglob("*.json")), directory


def test_there_is_a_battery() -> None:
    assert any((RECORDED / "acceptance").rglob("*.json"))


def test_they_are_read_with_the_default_results_directory_alone(tmp_path: Path) -> None:
    assert stores(RESULTS) == [RESULTS, RECORDED, RECORDED_H100]
    assert stores(RESULTS / ".." / "results") == [RESULTS / ".." / "results", RECORDED, RECORDED_H100]
    assert stores(RECORDED) == [RECORDED]
    assert stores(tmp_path) == [tmp_path]


@BOTH
def test_no_result_names_a_path_of_the_machine_that_made_it(store: Path) -> None:
    absolute = re.compile(r"""["' :](?:/(?:tmp|root|home|work|var|mnt)|[A-Z]:)[/\\][^"]*""")
    for path in store.rglob("*.json"):
        assert absolute.findall(path.read_text(encoding="utf-8")) == [], path


def test_a_record_in_both_stores_counts_once_and_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(RECORDED / "records", tmp_path / "records")
    monkeypatch.setattr("suite.records.index.stores", lambda results: [results, RECORDED])
    monkeypatch.setattr("suite.records.query.stores", lambda results: [results, RECORDED])
    known, damaged = launches(tmp_path)
    assert damaged == []
    assert len(known) == len(launches(RECORDED)[0]) == len(launches(tmp_path / "empty")[0])
    assert launches(tmp_path / "empty", recorded=False) == ([], [])
    assert record_path(tmp_path, known[0].id).is_relative_to(tmp_path)
