"""The suite's training step and the bare loop's, each as a loop that alternates with the other in one process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import msgspec
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from benchmarks.bare_loop import BareLoop
from suite.execute.measure import clock
from suite.execute.measure.cpu_speed import SpeedSampler
from suite.execute.parallel.mesh import device_mesh
from suite.execute.parallel.parallelize import parallelize
from suite.execute.rank import Reporter
from suite.execute.training.step import Steps
from suite.job.events import Step as StepEvent
from suite.job.events import StepKind, events_path
from suite.job.training_job import Job


class SuiteLoop:
    """The suite's training step as `suite.execute.training.loop` runs it on timed steps, with its report."""

    def __init__(self, job: Job, device: torch.device) -> None:
        mesh = device_mesh(job.layout, device.type)
        self.training = parallelize(msgspec.structs.replace(job, compiled=False), mesh=mesh, device=device)
        self.device = device
        self._steps = Steps(job, self.training, mesh, device)
        self._report = Reporter(events_path(job.directory, 0))
        self._sampler = SpeedSampler(device)
        self._usual_seconds = math.inf

    def take_speed_samples(self) -> None:
        """Take the CPU speed samples that a rank takes between two timed steps."""
        self._sampler.expect(self._usual_seconds)
        self._sampler.after_step()

    def step(self) -> tuple[float, float]:
        """One step: its loss, and the norm of the gradient without the loss scale."""
        start = clock.now(self.device)
        loss = self._steps.forward_and_backward()
        (outcome,) = self._steps.update(loss)
        seconds = clock.now(self.device) - start
        self._usual_seconds = min(self._usual_seconds, seconds)
        norm = outcome.gradient_norm if math.isfinite(outcome.gradient_norm) else None
        number, kind = self._steps.step - 1, StepKind.TIMED
        self._report(
            StepEvent(number, kind, outcome.loss, seconds, time.time(), norm, outcome.loss_scale, outcome.skipped)
        )
        return outcome.loss, outcome.gradient_norm

    def weights(self) -> dict[str, Tensor]:
        """Stored weights by their names in the whole model, read as the modules read them."""
        (chunk,) = self.training.chunks
        with torch.no_grad():
            return {leaf.name: _read(chunk, leaf.name) for leaf in self.training.leaves}


def _read(chunk: nn.Module, name: str) -> Tensor:
    module, _, attribute = name.rpartition(".")
    weight = getattr(chunk.get_submodule(module), attribute).detach()
    whole: Tensor = weight.to_local() if isinstance(weight, DTensor) else weight
    return whole


class Turn:
    """A loop with a random state of its own, so that both loops draw the same masks.

    Attributes:
        norm: of the last step's gradient, without the loss scale.
        processor_seconds: of the process in the last step, all its threads together.
        sampling_seconds: of the CPU speed samples before the last step; 0 in the bare loop.
    """

    def __init__(
        self, make: Callable[[], SuiteLoop | BareLoop], device: torch.device, seed: int, *, samples: bool = True
    ) -> None:
        self.device = device
        self._takes_samples = samples
        self.loop = make()
        torch.manual_seed(seed)
        self.norm = self.processor_seconds = self.sampling_seconds = 0.0
        self._numbers = self._state()

    def step(self, *clipping_norm: float) -> tuple[float, float]:
        """One step: its seconds, including the device's work, and its loss.

        Args:
            clipping_norm: see `BareLoop.step`; for that loop only.
        """
        torch.set_rng_state(self._numbers[0])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(self._numbers[1], self.device)
        self.sampling_seconds = self._sample_seconds()
        start, processor = clock.now(self.device), time.process_time()
        loss, self.norm = self.loop.step(*clipping_norm)
        seconds = clock.now(self.device) - start
        self.processor_seconds = time.process_time() - processor
        self._numbers = self._state()
        return seconds, loss

    def _sample_seconds(self) -> float:
        if not (isinstance(self.loop, SuiteLoop) and self._takes_samples):
            return 0.0
        start = time.perf_counter()
        self.loop.take_speed_samples()
        return time.perf_counter() - start

    def _state(self) -> tuple[Tensor, Tensor]:
        cuda = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else torch.empty(0)
        return torch.get_rng_state(), cuda
