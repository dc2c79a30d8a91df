"""The loss of one micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

NOT_LEARNED = -100  # target of a position that has no loss, because its token is given
LossPart = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class CrossEntropy(nn.Module):
    """Mean cross-entropy of the targets that are learned, in nats a token, in fp32 over all stored vocabulary rows."""

    def forward(self, head: nn.Linear, x_BTD: Tensor, targets_BT: Tensor, _upstream: float) -> Tensor:
        logits_BTV = head(x_BTD)
        return cross_entropy(logits_BTV.float().flatten(0, 1), targets_BT.flatten(), ignore_index=NOT_LEARNED)


class ChunkedCrossEntropy(nn.Module):
    """The same, with logits of only one part of the tokens at a time, of `chunks` parts.

    The forward pass computes the gradients too: it overwrites each part's logits with their gradient, and computes
    those of hidden states and weight before the next part. The backward pass scales them.
    Source: Liger-Kernel, fused_linear_cross_entropy (Hsu et al. 2024, arXiv 2410.10989, section 3.2).
    """

    def __init__(self, chunks: int) -> None:
        super().__init__()
        self._chunks = chunks
        self._part: LossPart = _part

    def compile_parts(self) -> None:
        """Have losses and gradient of a part's logits computed by one compiled function, in two reads and a write."""
        self._part = torch.compile(_part, fullgraph=True, dynamic=False)

    def forward(self, head: nn.Linear, x_BTD: Tensor, targets_BT: Tensor, _upstream: float) -> Tensor:
        loss: Tensor = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            x_BTD.flatten(0, 1), head.weight, targets_BT.flatten(), self._chunks, self._part
        )
        return loss


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, chunks: int, part: LossPart) -> Tensor:
        learned = (targets_N != NOT_LEARNED).sum()
        total = torch.zeros((), dtype=torch.float32, device=x_ND.device)
        of_x_ND = torch.empty_like(x_ND)
        adds_in_fp32 = x_ND.dtype is torch.float32 or x_ND.is_cuda
        of_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32 if adds_in_fp32 else None)
        for x_CD, targets_C, of_x_CD in zip(
            x_ND.chunk(chunks), targets_N.chunk(chunks), of_x_ND.chunk(chunks), strict=True
        ):
            loss, gradient_CV = part(x_CD, weight_VD, targets_C, learned)
            total += loss
            torch.mm(gradient_CV, weight_VD, out=of_x_CD)
            if x_ND.dtype is torch.float32:
                torch.addmm(of_weight_VD, gradient_CV.t(), x_CD, out=of_weight_VD)
            elif x_ND.is_cuda:
                torch.addmm(of_weight_VD, gradient_CV.t(), x_CD, out_dtype=torch.float32, out=of_weight_VD)
            else:
                of_weight_VD += gradient_CV.t() @ x_CD
            del gradient_CV
        ctx.save_for_backward(of_x_ND, of_weight_VD.to(weight_VD.dtype))
        return total / learned

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        of_x_ND, of_weight_VD = ctx.saved_tensors
        return of_x_ND.mul_(gradients[0]), of_weight_VD.mul_(gradients[0]), None, None, None  # nobody else has them


def _part(x_CD: Tensor, weight_VD: Tensor, targets_C: Tensor, learned: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the losses of a part's tokens, and the gradient of their logits; `learned`: tokens of all parts."""
    logits_CV = x_CD @ weight_VD.t()
    if torch.compiler.is_compiling():
        return _part_compiled(logits_CV, targets_C, learned)
    logits_CV = logits_CV.float()
    logits_CV -= logits_CV.amax(-1, keepdim=True)
    indices_C1 = targets_C.clamp(min=0)[:, None]
    at_targets_C = logits_CV.gather(1, indices_C1)[:, 0]
    sums_C = logits_CV.exp_().sum(-1)
    counts_C = targets_C != NOT_LEARNED
    loss = ((sums_C.log() - at_targets_C) * counts_C).sum()
    logits_CV /= sums_C[:, None]
    logits_CV.scatter_add_(1, indices_C1, torch.full_like(indices_C1, -1, dtype=torch.float32))
    logits_CV *= (counts_C / learned)[:, None]
    return loss, logits_CV.to(x_CD.dtype)


def _part_compiled(logits_CV: Tensor, targets_C: Tensor, learned: Tensor) -> tuple[Tensor, Tensor]:
    """The same in a form that a compiler fuses: nothing is written but the gradient, and no element by its index."""
    wide_CV = logits_CV.float()
    indices_C1 = targets_C.clamp(min=0)[:, None]
    largest_C1 = wide_CV.amax(-1, keepdim=True)
    sums_C1 = (wide_CV - largest_C1).exp().sum(-1, keepdim=True)
    counts_C1 = (targets_C != NOT_LEARNED)[:, None]
    losses_C1 = sums_C1.log() + largest_C1 - logits_CV.gather(1, indices_C1).float()
    is_target_CV = torch.arange(logits_CV.shape[1], device=logits_CV.device) == indices_C1
    gradient_CV = ((wide_CV - largest_C1).exp() / sums_C1 - is_target_CV) * (counts_C1 / learned)
    return (losses_C1 * counts_C1).sum(), gradient_CV.to(logits_CV.dtype)
