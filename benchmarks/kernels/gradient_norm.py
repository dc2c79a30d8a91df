"""The gradients' norm over the tensors of one layer, and over a flat buffer of as many elements."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Draw, dtypes
from benchmarks.kernels.sizes import buffers
from kernels.gradient_norm import gradient_norm, reference


def _eager(gradients: list[Tensor]) -> Tensor:
    """As torch.nn.utils.get_total_norm, which has no fp32 sums of 16-bit gradients."""
    norms = torch._foreach_norm(gradients, 2, torch.float32)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def _inputs(elements: list[int], dtype: torch.dtype, draw: Draw) -> tuple[Any, ...]:
    return ([draw.normal(size, dtype=dtype) for size in elements],)


def cases(device: torch.device) -> Iterator[Case]:
    """Gradients in fp32, and in bf16."""
    for dtype, torchs in dtypes(device, "fp32", "bf16").items():
        for variant, elements in buffers(device):
            yield Case(
                kernel="gradient_norm",
                variant=variant,
                dtype=dtype,
                sizes={"parameters": sum(elements), "gradient_bytes": torchs.itemsize},
                over="parameters",
                inputs=partial(_inputs, elements, torchs),
                ours=gradient_norm,
                plain=reference,
                eager=_eager,
                compilable=reference,
            )
