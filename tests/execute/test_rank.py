"""Which rank is at fault, by its exception; and how a rank ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from suite.execute.rank import failure
from suite.job.events import Event, Phase, Status
from suite.paths import ROOT


@pytest.mark.parametrize(
    ("message", "line", "at_fault"),
    [
        ("CUDA error: an illegal memory access was encountered\nCompile with", "CUDA error: an illegal", True),
        ("NCCL error in: x.cpp:1, remote process exited", "NCCL error in: x.cpp:1, remote process exited", False),
        # a collective was only the first to see what happened on this rank's own device
        (
            "NCCL error in: x.cpp:1, unhandled cuda error\nLast error:\nCuda failure 700 'an illegal memory access'",
            "unhandled cuda error: Cuda failure 700 'an illegal memory access'",
            True,
        ),
        ("Connection closed by peer [127.0.0.1]:1", "Connection closed by peer", False),
        ("mat1 and mat2 shapes cannot be multiplied", "mat1 and mat2", True),
    ],
)
def test_an_error_of_its_own_device_is_a_ranks_own_fault(message: str, line: str, at_fault: bool) -> None:
    failed = failure(RuntimeError(message))
    assert (failed.status, failed.at_fault) == (Status.CRASHED, at_fault)
    assert line in failed.message
    assert "\n" not in failed.message


def test_what_a_pipeline_wraps_is_reported_as_what_it_is() -> None:
    """PyTorch's schedules raise a RuntimeError whose text begins with an empty line, from what a stage raised."""
    wrapped = RuntimeError("\n            [Stage 1] failed to run forward")
    wrapped.__cause__ = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.54 GiB")
    failed = failure(wrapped)
    assert failed.status is Status.OUT_OF_MEMORY
    assert failed.message == "OutOfMemoryError: CUDA out of memory. Tried to allocate 1.54 GiB"
    assert "[Stage 1] failed to run forward" in failed.traceback


LEAVES = """
import atexit, os, sys, threading, time
from suite.execute.rank import Reporter, leave
from suite.job.events import Phase
atexit.register(os.abort)  # a plain exit is aborted, as by threads of gloo and autograd
threading.Thread(target=time.sleep, args=(600,)).start()  # and waits for what still runs
Reporter(sys.argv[1])(Phase("the last", 1.0))
sys.stdout.write("said without an end of line")
leave(3)
"""


def test_a_rank_ends_with_its_own_code_its_last_event_and_all_that_it_said(tmp_path: Path) -> None:
    events = tmp_path / "events"
    command = [sys.executable, "-c", LEAVES, str(events)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "said without an end of line"), done.stderr
    assert [msgspec.json.decode(line, type=Event) for line in events.read_bytes().splitlines()] == [
        Phase("the last", 1.0)
    ]
