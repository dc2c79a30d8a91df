"""A step of a slice: one micro-batch through embedding, layers and head, and back, each with a clock around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh

from suite.execute.measure.phases import Part
from suite.execute.parallel.mesh import DATA, TENSOR, dropout_seed, slowest
from suite.execute.parallel.parallelize import Training
from suite.execute.parallel.sharded_adamw import ShardedAdamW, TensorAdamW
from suite.execute.precision import DTYPES
from suite.execute.training.step import Steps
from suite.job.slice import SlicePart, SliceTimes
from suite.job.training_job import Job

DEVIATION = 0.02  # of the gradient that comes from a later stage, before the loss scale


class SliceSteps(Steps):
    """Steps of one micro-batch. Each part's graph ends where the next one begins, as between pipeline stages.

    Where the ranks that share the layers are here too, loss and gradient norm are means over them.
    """

    def __init__(self, job: Job, training: Training, mesh: DeviceMesh, device: torch.device) -> None:
        super().__init__(job, training, mesh, device)
        (self._chunk,) = training.chunks
        self._here: dist.ProcessGroup | None = None
        if job.slice is not None and job.slice.group:
            self._here = dist.new_group(list(job.slice.group), backend=dist.get_backend(mesh.get_group(TENSOR)))
        # ranks that have the same hidden states draw the same
        generator = torch.Generator(device).manual_seed(dropout_seed(job.seed, mesh, job.layout))
        dtype = DTYPES[job.recipe.precision]
        shape = self.hidden_shape(job.layout.micro_batch)
        self._hidden = self._gradient = torch.empty(0)
        if self._chunk.embedding is None:  # what an earlier stage sends
            self._hidden = torch.randn(shape, generator=generator, device=device).to(dtype)
        if self._chunk.head is None:  # what a later one does
            self._gradient = (DEVIATION * torch.randn(shape, generator=generator, device=device)).to(dtype)
        self._marks: list[tuple[SlicePart, Any, Any]] = []

    def axis_of_group(self) -> dict[str, str]:
        """As of a whole run; the group of all processes is of the data-parallel axis, whose messages do not count."""
        here = {} if self._here is None else {self._here.group_name: DATA}
        return super().axis_of_group() | here

    def any_says(self, claim: bool) -> bool:
        """Whether any of the processes makes a claim."""
        if self._here is None:
            return claim
        (said,) = slowest(self._here, float(claim), device=self.device)
        return said > 0

    def wait_for_others(self) -> None:
        """Until all processes are here."""
        if self._here is not None:
            dist.barrier(group=self._here)

    def _reduced(self, loss: Tensor, squared: Tensor) -> Tensor:
        both = super()._reduced(loss, squared)
        if self._here is None:
            return both
        both = torch.stack([loss, both[1]])
        dist.all_reduce(both, group=self._here)
        return both / self._here.size()

    def forward_and_backward(self) -> Tensor:
        """The gradient of one micro-batch; returns its loss, or 0 where the head is not here."""
        self._marks.clear()
        first, factor = self._begin()
        chunk = self._chunk
        batch = self._micro_batch(first, self.job.layout.micro_batch)
        given = dict(batch.arguments)
        targets_BT = given.pop("targets_BT")
        length = self.job.architecture.sequence
        dealt = chunk.dealt(length, self.device)
        embedded = None
        if chunk.embedding is not None:
            with self._part(SlicePart.EMBEDDING_FORWARD):
                embedded = chunk.embedded(batch.tokens_BT, dealt)
        with self._part(SlicePart.SHARED_FORWARD):
            shared = chunk.shared(length, dealt, self.device, **given)
        entered = _cut(self._hidden if embedded is None else embedded)
        with self._part(SlicePart.LAYER_FORWARD):
            left = chunk.through_layers(entered, shared)
        loss, gradient = torch.zeros((), device=self.device), self._gradient
        if chunk.head is None:
            gradient = gradient * factor
        else:
            loss, gradient = self._through_head(_cut(left), targets_BT, factor)
        with self._part(SlicePart.LAYER_BACKWARD):
            left.backward(gradient)
        if embedded is not None:
            with self._part(SlicePart.EMBEDDING_BACKWARD):
                embedded.backward(entered.grad)
        return loss

    def _through_head(self, x_BTD: Tensor, targets_BT: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        """The loss, and the gradient of the hidden states that the head gets."""
        with self._part(SlicePart.HEAD_FORWARD):
            loss = self._chunk.headed(x_BTD, targets_BT)
        with self._part(SlicePart.HEAD_BACKWARD):
            (loss * factor).backward()
        assert x_BTD.grad is not None
        return loss.detach(), x_BTD.grad

    @contextmanager
    def _part(self, part: SlicePart) -> Iterator[None]:
        start = self.phases.mark()
        with self.phases.phase(Part.BACKWARD if part.name.endswith(Part.BACKWARD.name) else Part.FORWARD):
            yield
        self._marks.append((part, start, self.phases.mark()))

    def part_seconds(self) -> dict[SlicePart, float]:
        """Seconds of each part in the last step, of a layer the mean over the slice's, and of its update."""
        phases = self.phases.seconds()  # on CUDA waits for the marks
        seconds = {part: self.phases.between(start, end) for part, start, end in self._marks}
        for part in (SlicePart.LAYER_FORWARD, SlicePart.LAYER_BACKWARD):
            seconds[part] /= len(self._chunk.blocks)
        return seconds | {SlicePart.UPDATE: phases[Part.UPDATE]}


def _cut(x: Tensor) -> Tensor:
    """The same values, with which a graph of its own begins."""
    apart = x.detach()
    if isinstance(apart, AsyncCollectiveTensor):
        apart = apart.trigger_wait()
    return apart.requires_grad_()


def slice_times(training: Training, seconds: Sequence[dict[SlicePart, float]]) -> SliceTimes | None:
    """Times of a slice's parts in its timed steps; None for a whole run."""
    if not seconds or not seconds[0]:
        return None
    optimizer = training.optimizer
    assert isinstance(optimizer, ShardedAdamW | TensorAdamW)
    return SliceTimes(
        seconds={part: [step[part] for step in seconds] for part in seconds[0]},
        updated_parameters=sum(weight.numel() for weight in optimizer.masters.weights),
    )
