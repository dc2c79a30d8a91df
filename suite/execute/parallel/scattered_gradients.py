"""Gradients in flat buffers, which leaves' gradients view, exchanged once a step.

Those of ZeRO-1 are reduce-scattered: a rank then has those of its shard, as in Megatron-LM's distributed optimizer
(core/distributed/param_and_grad_buffer.py). Those of a pipeline's stage that has replicas, each with micro-batches of
its own, are summed over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from suite.execute.precision import GRADIENT_DTYPES, WeightGroup

# torch 2.13 renamed the collective, as it did all-gather (see one_bit/all_reduce.py); 2.11 has only the old one
reduce_scatter = dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor


class Share(NamedTuple):
    """Which of so many equal shards is this rank's; `process_group` joins the ranks with the others, None with one."""

    number: int
    shards: int
    process_group: dist.ProcessGroup | None


@dataclass(frozen=True)
class ScatteredGradients:
    """The gradients of all weight groups of a rank.

    Args:
        flat: of each group, padded as its weights, in the dtype in which gradients accumulate; the leaves' view them.
        shards: this rank's slice of each.
        shares: whose shards they are, of each.
        ranks: over which gradients are means, those that share experts out too.
    """

    groups: list[WeightGroup]
    flat: list[Tensor]
    shards: list[Tensor]
    shares: list[Share]
    ranks: int

    def reduce(self) -> None:
        """Make the shards the means over the ranks, in place and in a message a group; the rest means nothing then.

        Experts that ranks share out have gradients of all of these ranks' samples before.
        """
        torch._foreach_div_(self.flat, self.ranks)
        for flat, shard, share in zip(self.flat, self.shards, self.shares, strict=True):
            if share.process_group is not None:
                reduce_scatter(shard, flat, group=share.process_group)

    def clear(self) -> None:
        """Zeros, to which the next backward pass adds."""
        torch._foreach_zero_(self.flat)

    def own(self) -> dict[nn.Parameter, tuple[int, Tensor]]:
        """The elements of each leaf's gradient that are in the shard, flat, and the number of the first of them."""
        return {leaf: (start, shard[first:last]) for leaf, shard, first, last, start in self._overlaps()}

    def whole(self) -> dict[nn.Parameter, Tensor]:
        """`own` in the shape of the leaf, 0 where another rank has it: these add up to the gradient over the ranks."""
        gradients = {leaf: torch.zeros_like(leaf, dtype=self.flat[0].dtype) for g in self.groups for leaf in g.leaves}
        for leaf, shard, first, last, start in self._overlaps():
            gradients[leaf].view(-1)[start : start + last - first] = shard[first:last]
        return gradients

    def _overlaps(self) -> Iterator[tuple[nn.Parameter, Tensor, int, int, int]]:
        """Leaf, shard, first and last element there, and first element in the leaf, where both overlap."""
        for group, shard, share in zip(self.groups, self.shards, self.shares, strict=True):
            begin, offset = share.number * shard.numel(), 0
            for leaf in group.leaves:
                first, last = max(begin, offset), min(begin + shard.numel(), offset + leaf.numel())
                if first < last:
                    yield leaf, shard, first - begin, last - begin, first - offset
                offset += leaf.numel()


def scattered_gradients(
    groups: list[WeightGroup], *, shards: int, shard: int, process_group: dist.ProcessGroup, apart: Share | None = None
) -> ScatteredGradients:
    """Buffers of zeros for `groups`, which the leaves' gradients view from now on; shard `shard` of `shards`.

    Args:
        apart: that of groups apart.
    """
    usual = Share(shard, shards, process_group)
    shares = [apart if group.apart and apart is not None else usual for group in groups]
    buffers = [gradient_buffer(group) for group in groups]
    own = [flat.chunk(share.shards)[share.number] for flat, share in zip(buffers, shares, strict=True)]
    return ScatteredGradients(groups, buffers, own, shares, shards)


def gradient_buffer(group: WeightGroup) -> Tensor:
    """Zeros in the dtype in which gradients accumulate, which the gradients of the group's leaves view from now on."""
    flat = torch.zeros_like(group.flat, dtype=GRADIENT_DTYPES[group.flat.dtype])
    sizes = [leaf.numel() for leaf in group.leaves]
    for leaf, part in zip(group.leaves, flat[: sum(sizes)].split(sizes), strict=True):
        leaf.grad = part.view(leaf.shape)
    return flat


@dataclass(frozen=True)
class ReplicaGradients:
    """The gradients of some weight groups, which gather in flat buffers that live as long as the stage.

    Args:
        flat: of each group; the leaves' gradients view it.
        sum_up: sums a tensor over the replicas, in place.
    """

    flat: list[Tensor]
    sum_up: Callable[[Tensor], object]

    def finish(self, *others: Tensor) -> None:
        """Sum them over the replicas, and `others`, a message each; all replicas do at the same update."""
        for tensor in (*self.flat, *others):
            self.sum_up(tensor)

    def clear(self) -> None:
        """Zeros, to which the next backward pass adds."""
        torch._foreach_zero_(self.flat)


def replica_gradients(groups: list[WeightGroup], sum_up: Callable[[Tensor], object]) -> ReplicaGradients:
    """Buffers of zeros for `groups`, which the leaves' gradients view from now on."""
    return ReplicaGradients([gradient_buffer(group) for group in groups], sum_up)
