"""Norms as naive scripts compute them, for the ladder's first rungs."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def squared_norm_by_parameter(gradients: Iterable[Tensor], *, device: torch.device) -> Tensor:
    """`squared_norm` as a naive script computes it: every parameter's norm becomes a number of Python's."""
    squares = 0.0
    for gradient in gradients:
        squares += gradient.float().norm().item() ** 2
    return torch.tensor(squares, device=device)


def logged_weight_norm(parameters: Iterable[nn.Parameter]) -> float:
    """Euclidean norm of the weights, as naive scripts log it: parameter by parameter, and autograd records each."""
    total = torch.zeros(())
    for parameter in parameters:
        total = total.to(parameter.device) + parameter.pow(2).sum()
        total.item()
    return total.sqrt().item()
