"""One step of one stage of a pipeline without flush: its passes up to its next update, and this."""

from __future__ import annotations

import math
from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from suite.execute.measure.phases import Part
from suite.execute.optim.learning_rate import gradient_factor, learning_rate, squared_norm
from suite.execute.parallel.asynchronous_pipeline import AsynchronousStage
from suite.execute.parallel.mesh import PIPELINE
from suite.execute.parallel.parallelize import Training
from suite.execute.rank import NotFiniteError
from suite.execute.training.outcome import StepOutcome
from suite.execute.training.random_state import random_state
from suite.execute.training.step import Steps
from suite.job.checkpoints import Progress
from suite.job.training_job import Job


class AsynchronousSteps(Steps):
    """Passes and updates of one stage, step after step; a step of one stage is not at the time of another's.

    Stages clip their gradients each by its own norm: the whole model's is known when the first stage has ended its
    passes, which none waits for. Loss and whole norm of a step are sums over the stages that are begun with each update
    and read when no stage has to wait for them.
    """

    def __init__(self, job: Job, training: Training, mesh: DeviceMesh, device: torch.device) -> None:
        super().__init__(job, training, mesh, device)
        assert training.without_flush is not None
        self._parts = training.without_flush
        self._rule = self._parts.own.rule
        (module,) = training.modules
        self._stage = AsynchronousStage(
            module,
            self._parts.versioned,
            self._rule,
            before=self._parts.before,
            after=self._parts.after,
            phases=self.phases,
            begins=self._begins,
            done=self._done,
        )
        self._given = 0
        self._random: dict[int, dict[str, Tensor]] = {}  # before the forward passes of what is in flight
        self._reductions: deque[tuple[Tensor, dist.Work]] = deque()
        first, ahead = self._rule.at(0), 0
        if self._rule.stage:  # micro-batches of all replicas
            ahead = first.in_flight * first.replicas - (self._rule.in_flight - 1) * self._rule.replicas
        self._unread = 1 + -(-ahead // (self._rule.micro_batches * self._rule.replicas))

    def forward_and_backward(self) -> Tensor:
        self._begin()
        samples, number = self.job.layout.micro_batch, self._stage.missing
        dealt = [self._rule.replicas * n + self._replica for n in range(self._given, self._given + number)]
        batches = [self._micro_batch(n * samples, samples) for n in dealt]
        self._given += number
        return self._stage.step([each.tokens_BT for each in batches], [each.arguments for each in batches])

    @property
    def staleness(self) -> int | None:
        return max(self._stage.staleness)

    def _begins(self, micro_batch: int) -> None:
        if self.job.checkpoints is not None and self.job.checkpoints.every is not None:
            self._random[micro_batch] = random_state(self.device)

    def _done(self, micro_batch: int) -> None:
        self._random.pop(micro_batch, None)
        if self._parts.table is not None and self._rule.stage:
            self._parts.table.update_after(micro_batch, self.phases)

    def update(self, loss: Tensor) -> list[StepOutcome]:
        with self.phases.phase(Part.UPDATE):
            squared = self._update_own(loss)
        next_micro_batch = self._rule.first(self.step + 1)
        if self._parts.table is not None:
            self._parts.table.begin_sum()
            if self._rule.stage == 0:
                of_table = self._parts.table.update_after(next_micro_batch - 1, self.phases)
                assert of_table is not None
                squared = squared + of_table
        both = torch.stack([loss, squared])
        if self._rule.of_stages and self._replica:  # each replica has the whole of its stage
            both.zero_()
        work = dist.all_reduce(both, group=self._mesh.get_group(PIPELINE), async_op=True)
        self._reductions.append((both, work))
        self.step += 1
        return self._outcomes(unread=self._unread)

    def _update_own(self, loss: Tensor) -> Tensor:
        """Update what the stage alone has; return the squared norm of its gradient."""
        if not math.isfinite(loss.item()):
            raise NotFiniteError(f"loss is {loss.item()} at step {self.step}", at_fault=True)
        self._parts.sum_over_replicas(loss)
        squared = squared_norm([leaf.gradient for leaf in self._parts.leaves], device=self.device)
        norm = math.sqrt(squared.item())
        if not math.isfinite(norm):
            raise NotFiniteError(f"the stage's gradient norm is {norm} at step {self.step}", at_fault=True)
        self._samples_trained += self._global_batch
        self._parts.own.weights.begin_update(oldest=self._rule.oldest(self._rule.first(self.step + 1)))
        rate = learning_rate(self.job.recipe, self._samples_trained)
        self._parts.step(rate, gradient_factor(self.job.recipe, norm))
        self._parts.clear()
        return squared

    def random_state(self) -> dict[str, Tensor]:
        return self._random[min(self._random)] if self._random else random_state(self.device)

    def have(self, progress: Progress) -> None:
        """Have all tensors of training as they were then; what they hold is still to be loaded."""
        self._parts.have(progress.step)

    def continue_from(self, progress: Progress) -> None:
        """As of all steps; forward passes that were in flight come again."""
        super().continue_from(progress)
        self._given = self._rule.first(self.step)
        self._stage.continue_from(self.step)

    def settled(self) -> list[StepOutcome]:
        return self._outcomes(unread=0)

    def _outcomes(self, *, unread: int) -> list[StepOutcome]:
        known = []
        while len(self._reductions) > unread:
            both, work = self._reductions.popleft()
            with self.phases.phase(Part.PIPELINE):
                work.wait()
            loss, squared = both.tolist()
            known.append(StepOutcome(loss, math.sqrt(squared), None, False))
        return known

    def remaining(self) -> list[StepOutcome]:
        self._stage.finish()
        if self._parts.table is not None:
            self._parts.table.finish()
        return self._outcomes(unread=0)
