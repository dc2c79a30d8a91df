"""Cross-entropy and its gradient at vocabularies of the runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.kernels.case import Case, Draw, Function, dtypes
from kernels.cross_entropy import loss_and_gradient, reference

ROWS = {"cuda": 4096, "cpu": 16}
VOCABULARIES = {"cuda": (50_304, 150_528, 250_880), "cpu": (4_096, 50_304)}


def _with_gradient(loss_of: Function, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.detach().requires_grad_()
    loss = loss_of(leaf, targets)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


def _eager_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.float(), targets)


_plain = partial(_with_gradient, reference)
_eager = partial(_with_gradient, _eager_loss)


def _ours(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return loss_and_gradient(logits, targets) if logits.is_cuda else _plain(logits, targets)


def _liger() -> Function:
    from liger_kernel.ops import LigerCrossEntropyFunction

    def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = LigerCrossEntropyFunction.apply(logits * 1, targets, None)[0]  # it overwrites them too
        return loss

    return partial(_with_gradient, loss_of)


def _inputs(rows: int, columns: int, dtype: torch.dtype, draw: Draw) -> tuple[Any, ...]:
    return draw.normal(rows, columns, dtype=dtype), draw.integers(columns, rows)


def cases(device: torch.device) -> Iterator[Case]:
    """The vocabularies in each dtype; the gradient is part of what is timed."""
    rows = ROWS[device.type]
    for dtype, torchs in dtypes(device).items():
        for columns in VOCABULARIES[device.type]:
            yield Case(
                kernel="cross_entropy",
                dtype=dtype,
                sizes={"rows": rows, "columns": columns, "element_bytes": torchs.itemsize},
                over="columns",
                inputs=partial(_inputs, rows, columns, torchs),
                ours=_ours,
                plain=_plain,
                eager=_eager,
                liger=_liger,
                consumed=True,
            )
