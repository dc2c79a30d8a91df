"""AdamW on fp32 master weights, its state whole (ZeRO-0) or sharded over the data-parallel axis (ZeRO-1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference_runs.run import Recipe
from suite.execute.precision import WeightGroup

# torch 2.13 renamed the collective and warns of the old name; 2.11 has only the old one
_all_gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor


@dataclass(frozen=True)
class ShardedAdamW:
    """torch.optim.AdamW over one flat fp32 shard of each weight group.

    Args:
        masters: this rank's fp32 shard of each group; in fp32 it is a slice of the weights themselves.
        shard: which shard is this rank's; `process_group` is None where one shard is everything.
    """

    groups: list[WeightGroup]
    masters: list[nn.Parameter]
    adamw: torch.optim.AdamW
    shard: int
    process_group: dist.ProcessGroup | None

    def step(self, learning_rate: float) -> None:
        """One update from the leaves' gradients; afterwards every rank holds all new weights.

        Holds a flat fp32 copy of the shard's gradient for its duration: 4 bytes a parameter of the shard, which
        `gradient_bytes` does not count.
        """
        for group, master in zip(self.groups, self.masters, strict=True):
            master.grad = flat_gradient_shard(group, start=self.shard * master.numel(), elements=master.numel())
        for settings in self.adamw.param_groups:
            settings["lr"] = learning_rate
        self.adamw.step()
        for group, master in zip(self.groups, self.masters, strict=True):
            master.grad = None
            own = group.flat[self.shard * master.numel() : (self.shard + 1) * master.numel()]
            if own.data_ptr() != master.data_ptr():
                own.copy_(master.detach())
            if self.process_group is not None:
                _all_gather(group.flat, own, group=self.process_group)


def sharded_adamw(
    groups: list[WeightGroup], recipe: Recipe, *, shards: int, shard: int, process_group: dist.ProcessGroup | None
) -> ShardedAdamW:
    """The optimizer of one rank: shard `shard` of `shards`; `process_group` joins the ranks that hold the others."""
    masters: list[nn.Parameter] = []
    for group in groups:
        elements = group.flat.numel() // shards
        own = group.flat[shard * elements : (shard + 1) * elements]
        masters.append(nn.Parameter(own if own.dtype is torch.float32 else own.float()))
    adamw = torch.optim.AdamW(
        [
            {"params": [master], "weight_decay": group.weight_decay}
            for group, master in zip(groups, masters, strict=True)
        ],
        lr=recipe.learning_rate,
        betas=(recipe.beta1, recipe.beta2),
        eps=recipe.epsilon,
        fused=True,
    )
    return ShardedAdamW(groups, masters, adamw, shard, process_group if shards > 1 else None)


def flat_gradient_shard(group: WeightGroup, *, start: int, elements: int) -> Tensor:
    """Elements [start, start + elements) of the group's gradient in flat order, fp32; padding is 0."""
    shard = torch.zeros(elements, dtype=torch.float32, device=group.flat.device)
    offset = 0
    for leaf in group.leaves:
        first, last = max(start, offset), min(start + elements, offset + leaf.numel())
        if first < last and leaf.grad is not None:
            shard[first - start : last - start] = leaf.grad.reshape(-1)[first - offset : last - offset]
        offset += leaf.numel()
    return shard
