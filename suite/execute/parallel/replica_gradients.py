"""Gradients of a stage that has replicas, each with micro-batches of its own: summed over them once an update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from suite.execute.parallel.scattered_gradients import gradient_buffer
from suite.execute.precision import WeightGroup


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
