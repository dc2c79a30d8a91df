"""A rank whose GPU fails ends its launch: exit code 4, bounded time, the rank and the error named, no process left."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from suite.__main__ import main
from suite.paths import ROOT
from tests.simulated_cuda.environment import simulated_environment

pytestmark = pytest.mark.ranks

COMMAND = (
    "reproduce",
    "gpt2-mini",
    "--device",
    "cuda",
    "--ranks",
    "2",
    "--steps",
    "6",
    "--no-calibrate",
    "--no-compile",
)
MOST_SECONDS = 300  # the launch itself takes 30 s on 2 cores; 90 s without progress are a hang
FAULTS = {
    "ecc@device=1,launch=3000": ("crashed", "rank 1.*uncorrectable ECC error encountered"),
    "illegal_access@device=1,launch=3000": ("crashed", "rank 1.*an illegal memory access was encountered"),
    "lost@device=1,launch=3000": ("crashed", "rank 1.*unknown error"),
    "out_of_memory@device=1,allocation=12": ("oom", "rank 1.*out of memory"),
    "hang@device=1,collective=12": ("hang", "rank 1"),
}


def processes_that_name(text: str) -> list[str]:
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if text in line and "suite" in line]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "fault", [fault if fault.startswith("ecc") else pytest.param(fault, marks=pytest.mark.long) for fault in FAULTS]
)
def test_a_failing_gpu_ends_the_launch_and_is_named(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, words = FAULTS[fault]
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "suite", *COMMAND, "--results", str(tmp_path)],
        env=simulated_environment(2, faults=fault),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * MOST_SECONDS,
        check=False,
    )
    assert done.returncode == 4, done.stdout + done.stderr
    assert time.monotonic() - begun < MOST_SECONDS
    assert processes_that_name(str(tmp_path)) == []
    line = re.sub(r"\s+", " ", done.stdout + done.stderr)
    assert re.search(rf"gpt2-mini: {status}: .*{words}", line), line
    assert main(["results", "show", "latest", "--results", str(tmp_path)]) == 0
    assert status in capsys.readouterr().out  # and the record says so
