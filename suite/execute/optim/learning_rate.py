"""The learning rate of an update, norms, and the factor on its gradient."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from reference_runs.run import LearningRateDecay, Recipe


def learning_rate(recipe: Recipe, seen: int) -> float:
    """Learning rate of the step at whose end `seen` samples have been trained on: linear warm-up, then decay.

    With u = samples seen, w warm-up and d decay samples, peak p, minimum q:
        u <= w:  p u / w
        else:    q + (p - q) (1 + cos(pi (u - w) / (d - w))) / 2    cosine
                 q + (p - q) (1 - (u - w) / (d - w))                linear
                 q                                                  both, after d
    Source: Megatron-LM, learning_rates.py, AnnealingLR, in samples. Differs by one step: its first step has rate 0.
    """
    if seen <= recipe.warmup:
        return recipe.learning_rate * seen / recipe.warmup
    if seen >= recipe.decay:
        return recipe.minimum_learning_rate
    share = (seen - recipe.warmup) / (recipe.decay - recipe.warmup)
    cosine = recipe.learning_rate_decay is LearningRateDecay.COSINE
    left = (1 + math.cos(math.pi * share)) / 2 if cosine else 1 - share
    return recipe.minimum_learning_rate + (recipe.learning_rate - recipe.minimum_learning_rate) * left


def squared_norm(gradients: Iterable[Tensor], *, device: torch.device) -> Tensor:
    """Sum of the squares of all elements, in fp32 whatever the gradients' dtype; a scalar on `device`.

    For elements within fp16's range it is not finite exactly if an element is not.
    """
    tensors = list(gradients)
    if not tensors:
        return torch.zeros((), device=device)
    return torch.stack(torch._foreach_norm(tensors, 2, torch.float32)).square().sum().to(device)


def squared_norm_by_parameter(gradients: Iterable[Tensor], *, device: torch.device) -> Tensor:
    """`squared_norm` as the ladder's first rungs compute it: every parameter's norm becomes a number of Python's."""
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


def gradient_factor(recipe: Recipe, norm: float, *, loss_scale: float = 1.0) -> float:
    """Factor of the gradient of a scaled loss in the update: 1 / loss scale, and less where it is clipped.

    With N the norm of that gradient, s the loss scale and c the clip:
        min(1, c / (N / s + 1e-6)) / s

    Source: torch.nn.utils.clip_grad_norm_, its 1e-6 included, on the gradient divided by s.
    """
    return min(1.0, recipe.gradient_clip / (norm / loss_scale + 1e-6)) / loss_scale


def gradient_factor_on_device(recipe: Recipe, squared: Tensor) -> Tensor:
    """`gradient_factor` of an unscaled loss as a number on the device of `squared`, N^2: the host waits for nothing."""
    return (recipe.gradient_clip / (squared.sqrt() + 1e-6)).clamp(max=1.0)
