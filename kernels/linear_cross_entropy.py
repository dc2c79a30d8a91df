"""Mean cross-entropy of targets under the logits of a linear layer, which exist for a chunk of rows at a time.

Legend: M rows, D hidden size, V columns of which `vocabulary` are tokens; hidden_MD, weight_VD, targets_M; C rows of a
chunk; b bytes an element. The forward pass computes both gradients, 6 M V D flop in three products a chunk, and keeps
them; without gradients it has 2 M V D.

Bytes allocated, at their peak:
    C V b       logits of a chunk, which become their gradient
    M D b       gradient of the hidden states
    V D b       gradient of the weight; in 16 bits also what a chunk adds to it
    4 V D       in 16 bits: the sum of those over the chunks, in fp32, until the forward pass ends
PyTorch's, as the model computes it, with logits widened to fp32:
    M V b + 8 M V     forward: logits, widened ones, their log-softmax, which is kept
    12 M V            backward: the last, its gradient, the gradient of the widened logits

A chunk's part of the weight's gradient is a product in the weight's dtype, rounded once as any product is. Summed in
fp32 these roundings stay as small as that of the result; summed in bf16, each sum of the chunks would be rounded again.

Rows of a chunk: as many as make the logits as large as the hidden states, C = M D / V (Liger's rule, which rounds it to
a power of two), but not below 8192. A chunk reads the weight twice, and reads and writes the fp32 sum: 12 V D bytes in
bf16 for 6 C V D flop, which at the peaks of an H100 (989 Tflop/s, 3.35 TB/s) take as long at C = 590, 29 % as long at
2048, and 7 % at 8192; Liger's rule alone gives chunks of 512 rows at M = 32,768, D = 768, V = 50,304.
And at most half of the rows, so that all logits never exist at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.cross_entropy import (
    IGNORED,
    gradient_factor,
    losses_alone,
    losses_and_gradient,
    mean_over_learned,
    multiply,
    require_targets,
)
from kernels.cross_entropy import reference as cross_entropy_reference
from kernels.operator import require, require_float, runs_triton

NAME = "linear_cross_entropy"
LEAST_CHUNK = 8192


def reference(
    hidden_MD: Tensor,
    weight_VD: Tensor,
    targets_M: Tensor,
    *,
    ignore_index: int = IGNORED,
    vocabulary: int | None = None,
) -> Tensor:
    """Mean cross-entropy of the targets under hidden times transposed weight, all logits at once."""
    logits_MV = hidden_MD @ weight_VD.t()
    return cross_entropy_reference(logits_MV, targets_M, ignore_index=ignore_index, vocabulary=vocabulary)


def rows_of_a_chunk(rows: int, hidden: int, columns: int) -> int:
    """max(M D / V, 2048), at most half of the M rows, rounded up: at least 1."""
    return max(1, min(max(-(-rows * hidden // columns), LEAST_CHUNK), -(-rows // 2)))


def _losses_and_gradients(
    hidden_MD: Tensor,
    weight_VD: Tensor,
    targets_M: Tensor,
    ignore_index: int,
    vocabulary: int,
    scale: float,
    chunk: int,
    wanted: tuple[bool, bool],
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Losses of the rows, and `scale` times the gradients of their mean by hidden and by weight, where wanted."""
    rows = hidden_MD.shape[0]
    factor = gradient_factor(targets_M, ignore_index, scale) if any(wanted) else None
    losses_M = torch.empty(rows, dtype=torch.float32, device=hidden_MD.device)
    logits_CV = hidden_MD.new_empty(min(chunk, rows), weight_VD.shape[0])
    of_hidden_MD = hidden_MD.new_empty(hidden_MD.shape) if wanted[0] else None
    sum_VD = weight_VD.new_zeros(weight_VD.shape, dtype=torch.float32) if wanted[1] else None
    part_VD = weight_VD.new_empty(weight_VD.shape) if wanted[1] and weight_VD.dtype != torch.float32 else None
    for first in range(0, rows, chunk):
        part = slice(first, min(first + chunk, rows))
        logits = torch.mm(hidden_MD[part], weight_VD.t(), out=logits_CV[: part.stop - part.start])
        if factor is None:
            losses_M[part] = losses_alone(logits, targets_M[part], ignore_index, vocabulary)
            continue
        losses_M[part] = losses_and_gradient(logits, targets_M[part], factor, ignore_index, vocabulary)
        if of_hidden_MD is not None:
            torch.mm(logits, weight_VD, out=of_hidden_MD[part])
        if sum_VD is None:
            continue
        if part_VD is None:
            torch.addmm(sum_VD, logits.t(), hidden_MD[part], out=sum_VD)
        elif sum_VD.is_cuda:  # the product adds: apart, the sum took 164 us beside the product's 221 (H100)
            torch.addmm(sum_VD, logits.t(), hidden_MD[part], out_dtype=torch.float32, out=sum_VD)
        else:
            sum_VD += torch.mm(logits.t(), hidden_MD[part], out=part_VD)
    of_weight_VD = sum_VD if sum_VD is None or part_VD is None else part_VD.copy_(sum_VD)
    return losses_M, of_hidden_MD, of_weight_VD


class _LinearCrossEntropy(torch.autograd.Function):
    """The loss; the gradients, computed with it, are given out once: a second time autograd refuses."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_MD: Tensor,
        weight_VD: Tensor,
        targets_M: Tensor,
        ignore_index: int,
        vocabulary: int,
        scale: float,
        chunk: int,
    ) -> Tensor:
        wanted = ctx.needs_input_grad[:2]
        losses_M, *gradients = _losses_and_gradients(
            hidden_MD, weight_VD, targets_M, ignore_index, vocabulary, scale, chunk, wanted
        )
        ctx.scale = scale
        ctx.save_for_backward(*gradients)
        return mean_over_learned(losses_M, targets_M, ignore_index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        factor = upstream / torch.full_like(upstream, ctx.scale)
        gradients = ctx.saved_tensors
        for gradient in gradients:
            if gradient is not None:
                multiply(gradient, factor)
        return *gradients, None, None, None, None, None


def linear_cross_entropy(
    hidden_MD: Tensor,
    weight_VD: Tensor,
    targets_M: Tensor,
    *,
    ignore_index: int = IGNORED,
    vocabulary: int | None = None,
    scale: float = 1.0,
    chunk_rows: int | None = None,
) -> Tensor:
    """Mean over the learned rows of log(sum exp(logits)) - logit of the target, logits = hidden weight^T, in fp32.

    The backward pass can be gone through once, and not differentiated. A target that is no token makes the loss not a
    number. Chunks on CUDA, or interpreted; elsewhere the plain reference, with all logits.

    Args:
        targets_M: tokens, int64; `ignore_index` where a row is not learned.
        vocabulary: tokens among the columns, the first ones; the others count as if they were not there. None: all.
        scale: the gradient that this loss will get in the backward pass, the loss scale for one, as far as known:
            fp16 gradients are rounded times it. If it gets another they are multiplied once more.
        chunk_rows: rows whose logits exist at once; None: as derived above.

    Raises:
        UnsupportedInputError: a dtype, device or shape that the kernel does not take.
    """
    require_float(NAME, hidden=hidden_MD, weight=weight_VD)
    require(weight_VD.dtype == hidden_MD.dtype, NAME, "dtype of weight", f"{hidden_MD.dtype}", weight_VD.dtype)
    require(hidden_MD.dim() == 2, NAME, "shape of hidden", "[M, D]", tuple(hidden_MD.shape))
    rows, size = hidden_MD.shape
    fits = weight_VD.dim() == 2 and weight_VD.shape[1] == size
    require(fits, NAME, "shape of weight", f"[V, {size}]", tuple(weight_VD.shape))
    columns = weight_VD.shape[0]
    tokens = columns if vocabulary is None else vocabulary
    require_targets(NAME, (rows, columns), targets_M, hidden_MD.device, tokens, scale)
    chunk = rows_of_a_chunk(rows, size, columns) if chunk_rows is None else chunk_rows
    require(chunk >= 1, NAME, "rows of a chunk", "1 or more", chunk)
    if not runs_triton(hidden_MD):
        return reference(hidden_MD, weight_VD, targets_M, ignore_index=ignore_index, vocabulary=vocabulary)
    targets_M = targets_M.contiguous()
    if not (torch.is_grad_enabled() and (hidden_MD.requires_grad or weight_VD.requires_grad)):
        inputs = (hidden_MD.detach(), weight_VD.detach(), targets_M)
        losses_M, _, _ = _losses_and_gradients(*inputs, ignore_index, tokens, scale, chunk, (False, False))
        return mean_over_learned(losses_M, targets_M, ignore_index)
    apply: Any = _LinearCrossEntropy.apply
    loss: Tensor = apply(hidden_MD, weight_VD, targets_M, ignore_index, tokens, scale, chunk)
    return loss
