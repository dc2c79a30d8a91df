"""A mixture's rows in the order of the experts, and back in that of the tokens.

Shape letters as in `experts`: N tokens, R rows, C of each token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Copied(torch.autograd.Function):
    """Each token's hidden state for each of its experts, [R, D]; their gradients are summed in the order of tokens."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, order_R: Tensor, inverse_R: Tensor) -> Tensor:
        ctx.save_for_backward(inverse_R)
        ctx.chosen = len(order_R) // len(x_ND)
        return x_ND.index_select(0, order_R // ctx.chosen)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (inverse_R,) = ctx.saved_tensors
        return gradients[0].index_select(0, inverse_R).unflatten(0, (-1, ctx.chosen)).sum(1), None, None


class Returned(torch.autograd.Function):
    """Rows in another order: the experts' output in that of the tokens."""

    @staticmethod
    def forward(ctx: Any, y_RD: Tensor, order_R: Tensor, inverse_R: Tensor) -> Tensor:
        ctx.save_for_backward(order_R)
        return y_RD.index_select(0, inverse_R)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (order_R,) = ctx.saved_tensors
        return gradients[0].index_select(0, order_R), None, None
