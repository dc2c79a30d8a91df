"""Cross-entropy of logits, and of a head's product, each with its gradients, at vocabularies of the runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.kernels.case import Case, Draw, Function, dtypes
from kernels import cross_entropy, linear_cross_entropy

ROWS = {"cuda": 4096, "cpu": 16}
VOCABULARIES = {"cuda": (50_304, 150_528, 250_880), "cpu": (4_096, 50_304)}
# rows, hidden size and vocabulary: GPT-2 1558M's and, with a part of its hidden size, BLOOM's
HEADS = {"cuda": ((4096, 1600, 50_304), (4096, 4096, 250_880)), "cpu": ((64, 64, 4_096), (64, 128, 8_192))}


def _with_gradients(loss_of: Function, *inputs: Tensor) -> tuple[Tensor, ...]:
    """The loss, and the gradients of all inputs but the targets, which are the last one."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs[:-1]]
    loss = loss_of(*leaves, inputs[-1])
    return loss.detach(), *torch.autograd.grad(loss, leaves)


def _eager_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.float(), targets)


def _eager_head(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return _eager_loss(functional.linear(hidden, weight), targets)


_plain_loss = partial(_with_gradients, cross_entropy.reference)


def _our_loss(logits: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    return cross_entropy.loss_and_gradient(logits, targets) if logits.is_cuda else _plain_loss(logits, targets)


def _liger_loss() -> Function:
    from liger_kernel.ops import LigerCrossEntropyFunction

    def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = LigerCrossEntropyFunction.apply(logits * 1, targets, None)[0]  # it overwrites them too
        return loss

    return partial(_with_gradients, loss_of)


def _liger_head() -> Function:
    from liger_kernel.ops import LigerFusedLinearCrossEntropyFunction

    def loss_of(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = LigerFusedLinearCrossEntropyFunction.apply(hidden, weight, targets)[0]
        return loss

    return partial(_with_gradients, loss_of)


def _logits(rows: int, columns: int, dtype: torch.dtype, draw: Draw) -> tuple[Any, ...]:
    return draw.normal(rows, columns, dtype=dtype), draw.integers(columns, rows)


def _head(rows: int, columns: int, vocabulary: int, dtype: torch.dtype, draw: Draw) -> tuple[Any, ...]:
    weight = draw.normal(vocabulary, columns, dtype=dtype) / columns**0.5
    return draw.normal(rows, columns, dtype=dtype), weight, draw.integers(vocabulary, rows)


def cases(device: torch.device) -> Iterator[Case]:
    """Both losses in each dtype, the head's not in fp16; gradients are part of what is timed."""
    rows = ROWS[device.type]
    for dtype, torchs in dtypes(device).items():
        for columns in VOCABULARIES[device.type]:
            yield Case(
                kernel="cross_entropy",
                dtype=dtype,
                sizes={"rows": rows, "columns": columns, "element_bytes": torchs.itemsize},
                over="columns",
                inputs=partial(_logits, rows, columns, torchs),
                ours=_our_loss,
                plain=_plain_loss,
                eager=partial(_with_gradients, _eager_loss),
                liger=_liger_loss,
                consumed=True,
            )
    for dtype, torchs in dtypes(device, "bf16", "fp32").items() if device.type == "cuda" else dtypes(device).items():
        for rows, columns, vocabulary in HEADS[device.type]:
            yield Case(
                kernel="linear_cross_entropy",
                dtype=dtype,
                sizes={"rows": rows, "columns": columns, "vocabulary": vocabulary, "element_bytes": torchs.itemsize},
                over="vocabulary",
                inputs=partial(_head, rows, columns, vocabulary, torchs),
                ours=partial(_with_gradients, linear_cross_entropy.linear_cross_entropy),
                plain=partial(_with_gradients, linear_cross_entropy.reference),
                eager=partial(_with_gradients, _eager_head),
                liger=_liger_head,
            )
