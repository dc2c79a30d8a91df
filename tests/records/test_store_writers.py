"""Many writers, killed at random, while tables are built: nothing that was reported as stored is lost or torn."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from suite.paths import ROOT
from suite.records import store
from suite.records.index import launches
from suite.report.markdown.step_times import step_tables, step_times
from tests.support.file_systems import KINDS, directory_on
from tests.support.record_halves import begin, end


def test_writers_that_are_killed_at_random_lose_and_tear_nothing_that_was_reported(tmp_path: Path) -> None:
    check_writers(4, 8, tmp_path, tmp_path / "results")


@pytest.mark.rare
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_sixteen_writers_lose_and_tear_nothing_on_file_systems_of_each_kind(kind: str, tmp_path: Path) -> None:
    with directory_on(kind, tmp_path) as place:
        check_writers(16, 200, tmp_path, place / "results")


def check_writers(writers: int, each: int, scratch: Path, results: Path) -> None:
    """Let so many writers write so many records each, be killed at random, and read all the while."""
    logs = scratch / "logs"
    logs.mkdir()
    (logs / "begin.json").write_bytes(msgspec.json.encode(begin(run="small")))
    command = [sys.executable, "-m", "tests.support.record_writers", *map(str, (results, logs, writers, each, 1))]
    process = subprocess.Popen(command, cwd=ROOT)
    tables, damaged, most = 0, [], 0
    try:
        while process.poll() is None:
            found, bad = launches(results)
            step_tables(step_times(found))
            tables, damaged, most = tables + 1, damaged + bad, max(most, len(found))
    finally:
        process.kill()
    assert process.wait() == 0
    lines = [line.split() for log in logs.glob("*.log") for line in log.read_text(encoding="ascii").splitlines()]
    reported = {line[1]: line[2] for line in lines if line[0] == "stored"}
    opened = {line[1] for line in lines if line[0] == "opened"}
    found, bad = launches(results)
    status = {launch.id: launch.status for launch in found}
    assert not damaged
    assert not bad
    assert tables  # read while they wrote
    assert len(reported) >= writers * each
    assert {status.get(identity) for identity in reported} == {"ok"}
    assert opened <= status.keys()
    assert {status[identity] for identity in status.keys() - reported.keys()} <= {"crashed", "ok"}
    for identity, digest in reported.items():
        whole = store.read(results / "records" / "small" / f"{identity}.begin.json")
        assert whole.end is not None
        assert hashlib.sha256(whole.end.log_tail.encode()).hexdigest() == whole.end.message == digest
    kills = int((logs / "kills").read_text(encoding="ascii"))
    print(f"{len(reported)} stored, {len(status)} begun, {kills} kills, {tables} tables of up to {most} launches")
    assert kills >= 2 * writers
    hidden = [path for path in (results / "records" / "small").iterdir() if path.name.startswith(".")]
    for path in hidden:
        os.utime(path, (time.time() - 2 * 86400,) * 2)
    store.Opened(results / "records" / "small", last := begin(run="small")).close(end(last.id))
    left = {path.name for path in (results / "records" / "small").iterdir() if path.name.startswith(".")}
    assert not left
