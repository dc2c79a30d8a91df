"""Work of the host for a step besides operators, ready to be timed: calls, views, modules, compiled regions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from reference_runs.run import Precision
from suite.execute.calibrate.operators import TINY, Inputs
from suite.execute.measure.clock import Call
from suite.execute.precision import DTYPES, LeafReader, sharded_policy, share_classes
from suite.job.calibration_job import WEIGHTS_OF_BLOCK
from suite.machine.timing_tables import Subject


class _Weights(nn.Module):
    """Multiplies by weights, read as the models read theirs: plain ones, or stand-ins for weights stored elsewhere."""

    def __init__(self, count: int, device: torch.device, *, stand_ins: bool) -> None:
        super().__init__()
        for number in range(count):
            stored = torch.ones(TINY, device=device)
            holder = nn.Module()
            holder.weight = nn.Parameter(torch.zeros_like(stored))
            if stand_ins:
                parametrize.register_parametrization(holder, "weight", LeafReader(stored=stored), unsafe=True)
            self.add_module(str(number), holder)
        share_classes(self)

    def forward(self, x: Tensor) -> Tensor:
        for holder in self.children():
            weight = holder.weight
            assert isinstance(weight, Tensor)
            x = x * weight
        return x


def calls(_subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Call:
    """`sizes[0]` additions on a tiny tensor, one after the other: the cost of a call."""
    x = inputs.normal(TINY, dtype=torch.float32).clone()

    def call() -> None:
        for _ in range(sizes[0]):
            x.add_(1.0)

    return call


def chained(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Call:
    """`sizes[0]` views, or calls of an empty module, each of the previous result, recorded by autograd.

    Backward: a start of autograd's engine and as many nodes that compute nothing.
    """
    step = nn.Identity() if subject.operation == "module" else lambda y: y.view_as(y)
    return _repeated(step, [], subject, sizes[0], inputs)


def _repeated(
    step: Callable[[Tensor], Tensor], leaves: list[nn.Parameter], subject: Subject, count: int, inputs: Inputs
) -> Call:
    """`step` of its own result, `count` times. Backward: the gradients of the first input and of `leaves`."""
    x = inputs.normal(TINY, dtype=torch.float32).detach().requires_grad_()

    def forward() -> list[Tensor]:
        y = x
        for _ in range(count):
            y = step(y)
        return [y]

    return _forward_or_backward(forward, [x, *leaves], subject)


def _forward_or_backward(forward: Callable[[], list[Tensor]], leaves: Sequence[Tensor], subject: Subject) -> Call:
    """The pass that `subject.variant` names; every output's gradient is 1."""
    if subject.variant == "forward":
        return forward
    out = forward()
    gradients = [torch.ones_like(y) for y in out]
    return lambda: torch.autograd.grad(out, leaves, gradients, retain_graph=True)


def weight_reads(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Call:
    """`sizes[0]` stand-ins read one after the other. Backward: their gradients."""
    weights = _Weights(sizes[0], inputs.device, stand_ins=True)

    def forward() -> list[Tensor]:
        return [holder.weight for holder in weights.children()]  # type: ignore[misc]  # a parametrized tensor

    return _forward_or_backward(forward, list(weights.parameters()), subject)


def checkpoints(_subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Call:
    """`sizes[0]` tiny checkpoints, forward, and backward with recomputation."""
    x = inputs.normal(TINY, dtype=torch.float32).detach().requires_grad_()

    def call() -> None:
        y = x
        for _ in range(sizes[0]):
            y = checkpoint(torch.mul, y, y.detach(), use_reentrant=False)
        torch.autograd.grad(y, x, torch.ones_like(x))

    return call


def regions(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Call:
    """`sizes[0]` calls of a compiled module with as many weights as a block, and almost no arithmetic."""
    module = _Weights(WEIGHTS_OF_BLOCK, inputs.device, stand_ins=False)
    leaves = list(module.parameters())
    module.compile()
    return _repeated(module, leaves, subject, sizes[0], inputs)


class _WithWeights(torch.autograd.Function):
    """A copy of the first tensor. Each weight gets ones as its gradient. One node, whatever the number of weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.weights = len(weights)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return gradient, *gradient.new_ones(ctx.weights, TINY).unbind()


class _WeightsAlone(nn.Module):
    """As many weights as a block, and no arithmetic."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.ones(TINY, device=device) for _ in range(WEIGHTS_OF_BLOCK))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _WithWeights.apply(x, *self.weights)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return out


def sharded_units(_subject: Subject, sizes: tuple[int, ...], inputs: Inputs, group: dist.ProcessGroup) -> Call:
    """`sizes[0]` units, fully sharded as the blocks of a bf16 recipe, over this rank alone; forward and backward.

    Args:
        group: of this rank alone.
    """
    mesh = DeviceMesh.from_group(group, inputs.device.type)
    policy = sharded_policy(Precision.BF16)
    units = nn.Sequential(*(_WeightsAlone(inputs.device) for _ in range(sizes[0])))
    for module in (*units, units):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    x = torch.ones(TINY, dtype=DTYPES[Precision.BF16], device=inputs.device, requires_grad=True)

    def call() -> None:
        units(x).sum().backward()
        units.zero_grad()

    return call
