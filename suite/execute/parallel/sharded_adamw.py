"""Adam on fp32 masters: one of each parameter, which FSDP may have sharded, or with ZeRO-1 a flat shard of all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference_runs.run import Recipe
from suite.execute.optim.master_weights import MasterWeights, master_weights
from suite.execute.parallel.one_bit.all_reduce import all_gather
from suite.execute.parallel.one_bit.buckets import local
from suite.execute.parallel.scattered_gradients import ScatteredGradients, Share
from suite.execute.precision import WeightGroup, stored_weights
from suite.job.options import Update


@dataclass(frozen=True)
class ShardedAdamW:
    """ZeRO-1: Adam over one flat fp32 shard of each weight group.

    Args:
        masters: of this rank's shard of each group; in fp32 they are slices of the weights themselves.
        shares: of each group.
        scattered: the gradients of the shard, where they are reduce-scattered; None where every rank has whole ones.
    """

    groups: list[WeightGroup]
    masters: MasterWeights
    shares: list[Share]
    scattered: ScatteredGradients | None = None

    def step(self, learning_rate: float, gradient_factor: float | Tensor = 1.0) -> None:
        """One update from the leaves' gradients times `gradient_factor`. Then every rank holds all new weights.

        Of whole gradients it holds a flat fp32 copy of the shard: 4 bytes a parameter of the shard, which
        `gradient_bytes` does not count.
        """
        self.masters.update(learning_rate, self._gradient_shards(), gradient_factor)
        for group, weight, share in zip(self.groups, self.masters.weights, self.shares, strict=True):
            if share.process_group is not None:
                all_gather(group.flat, weight, group=share.process_group)

    def _gradient_shards(self) -> list[Tensor]:
        if self.scattered is not None:
            return self.scattered.shards
        shards = self.masters.gradient_copies
        shards = shards or [torch.empty_like(w, dtype=torch.float32) for w in self.masters.weights]
        for group, shard, share in zip(self.groups, shards, self.shares, strict=True):
            write_flat_gradient(group, start=share.number * shard.numel(), shard=shard)
        return shards

    @property
    def state_tensors(self) -> list[Tensor]:
        return self.masters.state_tensors


def sharded_adamw(
    groups: list[WeightGroup],
    recipe: Recipe,
    *,
    shards: int,
    shard: int,
    process_group: dist.ProcessGroup | None,
    apart: Share | None = None,
    scattered: ScatteredGradients | None = None,
    one_pass: bool = False,
) -> ShardedAdamW:
    """The optimizer of one rank: shard `shard` of `shards`; `process_group` joins the ranks that hold the others.

    Args:
        apart: that of groups apart.
        one_pass: as of `master_weights`.
    """
    usual = Share(shard, shards, process_group if shards > 1 else None)
    shares = [apart if group.apart and apart is not None else usual for group in groups]
    local_groups = [
        (group.weight_decay, [group.flat.chunk(share.shards)[share.number]])
        for group, share in zip(groups, shares, strict=True)
    ]
    return ShardedAdamW(groups, master_weights(local_groups, recipe, one_pass=one_pass), shares, scattered)


def write_flat_gradient(group: WeightGroup, *, start: int, shard: Tensor) -> None:
    """Write elements [start, start + n) of the group's gradient in flat order into the n of `shard`; padding is 0."""
    shard.zero_()
    elements, offset = shard.numel(), 0
    for leaf in group.leaves:
        first, last = max(start, offset), min(start + elements, offset + leaf.numel())
        if first < last and leaf.grad is not None:
            shard[first - start : last - start] = leaf.grad.reshape(-1)[first - offset : last - offset]
        offset += leaf.numel()


@dataclass(frozen=True)
class TensorAdamW:
    """Adam over each parameter, or this rank's shard of it, with a master and a step counter for each.

    Args:
        parameters: that have the gradients: sharded over ranks (DTensor) or whole.
        masters: of what this rank stores of them, which in fp32 is its own master.
    """

    parameters: list[nn.Parameter]
    masters: MasterWeights

    def widened(self) -> dict[nn.Parameter, Tensor]:
        """The gradient of each parameter, a plain tensor, as `step` needs it: see `MasterWeights.widened`."""
        gradients = [
            torch.zeros_like(weight) if parameter.grad is None else local(parameter.grad)
            for parameter, weight in zip(self.parameters, self.masters.weights, strict=True)
        ]
        return dict(zip(self.parameters, self.masters.widened(gradients), strict=True))

    def step(
        self,
        learning_rate: float,
        gradient_factor: float | Tensor = 1.0,
        widened: dict[nn.Parameter, Tensor] | None = None,
    ) -> None:
        """One update from the gradients times `gradient_factor`, without communication; overwrites fp32 gradients.

        Args:
            widened: the gradients in fp32, where they were needed before.
        """
        self.masters.update(learning_rate, list((widened or self.widened()).values()), gradient_factor)

    @property
    def state_tensors(self) -> list[Tensor]:
        return self.masters.state_tensors


def fully_sharded_adamw(
    groups: list[tuple[float, list[nn.Parameter]]],
    recipe: Recipe,
    update: Update = Update.FUSED,
    *,
    one_pass: bool = False,
) -> TensorAdamW:
    """The optimizer of one rank for `groups`: weight decay, and the parameters that have it."""
    local_groups = [
        (weight_decay, [local(parameter.detach()) for parameter in members]) for weight_decay, members in groups
    ]
    parameters = [parameter for _, members in groups for parameter in members]
    return TensorAdamW(parameters, master_weights(local_groups, recipe, update=update, one_pass=one_pass))


def whole_adamw(
    groups: list[WeightGroup], recipe: Recipe, update: Update = Update.FUSED, *, one_pass: bool = False
) -> TensorAdamW:
    """The optimizer of a rank that updates all of its weights: ZeRO-0, or a single data-parallel rank."""
    local_groups = [(group.weight_decay, stored_weights(group)) for group in groups]
    leaves = [leaf for group in groups for leaf in group.leaves]
    return TensorAdamW(leaves, master_weights(local_groups, recipe, update=update, one_pass=one_pass))
