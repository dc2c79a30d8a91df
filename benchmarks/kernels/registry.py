"""Every kernel that is timed: one module each, whose `cases(device)` yields them and allocates nothing."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.kernels import adamw, gradient_norm, layer_norm, sign_pack
from benchmarks.kernels.case import Case

MODULES = (layer_norm, adamw, gradient_norm, sign_pack)


def cases(device: torch.device) -> Iterator[Case]:
    """All cases for a device, in the order of the table."""
    for module in MODULES:
        yield from module.cases(device)
