"""The loss of one micro-batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

NOT_LEARNED = -100  # target of a position that has no loss, because its token is given


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

    def forward(self, head: nn.Linear, x_BTD: Tensor, targets_BT: Tensor, _upstream: float) -> Tensor:
        loss: Tensor = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            x_BTD.flatten(0, 1), head.weight, targets_BT.flatten(), self._chunks
        )
        return loss


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, chunks: int) -> Tensor:
        learned = (targets_N != NOT_LEARNED).sum()
        total = torch.zeros((), dtype=torch.float32, device=x_ND.device)
        of_x_ND = torch.empty_like(x_ND)
        of_weight_VD = torch.zeros_like(weight_VD)
        for x_CD, targets_C, of_x_CD in zip(
            x_ND.chunk(chunks), targets_N.chunk(chunks), of_x_ND.chunk(chunks), strict=True
        ):
            logits_CV = (x_CD @ weight_VD.t()).float()
            logits_CV -= logits_CV.amax(-1, keepdim=True)
            indices_C1 = targets_C.clamp(min=0)[:, None]
            at_targets_C = logits_CV.gather(1, indices_C1)[:, 0]
            sums_C = logits_CV.exp_().sum(-1)
            counts_C = targets_C != NOT_LEARNED
            total += ((sums_C.log() - at_targets_C) * counts_C).sum()
            logits_CV /= sums_C[:, None]
            logits_CV.scatter_add_(1, indices_C1, torch.full_like(indices_C1, -1, dtype=torch.float32))
            logits_CV *= (counts_C / learned)[:, None]
            gradient_CV = logits_CV.to(x_ND.dtype)
            torch.mm(gradient_CV, weight_VD, out=of_x_CD)
            del logits_CV
            if x_ND.dtype is torch.float32:
                torch.addmm(of_weight_VD, gradient_CV.t(), x_CD, out=of_weight_VD)
            else:
                of_weight_VD += gradient_CV.t() @ x_CD
            del gradient_CV
        ctx.save_for_backward(of_x_ND, of_weight_VD)
        return total / learned

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        of_x_ND, of_weight_VD = ctx.saved_tensors
        return of_x_ND.mul_(gradients[0]), of_weight_VD.mul_(gradients[0]), None, None  # nobody else has them
