"""A table that first and last stage of a pipeline without flush share: one update of it, at the pace of the first."""

from __future__ import annotations

import math
from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor

from reference_runs.run import Recipe
from suite.execute.measure.phases import Part, Phases
from suite.execute.optim.learning_rate import gradient_factor, learning_rate, squared_norm
from suite.execute.parallel.asynchronous_pipeline import Versioned
from suite.execute.parallel.local_parameter import LocalParameter
from suite.execute.parallel.sharded_adamw import TensorAdamW
from suite.execute.rank import NotFiniteError


class TiedTable:
    """Both ends sum their gradients of a step and update the table alike, when both have gone through its passes.

    The last stage has passed those long before, and does not wait: it sends its part, and updates its copy where the
    first stage does, counted in micro-batches. So at both ends a micro-batch is computed with the same version, that of
    the first stage, and gradients are clipped by the table's own norm, which both know.

    Args:
        versioned: the table's versions, by the rule of the first stage.
        samples: of a micro-batch.
        group: first and last stage; with all of their replicas, where they differ in their number.
    """

    def __init__(
        self,
        leaf: LocalParameter,
        versioned: Versioned,
        optimizer: TensorAdamW,
        recipe: Recipe,
        *,
        samples: int,
        group: dist.ProcessGroup,
    ) -> None:
        self.leaf, self.optimizer = leaf, optimizer
        self.versioned = versioned
        self._recipe, self._samples, self._group = recipe, samples, group
        self._sums: deque[tuple[Tensor, dist.Work | _Done]] = deque()
        self._updates = 0

    def begin_sum(self) -> None:
        """Begin to sum the gradient of the step that has ended; a new one gathers from now on."""
        gradient = self.leaf.gradient
        self.leaf.parameter.grad = None
        work = dist.all_reduce(gradient, group=self._group, async_op=True)
        self._sums.append((gradient, work))

    def update_after(self, micro_batch: int, phases: Phases) -> Tensor | None:
        """Update the table, if that is due after the backward pass of a micro-batch; waiting is the pipeline's.

        Returns the squared norm of its gradient; None where nothing is due.

        Raises:
            NotFiniteError: it is not finite.
        """
        rule = self.versioned.rule
        if rule.made(micro_batch + 1) == self._updates:
            return None
        gradient, work = self._sums.popleft()
        with phases.phase(Part.PIPELINE):
            work.wait()
        with phases.phase(Part.UPDATE):
            squared = squared_norm([gradient], device=gradient.device)
            norm = math.sqrt(squared.item())
            if not math.isfinite(norm):
                raise NotFiniteError(f"the tied table's gradient norm is {norm} at step {self._updates}", at_fault=True)
            self._updates += 1
            self.versioned.weights.begin_update(oldest=rule.oldest(micro_batch + 1))
            trained = rule.replicas * rule.first(self._updates)
            rate = learning_rate(self._recipe, trained * self._samples)
            gathering, self.leaf.parameter.grad = self.leaf.parameter.grad, gradient
            self.optimizer.step(rate, gradient_factor(self._recipe, norm))
            self.leaf.parameter.grad = gathering
        return squared

    def sums(self) -> list[Tensor]:
        """Sums that no update has read yet, complete."""
        for _, work in self._sums:
            work.wait()
        return [gradient for gradient, _ in self._sums]

    def have(self, update: int) -> None:
        """Have versions and sums as after so many updates of this stage; what they hold is still to be loaded."""
        rule = self.versioned.rule
        micro_batch = rule.first(update)
        self._updates = rule.made(micro_batch)
        parameter = self.leaf.parameter
        dtype = parameter.grad_dtype or parameter.dtype
        sums = [torch.zeros_like(parameter, dtype=dtype, requires_grad=False) for _ in range(self._updates, update)]
        self._sums = deque((each, _Done()) for each in sums)
        storages = rule.storages(micro_batch)
        self.versioned.weights.have(oldest=rule.oldest(micro_batch), newest=self._updates, storages=storages)

    def finish(self) -> None:
        """Wait for the sums that no update will read."""
        self.sums()
        self._sums.clear()


class _Done:
    """Handle of a message that had arrived when a checkpoint was stored."""

    def wait(self) -> bool:
        return True
