"""Every kernel that is timed: one module each, whose `cases(device)` yields them and allocates nothing."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.kernels import (
    adamw,
    bias_activation,
    cross_entropy,
    geglu,
    gradient_norm,
    layer_norm,
    linear_cross_entropy,
    masked_softmax,
    parallel_layer_norms,
    residual_layer_norm,
    rotary,
    sign_pack,
)
from benchmarks.kernels.case import Case

MODULES = (
    layer_norm,
    residual_layer_norm,
    parallel_layer_norms,
    bias_activation,
    geglu,
    rotary,
    masked_softmax,
    cross_entropy,
    linear_cross_entropy,
    adamw,
    gradient_norm,
    sign_pack,
)


def cases(device: torch.device) -> Iterator[Case]:
    """All cases for a device, in the order of the table."""
    for module in MODULES:
        yield from module.cases(device)
