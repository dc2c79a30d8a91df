"""AdamW on the tensors of one layer, and on a flat buffer of as many parameters."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import adamw as torchs

from benchmarks.kernels.case import Case, Draw, dtypes
from benchmarks.kernels.sizes import buffers
from kernels.adamw import adamw, reference

Tensors = list[Tensor]
STEP = 10_000  # from here on the bias corrections are 1, whatever the step
SETTINGS = {"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1}


def _ours(w: Tensors, g: Tensors, m: Tensors, v: Tensors, copies: Tensors, factor: Tensor) -> None:
    adamw(w, g, m, v, step=STEP, gradient_factor=factor, copies=copies or None, **SETTINGS)


def _plain(w: Tensors, g: Tensors, m: Tensors, v: Tensors, copies: Tensors, factor: Tensor) -> None:
    reference(w, g, m, v, copies, factor, step=STEP, **SETTINGS)


def _eager(w: Tensors, g: Tensors, m: Tensors, v: Tensors, copies: Tensors, factor: Tensor) -> None:
    """PyTorch's fused AdamW, which divides by its factor and overwrites the gradients, and a pass for the copies."""
    torchs.adamw(
        w,
        g,
        m,
        v,
        [],
        _steps(len(w), w[0].device),
        fused=True,
        grad_scale=factor,
        amsgrad=False,
        lr=SETTINGS["learning_rate"],
        beta1=SETTINGS["beta1"],
        beta2=SETTINGS["beta2"],
        eps=SETTINGS["epsilon"],
        weight_decay=SETTINGS["weight_decay"],
        maximize=False,
    )
    if copies:
        torch._foreach_copy_(copies, w)


@cache
def _steps(count: int, device: torch.device) -> Tensors:
    """PyTorch's counters of steps, which it increases."""
    return [torch.full((), STEP - 1.0, device=device) for _ in range(count)]


def _inputs(elements: list[int], dtype: torch.dtype, draw: Draw) -> tuple[Any, ...]:
    w, g, m = ([draw.normal(size, dtype=torch.float32) for size in elements] for _ in range(3))
    v = [draw.normal(size, dtype=torch.float32).square() for size in elements]
    copies = [torch.empty(size, dtype=dtype, device=draw.device) for size in elements]
    factor = torch.ones((), device=draw.device)  # 1, as one that is divided by again and again ends in denormals
    return w, g, m, v, [] if dtype == torch.float32 else copies, factor


def cases(device: torch.device) -> Iterator[Case]:
    """fp32 masters: without a copy, and with one in 16 bits."""
    for dtype, element in dtypes(device, "fp32", "bf16").items():
        for variant, elements in buffers(device):
            yield Case(
                kernel="adamw",
                variant=variant,
                dtype=dtype,
                sizes={"parameters": sum(elements), "copy_bytes": 0 if dtype == "fp32" else element.itemsize},
                over="parameters",
                inputs=partial(_inputs, elements, element),
                ours=_ours,
                plain=_plain,
                eager=_eager,
                compilable=_plain,
            )
