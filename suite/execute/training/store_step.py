"""One training step of a worker at a parameter store: it computes a gradient, pushes it, and pulls new weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from suite.execute.measure import clock
from suite.execute.optim.learning_rate import squared_norm
from suite.execute.parallel.parallelize import Training
from suite.execute.parallel.parameter_store import ParameterStore
from suite.execute.rank import NotFiniteError
from suite.execute.training.outcome import StepOutcome
from suite.execute.training.step import Steps
from suite.job.events import CountedCollective, Event, Phase, StoreWork
from suite.job.synchronisation import slowing_factor, updates_of
from suite.job.training_job import Job


class StoreSteps(Steps):
    """Steps whose gradients go to a parameter store. Loss and gradient norm are this worker's own."""

    def __init__(self, job: Job, training: Training, mesh: DeviceMesh, device: torch.device) -> None:
        super().__init__(job, training, mesh, device)
        self._begun = 0.0
        self._seconds: tuple[list[float], list[float], list[float]] = ([], [], [])  # computed, slept, waited

    def forward_and_backward(self) -> Tensor:
        self._begun = clock.now(self.device)
        return super().forward_and_backward()

    def _update(self, loss: Tensor) -> StepOutcome:
        store, own = self._store, loss.item()
        if not math.isfinite(own):
            raise NotFiniteError(f"loss is {own} at step {self.step}", at_fault=True)
        gradients = [leaf.gradient for leaf in self.training.leaves]
        norm = math.sqrt(squared_norm(gradients, device=self.device).item())
        computed = clock.now(self.device) - self._begun
        factor = slowing_factor(self.job.slow_ranks, dist.get_rank(), self.step, ranks=self.job.layout.ranks)
        slept = (factor - 1) * computed
        if slept:
            time.sleep(slept)
        self.step += 1
        store.push()
        waited = store.pull() if self.step < self.job.steps else 0.0
        for seconds, value in zip(self._seconds, (computed, slept, waited), strict=True):
            seconds.append(value)
        return StepOutcome(own, norm, None, False)

    def finish(self, report: Callable[[Event], None]) -> None:
        words = "serve the parameter store until every worker is done"
        self._store.finish(lambda: report(Phase(words, time.time())))

    def with_store(self, collectives: list[CountedCollective]) -> list[CountedCollective]:
        return self._store.with_sent_weights(collectives)

    def store_work(self) -> StoreWork:
        synchronisation, arrivals, rank = self.job.synchronisation, self._store.arrivals, dist.get_rank()
        assert synchronisation is not None
        made = updates_of(arrivals, workers=self.job.layout.ranks, bound=synchronisation.bound)
        computed, slept, waited = self._seconds
        return StoreWork(
            computed_seconds=computed,
            slept_seconds=slept,
            waited_seconds=waited,
            ahead=[each.ahead for each in made.staleness[rank]],
            delays=[each.delay for each in made.staleness[rank]],
            updates=len(made.updates),
            arrivals=arrivals if rank == 0 else [],
        )

    @property
    def _store(self) -> ParameterStore:
        store = self.training.optimizer
        assert isinstance(store, ParameterStore)
        return store
