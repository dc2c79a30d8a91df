"""Which rank is at fault, by its exception."""

from __future__ import annotations

import pytest
import torch

from suite.execute.rank import failure
from suite.job.events import Status


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
