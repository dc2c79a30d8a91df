"""Weights of three small layers, with gradients, for tests of updates."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from reference_runs.run import Recipe
from suite.execute.precision import GRADIENT_DTYPES, WeightGroup
from tests.support.launches import FP32_WITHOUT_DROPOUT, small_plan


def recipe_of(**changes: Any) -> Recipe:
    return small_plan(ranks=1, recipe={**FP32_WITHOUT_DROPOUT, **changes}).recipe


def small_model() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))


def set_gradients(groups: list[WeightGroup], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for group in groups:
        for leaf in group.leaves:
            leaf.grad = (1024 * torch.randn(leaf.shape, generator=generator)).to(GRADIENT_DTYPES[group.flat.dtype])
