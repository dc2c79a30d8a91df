"""The loss that keeps experts equally busy within each sequence (DeepSeek-V3). Shape letters as in `experts`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor


class Statistics(Protocol):
    """Statistics that the backward pass reads and counts.

    Attributes:
        upstream: the gradient that the loss of a micro-batch will get.
        averaged: over the ranks that have the other positions of the sequences; None where this one has whole ones.
    """

    upstream: float
    averaged: Callable[[Tensor], Tensor] | None

    def add_sequence_loss(self, loss: Tensor) -> None:
        """The unweighted loss of one micro-batch."""


class _BalancedBySequence(torch.autograd.Function):
    """The router's scores [N, E]; backward, the sequence-wise loss adds its gradient, and statistics count it.

    With s of E scores of a token, p = s / sum s, T tokens of a sequence and k experts a token, the loss is the mean
    over sequences of
        weight sum_i f_i P_i,    f_i = E / (k T) times the tokens with i among their k largest s,    P_i = mean of p_i
    where f does not depend on the scores. Neither the bias nor groups, which the choice of experts has, are in it.
    Where ranks have parts of the sequences, f is of all their tokens, and P of a rank's own.
    Source: DeepSeek-AI 2024, arXiv 2412.19437, section 2.1.2, equations 17 to 20.
    """

    @staticmethod
    def forward(
        ctx: Any, scores_NE: Tensor, sequences: int, chosen: int, weight: float, statistics: Statistics
    ) -> Tensor:
        experts, tokens = scores_NE.shape[1], len(scores_NE) // sequences
        best_BR = scores_NE.topk(chosen, dim=-1).indices.view(sequences, -1)
        load_BE = scores_NE.new_zeros(sequences, experts).scatter_add_(
            1, best_BR, torch.ones_like(best_BR, dtype=scores_NE.dtype)
        )
        ctx.save_for_backward(scores_NE, load_BE.mul_(experts / (chosen * tokens)))
        ctx.weight, ctx.statistics = weight, statistics
        return scores_NE.view_as(scores_NE)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        scores_NE, load_BE = ctx.saved_tensors
        if (averaged := ctx.statistics.averaged) is not None:
            load_BE = averaged(load_BE.clone())
        total_N1 = scores_NE.sum(-1, keepdim=True)
        share_BTE = (scores_NE / total_N1).unflatten(0, (len(load_BE), -1))
        weighed_BT1 = (share_BTE * load_BE.unsqueeze(1)).sum(-1, keepdim=True)
        ctx.statistics.add_sequence_loss(weighed_BT1.mean())
        factor = ctx.weight * ctx.statistics.upstream / len(scores_NE)
        of_scores_NE = (load_BE.unsqueeze(1) - weighed_BT1).flatten(0, 1) / total_N1 * factor
        return gradients[0] + of_scores_NE, None, None, None, None


def balanced_by_sequence(
    scores_NE: Tensor, *, sequences: int, chosen: int, weight: float, statistics: Statistics
) -> Tensor:
    """The scores, through which the loss of so many equal `sequences` gives its gradient."""
    out: Tensor = _BalancedBySequence.apply(scores_NE, sequences, chosen, weight, statistics)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return out
