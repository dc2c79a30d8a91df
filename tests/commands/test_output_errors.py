"""Whatever cannot be written or is not installed is a line, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from suite.paths import ROOT

FULL = "error: cannot write the output: No space left on device\n"
COMMANDS = ("runs", "predict bloom-176b", "--help")  # by print, by rich, and by typer


def shell(command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A shell command in which $SUITE is `python -m suite`."""
    suite = f"{sys.executable} -m suite"
    environment = os.environ | {"SUITE": suite, "PYTHONPATH": str(ROOT)} | variables
    return subprocess.run(["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_full_disk_is_one_line_and_a_reader_that_leaves_no_error(arguments):
    done = shell(f"$SUITE {arguments} > /dev/full")
    assert (done.returncode, done.stderr) == (4, FULL)
    done = shell(f"$SUITE {arguments} | true; exit ${{PIPESTATUS[0]}}")
    assert done.returncode in (0, 141)  # the reader may have left after all was written
    assert done.stderr == ""


def test_an_encoding_without_bars_prints_what_it_has():
    done = shell("$SUITE predict bloom-176b", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "####" in done.stdout


def test_closed_outputs_change_no_exit_code():
    assert shell("$SUITE runs >&-").returncode == 0
    assert shell("$SUITE nonsense 2>&-").returncode == 2
    assert shell("$SUITE nonsense 2> /dev/full").returncode == 2


def test_a_python_without_the_dependencies_is_told_how_to_get_them():
    done = shell(f"{sys.executable} -S -m suite runs")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {sys.executable} lacks ")
    assert done.stderr.count("\n") == 1


@pytest.mark.ranks
def test_a_launch_whose_result_cannot_be_printed_is_one_line_and_keeps_its_record(tmp_path):
    options = f"gpt2-mini --device cpu --ranks 1 --steps 6 --no-calibrate --results {tmp_path}"
    done = shell(f"$SUITE reproduce {options} > /dev/full")
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1] == FULL.rstrip()
    assert "Traceback" not in done.stderr
