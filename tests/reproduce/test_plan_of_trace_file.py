"""What is refused of --trace: in one line, before anything starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reference_runs.errors import InputError
from suite.job.events import memory_snapshot_path, trace_path
from suite.paths import ROOT
from suite.reproduce.checked_options import checked_trace


def refused(tmp_path: Path, *arguments: str) -> str:
    """The one line that the command says, with exit code 2 and nothing stored."""
    command = [sys.executable, "-m", "suite", "reproduce", "gpt2-mini", "--device", "cpu", "--ranks", "2", *arguments]
    done = subprocess.run(
        [*command, "--results", str(tmp_path / "results")], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert not (tmp_path / "results").exists()
    (line,) = done.stderr.splitlines()
    return line.removeprefix("error: ")


def test_a_directory_that_is_missing_is_refused(tmp_path: Path) -> None:
    line = refused(tmp_path, "--trace", str(tmp_path / "nowhere" / "a.json"))
    assert line == f"--trace: no such directory; got {tmp_path}/nowhere, allowed: a directory that exists"


@pytest.mark.skipif(os.geteuid() == 0, reason="NOT RUN: the superuser may write everywhere")
def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    line = refused(tmp_path, "--trace", str(tmp_path / "closed" / "a.json"))
    assert line == f"--trace: cannot write there; got {tmp_path}/closed, allowed: a writable directory"


@pytest.mark.parametrize("name", ["a.json", "a.rank1.json"])
def test_a_file_of_any_rank_that_exists_is_refused_and_kept(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    line = refused(tmp_path, "--trace", str(tmp_path / "a.json"))
    assert line == f"--trace: the file exists, and is not overwritten; got {tmp_path}/{name}, allowed: a new name"
    assert (tmp_path / name).read_text() == "mine"


def test_other_names_too_few_steps_and_several_launches_are_refused(tmp_path: Path) -> None:
    file = str(tmp_path / "a.json")
    lines = [
        refused(tmp_path, "--trace", str(tmp_path / "a.txt")),
        refused(tmp_path, "--trace", file, "--steps", "7"),
        refused(tmp_path, "--trace", file, "--launches", "2"),
    ]
    assert lines == [
        f"--trace: not a trace's name; got {tmp_path}/a.txt, allowed: a file ending in .json",
        "--trace: too few steps to profile any; got --steps 7, allowed: 8 or more",
        "--trace: a trace is of one launch; got --launches 2, allowed: 1",
    ]


def test_ranks_have_files_of_their_own() -> None:
    assert [trace_path("/x/a.b.json", rank) for rank in (0, 1, 12)] == [
        "/x/a.b.json",
        "/x/a.b.rank1.json",
        "/x/a.b.rank12.json",
    ]
    assert memory_snapshot_path("/x/a.json", 1) == "/x/a.rank1.json.memory.pickle"


def test_a_memory_snapshot_that_exists_is_refused_where_one_would_be_written(tmp_path: Path) -> None:
    (tmp_path / "a.json.memory.pickle").touch()
    assert checked_trace(tmp_path / "a.json", ranks=1, device="cpu", steps=8) == tmp_path / "a.json"
    with pytest.raises(InputError, match="the file exists"):
        checked_trace(tmp_path / "a.json", ranks=1, device="cuda", steps=8)
