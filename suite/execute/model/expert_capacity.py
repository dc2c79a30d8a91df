"""Experts with a capacity: each has Q places for rows of a micro-batch. What comes to a full one is dropped.

First choices of all tokens go before second ones, each in the order of the tokens (Lepikhin et al. 2020, arXiv
2006.16668, algorithm 1). By probability, as Megatron-LM's default, a later token could take a place from an earlier one
whose prediction it must not change. A dropped row adds nothing to its token, whose residual passes.

Empty places compute some token's row all the same, which nothing reads: sizes do not depend on the routing, and the
host waits for nothing. Shape letters as in `experts`, and P = E Q places.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Places(NamedTuple):
    """Which row is at each place, and where each row is.

    Args:
        rows: [P], token by token; 0 at empty places.
        filled: [P, 1].
        of_rows: [R], 0 of dropped ones.
        kept: [N, C].
        ends: [E], int32, the place after each expert's last one.
    """

    rows: Tensor
    filled: Tensor
    of_rows: Tensor
    kept: Tensor
    ends: Tensor

    @classmethod
    def of(cls, chosen_NC: Tensor, experts: int, each: int) -> Places:
        """Args: each: places of an expert."""
        tokens, choices = chosen_NC.shape
        device, count = chosen_NC.device, experts * each
        of_rows, order_R = torch.sort(chosen_NC.T.flatten(), stable=True)  # first choices come first
        firsts_E = torch.searchsorted(of_rows, torch.arange(experts, device=device))
        within_R = torch.arange(len(order_R), device=device) - firsts_E[of_rows]
        kept_R = within_R < each
        place_R = torch.where(kept_R, of_rows * each + within_R, count)  # one place more takes what is dropped
        row_R = order_R % tokens * choices + order_R // tokens
        rows_P = torch.zeros(count + 1, dtype=row_R.dtype, device=device).scatter_(0, place_R, row_R)[:count]
        filled_P = torch.zeros(count + 1, dtype=torch.bool, device=device).scatter_(0, place_R, kept_R)[:count]
        of_each_R = torch.empty_like(place_R).scatter_(0, row_R, place_R.where(kept_R, 0))
        kept_NC = torch.empty_like(kept_R).scatter_(0, row_R, kept_R).view_as(chosen_NC)
        ends_E = torch.arange(each, count + 1, each, dtype=torch.int32, device=device)
        return cls(rows_P, filled_P.unsqueeze(1), of_each_R, kept_NC, ends_E)


class _Placed(torch.autograd.Function):
    """The token's hidden state at each place, [P, D]. The gradients of its kept rows are summed."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, places: Places) -> Tensor:
        ctx.save_for_backward(places.of_rows, places.kept)
        return x_ND.index_select(0, places.rows // places.kept.shape[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        of_rows_R, kept_NC = ctx.saved_tensors
        rows_NCD = gradients[0].index_select(0, of_rows_R).unflatten(0, kept_NC.shape)
        return rows_NCD.mul_(kept_NC.unsqueeze(-1)).sum(1), None


class _Collected(torch.autograd.Function):
    """Rows in the order of the tokens, [R, D]; dropped ones are another's, and nothing may read them."""

    @staticmethod
    def forward(ctx: Any, y_PD: Tensor, places: Places) -> Tensor:
        ctx.save_for_backward(places.rows, places.filled)
        return y_PD.index_select(0, places.of_rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        rows_P, filled_P1 = ctx.saved_tensors
        return gradients[0].index_select(0, rows_P).mul_(filled_P1), None


def placed(x_ND: Tensor, places: Places) -> Tensor:
    """Rows at their places, which the experts compute, [P, D]."""
    out: Tensor = _Placed.apply(x_ND, places)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return out


def collected(y_PD: Tensor, places: Places) -> Tensor:
    """The experts' output for each row, [R, D], to be weighed by gates that are 0 for dropped ones."""
    out: Tensor = _Collected.apply(y_PD, places)  # type: ignore[no-untyped-call]  # as above
    return out
