"""What the host alone does for a step, to be timed: calls, views, modules, reads, checkpoints, regions, units."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from suite.calibration_job import WEIGHTS_OF_BLOCK
from suite.execute.measure.operators import TINY
from suite.execute.measure.products import Inputs
from suite.execute.measure.stopwatch import Work
from suite.execute.precision import Stored, share_classes
from suite.measured_seconds import Subject


class _Weights(nn.Module):
    """Reads weights as the models do: plain ones, or stand-ins of what is stored elsewhere."""

    def __init__(self, count: int, device: torch.device, *, stand_ins: bool) -> None:
        super().__init__()
        for number in range(count):
            stored = torch.ones(TINY, device=device)
            holder = nn.Module()
            holder.weight = nn.Parameter(torch.zeros_like(stored))
            if stand_ins:
                parametrize.register_parametrization(holder, "weight", Stored(stored), unsafe=True)
            self.add_module(str(number), holder)
        share_classes(self)

    def forward(self, x: Tensor) -> Tensor:
        for holder in self.children():
            weight = holder.weight
            assert isinstance(weight, Tensor)
            x = x * weight
        return x


def calls(_subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Work:
    """`sizes[0]` additions of almost nothing, one after the other: what handing over a call takes."""
    x = inputs.normal(TINY, dtype=torch.float32).clone()

    def work() -> None:
        for _ in range(sizes[0]):
            x.add_(1.0)

    return work


def chained(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Work:
    """`sizes[0]` views, or calls of a module that does nothing, one of the other's result, recorded by autograd.

    Backward: a start of autograd's engine and as many nodes that compute nothing.
    """
    nothing = nn.Identity()
    return _in_a_row(nothing if subject.operation == "module" else lambda y: y.view_as(y), [], subject, sizes, inputs)


def _in_a_row(
    step: Callable[[Tensor], Tensor],
    leaves: list[nn.Parameter],
    subject: Subject,
    sizes: tuple[int, ...],
    inputs: Inputs,
) -> Work:
    """`step` of its own result, `sizes[0]` times; backward: the gradients of the first input and of `leaves`."""
    x = inputs.normal(TINY, dtype=torch.float32).detach().requires_grad_()

    def forward() -> Tensor:
        y = x
        for _ in range(sizes[0]):
            y = step(y)
        return y

    if subject.variant == "forward":
        return forward
    out, gradient = forward(), torch.ones_like(x)
    return lambda: torch.autograd.grad(out, [x, *leaves], gradient, retain_graph=True)


def weight_reads(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Work:
    """`sizes[0]` stand-ins read one after the other; backward: their gradients handed on."""
    weights = _Weights(sizes[0], inputs.device, stand_ins=True)

    def forward() -> list[Tensor]:
        return [holder.weight for holder in weights.children()]  # type: ignore[misc]  # a parametrized tensor

    if subject.variant == "forward":
        return forward
    out, leaves = forward(), list(weights.parameters())
    gradients = [torch.ones_like(leaf) for leaf in leaves]
    return lambda: torch.autograd.grad(out, leaves, gradients, retain_graph=True)


def checkpoints(_subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Work:
    """`sizes[0]` times nothing, to be computed again: forward, and backward with that."""
    x = inputs.normal(TINY, dtype=torch.float32).detach().requires_grad_()

    def work() -> None:
        y = x
        for _ in range(sizes[0]):
            y = checkpoint(torch.mul, y, y.detach(), use_reentrant=False)
        torch.autograd.grad(y, x, torch.ones_like(x))

    return work


def regions(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Work:
    """`sizes[0]` calls of a compiled module with a block's number of weights and almost no arithmetic."""
    module = _Weights(WEIGHTS_OF_BLOCK, inputs.device, stand_ins=False)
    leaves = list(module.parameters())
    module.compile()
    return _in_a_row(module, leaves, subject, sizes, inputs)


def sharded_units(_subject: Subject, sizes: tuple[int, ...], inputs: Inputs, own: dist.ProcessGroup) -> Work:
    """`sizes[0]` layers, each fully sharded over this rank alone, forward and backward."""
    mesh = DeviceMesh.from_group(own, inputs.device.type)
    layers = nn.Sequential(*(nn.Linear(8, 8, device=inputs.device) for _ in range(sizes[0])))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    x = torch.ones(8, 8, device=inputs.device)

    def work() -> None:
        layers(x).sum().backward()
        layers.zero_grad()

    return work
