"""A step of any PyTorch model, by one rank of a cluster of any size, without its memory.

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from suite.execute.dry_run.any_model import dry_run

def model(mesh):
    layers = [nn.TransformerEncoderLayer(8192, 64, 32768, batch_first=True) for _ in range(8)]
    for layer in layers:
        fully_shard(layer, mesh=mesh["dp"])
    return fully_shard(nn.Sequential(*layers), mesh=mesh["dp"])

def loss(model):
    return model(torch.randn(1, 4096, 8192)).square().mean()

counted = dry_run(model, loss, mesh={"dp": 256})
print(counted.peak_bytes / 2**30, counted.flop, counted.collectives)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import msgspec
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from suite.execute.dry_run.allocations import Allocations
from suite.execute.dry_run.fake_tensors import fake_tensors
from suite.execute.dry_run.model_step import ModelStep, StepClock
from suite.execute.dry_run.rank import StepCollectives
from suite.execute.measure.counters import LocalFlopCounter, stored
from suite.execute.parallel.fake_group import fake_group
from suite.job.dry_run_job import Moment
from suite.job.events import CountedCollective

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class CountedModel(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one rank in a step after the first.

    Args:
        parameters: elements that the rank stores.
        flop: of its matrix products, 2 M N K each, recomputed ones too; of fused attention the full square.
        collectives: calls and payload bytes by mesh axis and collective.
        peak_bytes: the most that its tensors hold at a time; what kernels need inside is not in it.
        at_peak: bytes by category then.
        history: at most some hundred moments of the step, in order.
    """

    parameters: int
    flop: int
    collectives: list[CountedCollective]
    peak_bytes: int
    at_peak: Moment
    history: list[Moment]


def dry_run(
    model: Callable[[DeviceMesh], nn.Module],
    loss: Callable[[nn.Module], Tensor],
    *,
    mesh: Mapping[str, int],
    rank: int = 0,
    optimizer: MakeOptimizer = torch.optim.AdamW,
) -> CountedModel:
    """Build a model and execute two steps of it as `rank` of a mesh; return what the second one counts.

    Call it once in a process for each mesh: PyTorch's DTensor remembers the first one's groups.

    Args:
        model: makes the model on a mesh of CPU ranks, sharded and split as it is to be (fully_shard,
            parallelize_module, DistributedDataParallel over `mesh.get_group()`). No tensor in it has memory.
        loss: a forward pass to the loss, whose backward pass and update follow. Every number is 1: the model must not
            choose by its values.
        mesh: axis -> ranks, the last axis with consecutive ranks.
        optimizer: of the parameters.

    Raises:
        ValueError: there is no such rank.
    """
    ranks = math.prod(mesh.values())
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} of {ranks}")
    clock = StepClock()
    allocations = Allocations(clock.category)
    with fake_group(rank, ranks):
        device_mesh = init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh))
        axes: dict[str, str] = {device_mesh.get_group(axis).group_name: axis for axis in mesh}
        with fake_tensors(allocations):
            built = model(device_mesh)
            updates = (optimizer(built.parameters()),)
            step = ModelStep(built, lambda _: loss(built), updates, allocations=allocations, clock=clock)
            step.prepare()
            collectives, flop = StepCollectives(axes), LocalFlopCounter()
            step.measure(collectives, flop)
            fullest, history = allocations.history()
            parameters = sum(stored(parameter).numel() for parameter in built.parameters())
    return CountedModel(
        parameters=parameters,
        flop=int(flop.get_total_flops()),
        collectives=collectives.collectives(),
        peak_bytes=allocations.peak,
        at_peak=max(fullest, key=lambda moment: moment.total),
        history=history,
    )
