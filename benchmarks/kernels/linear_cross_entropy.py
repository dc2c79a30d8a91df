"""Head and cross-entropy with both gradients at vocabularies of the runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.kernels.case import Case, Draw, Function, dtypes
from kernels.linear_cross_entropy import linear_cross_entropy, reference

# rows, hidden size and vocabulary: GPT-2 1558M's and, with a part of its hidden size, BLOOM's
SHAPES = {"cuda": ((4096, 1600, 50_304), (4096, 4096, 250_880)), "cpu": ((64, 64, 4_096), (64, 128, 8_192))}


def _with_gradients(loss_of: Function, hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    leaves = [hidden.detach().requires_grad_(), weight.detach().requires_grad_()]
    loss = loss_of(*leaves, targets)
    return loss.detach(), *torch.autograd.grad(loss, leaves)


def _eager_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(functional.linear(hidden, weight).float(), targets)


def _liger() -> Function:
    from liger_kernel.ops import LigerFusedLinearCrossEntropyFunction

    def loss_of(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = LigerFusedLinearCrossEntropyFunction.apply(hidden, weight, targets)[0]
        return loss

    return partial(_with_gradients, loss_of)


def _inputs(rows: int, columns: int, vocabulary: int, dtype: torch.dtype, draw: Draw) -> tuple[Any, ...]:
    weight = draw.normal(vocabulary, columns, dtype=dtype) / columns**0.5
    return draw.normal(rows, columns, dtype=dtype), weight, draw.integers(vocabulary, rows)


def cases(device: torch.device) -> Iterator[Case]:
    """The shapes in each dtype; both gradients are part of what is timed."""
    for dtype, torchs in dtypes(device, "bf16", "fp32").items() if device.type == "cuda" else dtypes(device).items():
        for rows, columns, vocabulary in SHAPES[device.type]:
            sizes = {"rows": rows, "columns": columns, "vocabulary": vocabulary, "element_bytes": torchs.itemsize}
            yield Case(
                kernel="linear_cross_entropy",
                dtype=dtype,
                sizes=sizes,
                over="vocabulary",
                inputs=partial(_inputs, rows, columns, vocabulary, torchs),
                ours=partial(_with_gradients, linear_cross_entropy),
                plain=partial(_with_gradients, reference),
                eager=partial(_with_gradients, _eager_loss),
                liger=_liger,
            )
