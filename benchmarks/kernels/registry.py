"""Every kernel that is timed, in the order of the table; nothing is allocated."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.kernels import attention, layer_tensors, losses, row_kernels, step_parts
from benchmarks.kernels.case import Case


def cases(device: torch.device) -> Iterator[Case]:
    """All cases for a device."""
    for module in (row_kernels, attention, losses, layer_tensors, step_parts):
        yield from module.cases(device)
