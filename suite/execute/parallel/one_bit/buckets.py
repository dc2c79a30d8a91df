"""How 1-bit Adam divides parameters: those that are averaged as one vector, exactly, or not at all."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard


@dataclass
class Bucket:
    """Parameters that are averaged as one vector."""

    group: int  # the number of their parameter group
    parameters: list[Tensor] = field(default_factory=list)

    @property
    def elements(self) -> int:
        return sum(local(parameter).numel() for parameter in self.parameters)


def parameter_groups(network: nn.Module) -> list[dict[str, Any]]:
    """Named parameters of `network` in two groups: compressed as usual, and tables that are averaged exactly.

    Tables are the weights of nn.Embedding, and others of the same shape, as of a head. Rows of rare tokens have small
    second moments: with one size of momentum for all they would diverge.
    """
    tables = [module.weight for module in network.modules() if isinstance(module, nn.Embedding)]
    shapes = {table.shape for table in tables}
    named = [pair for pair in network.named_parameters() if pair[1].requires_grad]
    layers, exact = ([pair for pair in named if (pair[1].shape in shapes) is table] for table in (False, True))
    groups: list[dict[str, Any]] = [{"params": layers}, {"params": exact, "compressed": False}]
    return [group for group in groups if group["params"]]


def division(
    parameter_groups: Iterable[dict[str, Any]], process_group: dist.ProcessGroup | None
) -> tuple[list[Bucket], list[Tensor], list[Tensor]]:
    """The parameters of an optimizer's groups: in buckets if compressed, averaged exactly, and without gradient.

    Raises:
        ValueError: a parameter is complex or sharded over `process_group`.
    """
    buckets: dict[tuple[int, str], Bucket] = {}
    exact: list[Tensor] = []
    frozen: list[Tensor] = []
    ranks = dist.get_process_group_ranks(process_group)
    for index, group in enumerate(parameter_groups):
        numbered = [f"parameter {number} of group {index}" for number, _ in enumerate(group["params"])]
        names = group.get("param_names") or numbered
        for name, parameter in zip(names, group["params"], strict=True):
            _refuse_sharded(name, parameter, ranks)
            if parameter.is_complex():
                raise ValueError(f"{name}: allowed real numbers, got {parameter.dtype}")
            compressed = parameter.dim() >= 2 if group["compressed"] is None else group["compressed"]
            if not parameter.requires_grad:
                frozen.append(parameter)
            elif not compressed:
                exact.append(parameter)
            elif parameter.numel():
                layer = re.match(r"(?:[^.]+\.)*?\d+\.", name)
                key = (index, layer[0] if layer else name)
                buckets.setdefault(key, Bucket(index)).parameters.append(parameter)
    return list(buckets.values()), exact, frozen


def _refuse_sharded(name: str, parameter: Tensor, ranks: list[int]) -> None:
    if not isinstance(parameter, DTensor):
        return
    mesh = parameter.device_mesh
    for dim, placement in enumerate(parameter.placements):
        over = dist.get_process_group_ranks(mesh.get_group(dim))
        if isinstance(placement, Shard) and len(set(over) & set(ranks)) > 1:
            raise ValueError(f"{name}: allowed whole on each data-parallel rank, got sharded over ranks {over}")


def average_exactly(parameters: list[Tensor], process_group: dist.ProcessGroup | None) -> bool:
    """Average the gradients of `parameters` in one fp32 all-reduce; return whether all are finite on all ranks."""
    if not parameters:
        return True
    gradients = [gradient_of(parameter) for parameter in parameters]
    averaged = flat(gradients)
    ranks = dist.get_world_size(process_group)
    if ranks > 1:
        dist.all_reduce(averaged.div_(ranks), group=process_group)
    if not bool(torch.linalg.vector_norm(averaged).isfinite()):
        return False
    for parameter, mean in zip(parameters, averaged.split([g.numel() for g in gradients]), strict=True):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        local(parameter.grad).copy_(mean.view_as(local(parameter.grad)))
    return True


def has_equal_gradients(parameters: list[Tensor], process_group: dist.ProcessGroup | None) -> bool:
    """Whether all ranks, two or more, have gradients of the same norm: they were averaged."""
    gradients = [gradient_of(parameter) for parameter in parameters]
    if dist.get_world_size(process_group) == 1 or not gradients:
        return False
    norm = torch.stack(torch._foreach_norm(gradients)).sum()
    extremes = torch.stack([norm, -norm])
    dist.all_reduce(extremes, dist.ReduceOp.MAX, group=process_group)
    return bool(float(extremes[0]) == -float(extremes[1]) != 0)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of `tensor`, a plain tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gradient_of(parameter: Tensor) -> Tensor:
    """This rank's gradient, a plain tensor; 0 where there is none."""
    return torch.zeros_like(local(parameter)) if parameter.grad is None else local(parameter.grad)


def flat(tensors: list[Tensor]) -> Tensor:
    """One after the other, in fp32; a copy."""
    return torch.cat([tensor.reshape(-1).float() for tensor in tensors])
