"""Rotation of queries and keys: the whole head, and a quarter of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Draw, dtypes
from kernels.rotary import reference, rotary
from suite.execute.model.position import rotated

BATCH, LENGTH = {"cuda": 2, "cpu": 1}, {"cuda": 2048, "cpu": 128}
# heads and head size of the runs that rotate, and the share of the head that turns
SHAPES = {"glm": (96, 128, 1.0), "neox": (64, 96, 0.25)}
CPU_HEADS = 8


def _eager(q: Tensor, k: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor]:
    return rotated(q, rotation), rotated(k, rotation)


def _inputs(heads: int, size: int, turning: int, dtype: torch.dtype, draw: Draw) -> tuple[Any, ...]:
    length = LENGTH[draw.device.type]
    q, k = (draw.normal(BATCH[draw.device.type], heads, length, size, dtype=dtype) for _ in range(2))
    angles = draw.normal(length, turning, dtype=torch.float32)
    return q, k, torch.stack([angles.cos(), angles.sin()])


def cases(device: torch.device) -> Iterator[Case]:
    """Each shape in each dtype, forward and backward; all dims count, as those that pass are copied too."""
    for variant, (recorded, size, share) in SHAPES.items():
        heads = recorded if device.type == "cuda" else CPU_HEADS
        for dtype, torchs in dtypes(device).items():
            elements = 2 * BATCH[device.type] * heads * LENGTH[device.type] * size
            yield Case(
                kernel="rotary",
                variant=variant,
                dtype=dtype,
                sizes={"elements": elements, "element_bytes": torchs.itemsize},
                over="elements",
                inputs=partial(_inputs, heads, size, round(share * size), torchs),
                ours=rotary,
                plain=reference,
                eager=_eager,
                differentiated=2,
            )
