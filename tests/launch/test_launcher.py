"""Why a launch failed, of ranks that could not say so."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

import pytest

from suite.acceptance import measurements
from suite.acceptance.presets import EFFORTS
from suite.job.events import Status
from suite.launch import launcher
from suite.launch.launcher import LaunchOutcome, cuda_allocator, launch
from tests.machine.test_gpu import WATCHDOG

SUMMARY = """
Root Cause (first observed failure):
[0]:
  time      : 2026-11-25_16:02:12
  host      : node
  rank      : {rank} (local_rank: {rank})
  exitcode  : -6 (pid: 4711)
"""


def outcome_of(log: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchOutcome:
    """The outcome of a torchrun that prints this and ends with 1; its two ranks report nothing."""
    job = measurements._probe_job("cpu", 2, EFFORTS["quick"], str(directory), replays=True, exchanges=False, soak=False)
    program = [sys.executable, "-S", "-c", f"print({log!r}); raise SystemExit(1)"]
    monkeypatch.setattr(launcher, "_command", lambda *_: program)
    return launch(job, "test-launch", lambda _rank, _event: None)


def test_the_cuda_error_of_a_rank_that_aborted_is_in_the_message(tmp_path, monkeypatch):
    outcome = outcome_of(WATCHDOG + SUMMARY.format(rank=1), tmp_path, monkeypatch)
    assert (outcome.status, outcome.ranks_at_fault) == (Status.CRASHED, [1])
    assert outcome.message == "rank 1 killed by SIGABRT: CUDA error: uncorrectable ECC error encountered"


def test_a_rank_that_aborts_after_another_ones_error_is_not_at_fault(tmp_path, monkeypatch):
    log = WATCHDOG + SUMMARY.format(rank=0) + SUMMARY.format(rank=1)
    outcome = outcome_of(log, tmp_path, monkeypatch)
    assert outcome.ranks_at_fault == [1]
    assert outcome.message.startswith("rank 1 killed by SIGABRT: CUDA error: uncorrectable ECC")


def test_an_error_that_names_no_rank_is_quoted_too_and_without_one_the_signal_is_all_that_is_known(
    tmp_path, monkeypatch
):
    outcome = outcome_of("CUDA error: of nobody\n" + SUMMARY.format(rank=0), tmp_path, monkeypatch)
    assert (outcome.message, outcome.ranks_at_fault) == ("rank 0 killed by SIGABRT: CUDA error: of nobody", [0])
    assert outcome_of(SUMMARY.format(rank=1), tmp_path, monkeypatch).message == "rank 1 killed by SIGABRT"


def test_a_rank_that_the_kernel_killed_for_want_of_memory_has_run_out_of_it(tmp_path, monkeypatch):
    killed = SUMMARY.format(rank=1).replace("-6", "-9")
    assert outcome_of(killed, tmp_path, monkeypatch).message == "rank 1 killed by SIGKILL"
    monkeypatch.setattr(launcher, "oom_kills", count().__next__)
    outcome = outcome_of(killed, tmp_path, monkeypatch)
    assert (outcome.status, outcome.ranks_at_fault) == (Status.OUT_OF_MEMORY, [1])
    assert outcome.message == "rank 1 killed by the kernel for want of memory"
    assert outcome_of(SUMMARY.format(rank=1), tmp_path, monkeypatch).message == "rank 1 killed by SIGABRT"


def test_segments_grow_on_a_gpu_alone_unless_the_user_says_something_of_the_allocator(monkeypatch):
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    assert cuda_allocator("cuda") == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert cuda_allocator("cpu") == {}
    for name in names:
        with monkeypatch.context() as said:
            said.setenv(name, "max_split_size_mb:64")
            assert cuda_allocator("cuda") == {}
