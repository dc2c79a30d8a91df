"""What a naive script does besides training: it waits for numbers that it does not need."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def gradient_norm_by_parameter(gradients: Iterable[Tensor], *, device: torch.device) -> Tensor:
    """Sum of the squares of all elements, each parameter's as a number of Python's, on `device`."""
    squares = 0.0
    for gradient in gradients:
        squares += gradient.float().norm().item() ** 2
    return torch.tensor(squares, device=device)


def logged_weight_norm(parameters: Iterable[nn.Parameter]) -> float:
    """Euclidean norm of the weights, as scripts log it: parameter by parameter, with autograd recording each."""
    total = torch.zeros(())
    for parameter in parameters:
        total = total.to(parameter.device) + parameter.pow(2).sum()
        total.item()
    return total.sqrt().item()
