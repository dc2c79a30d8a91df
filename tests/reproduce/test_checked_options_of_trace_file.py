"""Refusals of --trace: in one line, before anything starts."""

from __future__ import annotations

import os

import pytest

from reference_runs.errors import InputError
from suite.__main__ import main
from suite.job.events import memory_snapshot_path, trace_path
from suite.reproduce.checked_options import checked_trace


@pytest.fixture
def refused(tmp_path, capsys):
    """A function that runs `reproduce` of two ranks: its one line, with exit code 2 and nothing stored."""

    def run(*arguments):
        results = tmp_path / "results"
        typed = ["reproduce", "gpt2-mini", "--device", "cpu", "--ranks", "2", *arguments, "--results", str(results)]
        assert main(typed) == 2
        out, err = capsys.readouterr()
        assert (out, results.exists()) == ("", False)
        (line,) = err.splitlines()
        return line.removeprefix("error: ")

    return run


@pytest.mark.skipif(os.geteuid() == 0, reason="NOT RUN: the superuser may write everywhere")
def test_a_directory_that_cannot_be_written_is_refused(tmp_path, refused):
    (tmp_path / "closed").mkdir(mode=0o500)
    line = refused("--trace", str(tmp_path / "closed" / "a.json"))
    assert line == f"--trace: cannot write there; got {tmp_path}/closed, allowed: a writable directory"


def test_a_file_of_any_rank_that_exists_is_refused_and_kept(tmp_path, refused):
    for name in ("a.json", "a.rank1.json"):
        (tmp_path / name).write_text("mine")
        line = refused("--trace", str(tmp_path / "a.json"))
        words = f"--trace: the file exists, and is not overwritten; got {tmp_path}/{name}, allowed: a new name"
        assert line == f"{words}, or --force"
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()


def test_other_names_too_few_steps_and_several_launches_are_refused(tmp_path, refused):
    file = str(tmp_path / "a.json")
    lines = [
        refused("--trace", str(tmp_path / "nowhere" / "a.json")),
        refused("--trace", str(tmp_path / "a.txt")),
        refused("--trace", file, "--steps", "7"),
        refused("--trace", file, "--launches", "2"),
    ]
    assert lines == [
        f"--trace: no such directory; got {tmp_path}/nowhere, allowed: a directory that exists",
        f"--trace: not a trace's name; got {tmp_path}/a.txt, allowed: a file ending in .json",
        "--trace: too few steps to profile any; got --steps 7, allowed: 8 or more",
        "--trace: a trace is of one launch; got --launches 2, allowed: 1",
    ]


def test_ranks_have_files_of_their_own():
    assert [trace_path("/x/a.b.json", rank) for rank in (0, 1, 12)] == [
        "/x/a.b.json",
        "/x/a.b.rank1.json",
        "/x/a.b.rank12.json",
    ]
    assert memory_snapshot_path("/x/a.json", 1) == "/x/a.rank1.json.memory.pickle"


def test_a_memory_snapshot_that_exists_is_refused_where_one_would_be_written(tmp_path):
    (tmp_path / "a.json.memory.pickle").touch()
    assert checked_trace(tmp_path / "a.json", ranks=1, device="cpu", steps=8) == tmp_path / "a.json"
    with pytest.raises(InputError, match="the file exists"):
        checked_trace(tmp_path / "a.json", ranks=1, device="cuda", steps=8)
