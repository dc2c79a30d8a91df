"""Memory of an accelerator that tensors can fill: what is printed, less what driver and libraries keep."""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.accelerator import Board
from suite.predict.analytic.cuda_temporaries import CONTEXT_BYTES

GIB = 2**30


class UsableMemory(NamedTuple):
    """Bytes that are printed, and those of them that are kept.

    Args:
        driver: by the driver, so that it lists less than is printed.
        context: by the process's context on the device.
    """

    printed: float
    driver: float
    context: float

    @property
    def usable(self) -> float:
        """Bytes that are left to PyTorch's allocator."""
        return self.printed - self.driver - self.context

    @property
    def words(self) -> str:
        """Memory that is kept, in words; empty where that is none."""
        if not self.driver + self.context:
            return ""
        return f"{self.printed / GIB:,.4g} - {self.driver / GIB:.2g} driver - {self.context / GIB:.2g} CUDA"


def usable_memory(board: Board) -> UsableMemory:
    """Usable part of the board's memory; all of it where nothing is recorded of a driver: CPUs, TPUs.

    The context is assumed to be as large on every GPU, see `CONTEXT_BYTES`. Communicators take more, see
    `bytes_outside_allocator`.
    """
    if board.reserved_bytes is None:
        return UsableMemory(board.memory_bytes, 0, 0)
    return UsableMemory(board.memory_bytes, board.reserved_bytes, CONTEXT_BYTES)
