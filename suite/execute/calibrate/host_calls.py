"""What the host alone does for a step, to be timed: calls, views, modules, reads, checkpoints, regions, units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from reference_runs.run import Precision
from suite.execute.calibrate.matmul import Inputs
from suite.execute.calibrate.operators import TINY
from suite.execute.measure.clock import Work
from suite.execute.precision import DTYPES, Stored, sharded_policy, share_classes
from suite.job.calibration_job import WEIGHTS_OF_BLOCK
from suite.machine.timing_tables import Subject


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


class _HandedOn(torch.autograd.Function):
    """The first tensor as it is; each weight gets ones as its gradient. One node, whatever the number of weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.weights = len(weights)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return gradient, *gradient.new_ones(ctx.weights, TINY).unbind()


class _WeightsAlone(nn.Module):
    """A block's number of weights, and no arithmetic."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.ones(TINY, device=device) for _ in range(WEIGHTS_OF_BLOCK))

    def forward(self, x: Tensor) -> Tensor:
        out = _HandedOn.apply(x, *self.weights)  # type: ignore[no-untyped-call]
        assert isinstance(out, Tensor)
        return out


def sharded_units(_subject: Subject, sizes: tuple[int, ...], inputs: Inputs, own: dist.ProcessGroup) -> Work:
    """`sizes[0]` units as blocks are in a bf16 recipe, fully sharded over this rank alone, forward and backward."""
    mesh = DeviceMesh.from_group(own, inputs.device.type)
    policy = sharded_policy(Precision.BF16)
    units = nn.Sequential(*(_WeightsAlone(inputs.device) for _ in range(sizes[0])))
    for unit in units:
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    fully_shard(units, mesh=mesh, mp_policy=policy)
    x = torch.ones(TINY, dtype=DTYPES[Precision.BF16], device=inputs.device, requires_grad=True)

    def work() -> None:
        units(x).sum().backward()
        units.zero_grad()

    return work
