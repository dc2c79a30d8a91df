"""Where weights are stored and in what precision, and how their gradients accumulate in fp32.

Weights of one optimizer group lie in one flat buffer, so that a shard is a slice and an all-gather fills it in place.
The leaves of autograd are not the weights but fp32 stand-ins without storage: reading a weight goes through
`ReadWeight`, whose backward pass widens the gradient (in fp32 it passes it on). So gradients accumulate over
micro-batches in fp32, and DistributedDataParallel reduces them in fp32 from its own buckets, at 4 bytes a parameter:
what BLOOM's BF16_Optimizer does with a reduction of its own. (The update adds a passing copy of its shard's gradient.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from kernels.bf16_matmul import compute_bf16_products_through_fp32, has_instructions
from reference_runs.run import Precision, Recipe

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16}


@dataclass(frozen=True)
class WeightGroup:
    """Weights with one weight decay: the flat buffer (padded to a multiple of the shards) and the leaves in it."""

    weight_decay: float
    flat: Tensor
    leaves: list[nn.Parameter]


class ReadWeight(torch.autograd.Function):
    """The stored weight; its gradient goes to the fp32 leaf."""

    @staticmethod
    def forward(_ctx: Any, _leaf: Tensor, stored: Tensor) -> Tensor:
        return stored.view_as(stored)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].float(), None


class Stored(nn.Module):
    """Parametrization that reads `stored` in place of the leaf."""

    def __init__(self, stored: Tensor) -> None:
        super().__init__()
        self.stored = stored

    def forward(self, leaf: Tensor) -> Tensor:
        weight: Tensor = ReadWeight.apply(leaf, self.stored)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return weight


def store_weights(model: nn.Module, recipe: Recipe, *, shards: int, device: torch.device) -> list[WeightGroup]:
    """Move the weights of `model` into flat buffers of the recipe's precision on `device`.

    Returns the groups: weights that decay, then those that do not; an empty group is left out.
    """
    dtype = DTYPES[recipe.precision]
    owners = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
    ]
    groups: list[WeightGroup] = []
    for decaying in (True, False):
        members = [owner for owner in owners if (owner[2].dim() > 1 or recipe.decay_of_vectors) == decaying]
        if not members:
            continue
        elements = sum(parameter.numel() for _, _, parameter in members)
        flat = torch.zeros(-(-elements // shards) * shards, dtype=dtype, device=device)
        leaves: list[nn.Parameter] = []
        offset = 0
        for module, name, parameter in members:
            stored = flat[offset : offset + parameter.numel()].view(parameter.shape)
            stored.copy_(parameter.data)
            leaves.append(_leaf(module, name, parameter, stored))
            offset += parameter.numel()
        groups.append(WeightGroup(recipe.weight_decay if decaying else 0.0, flat, leaves))
    return groups


def _leaf(module: nn.Module, name: str, parameter: nn.Parameter, stored: Tensor) -> nn.Parameter:
    parametrize.register_parametrization(module, name, Stored(stored), unsafe=True)
    leaf = nn.Parameter(torch.zeros((), device=stored.device).expand(parameter.shape))
    module.parametrizations[name].original = leaf  # type: ignore[index,union-attr]  # ModuleDict of lists
    return leaf


def prepare_arithmetic(precision: Precision, device: torch.device) -> str:
    """Choose how matrix products in `precision` are computed on `device`; returns it in words for the record."""
    if precision is Precision.BF16 and device.type == "cpu" and not has_instructions():
        compute_bf16_products_through_fp32()
        return "bf16 products through fp32 (this CPU has no bf16 matrix instructions)"
    return f"{precision.value} products by the device"
