"""Steps whose micro-batches are CUDA graphs: captured once, and launched for every micro-batch by two calls.

A graph for each pass, so that each has a phase of the step to itself. They share memory of their own, which stays
allocated between their launches: the update's temporary tensors come on top of it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from suite.execute.data.token_stream import TokenBatch
from suite.execute.measure.counters import runs_eagerly
from suite.execute.measure.phases import Part
from suite.execute.parallel.gradient_sums import StepSums
from suite.execute.precision import GRADIENT_DTYPES
from suite.execute.training.step import Steps
from suite.job.events import Event

GIB = 2**30


class CapturedSteps(Steps):
    """Steps of one GPU, of which those from the first timed one on replay what was captured before it."""

    _captured: CapturedPasses | None = None

    def before_timed(self) -> None:
        if self._captured is not None:
            return
        batch = self._stream.micro_batch(0, self.job.layout.micro_batch).to(self.device)
        self._captured = CapturedPasses(self, batch)
        reserved = self._captured.bytes / GIB
        self.how_executed = f"passes of a micro-batch are CUDA graphs, which reserve {reserved:.1f} GiB"

    def finish(self, report: Callable[[Event], None]) -> None:
        if self._captured is not None:
            self._captured.release()
            self._captured = None
        super().finish(report)

    @property
    def sums(self) -> StepSums | None:
        return super().sums if self._captured is None or runs_eagerly() else self._captured

    def passes(self, batch: TokenBatch, factor: float) -> Tensor:
        if self._captured is None or runs_eagerly():
            return super().passes(batch, factor)
        with self.phases.phase(Part.FORWARD):
            self._captured.forward(batch)
        with self.phases.phase(Part.BACKWARD):
            self._captured.backward()
        return self._captured.loss.clone()


class CapturedPasses:
    """Both passes of a micro-batch, and the sums of gradients that they add to, which lie where they are from now on.

    Args:
        batch: any micro-batch, on the device: where it lies later ones are copied to.

    Attributes:
        loss: of the last micro-batch, over their number.
        bytes: that the graphs reserve.
    """

    def __init__(self, steps: Steps, batch: TokenBatch) -> None:
        self._batch = batch
        self._sums = steps.training.gradient_sums
        summed = set() if self._sums is None else self._sums.leaves
        self._own = [
            (leaf, torch.zeros_like(leaf, dtype=GRADIENT_DTYPES[leaf.dtype], requires_grad=False))
            for leaf in (of_rank.parameter for of_rank in steps.training.leaves)
            if leaf not in summed
        ]
        if self._sums is not None:
            self._sums.keep()
        self.begin()
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        torch.cuda.empty_cache()  # as each capture does: all that is reserved in addition is theirs
        before = torch.cuda.memory_reserved()
        pool = torch.cuda.graph_pool_handle()
        (module,) = steps.training.modules
        # other threads may ask for events meanwhile, as the one that pins memory
        with torch.cuda.graph(self._forward, pool=pool, capture_error_mode="thread_local"):
            loss: Tensor = module(batch.tokens_BT, **batch.arguments) / steps.micro_batches
        with torch.cuda.graph(self._backward, pool=pool, capture_error_mode="thread_local"):
            loss.backward()
        self.bytes = torch.cuda.memory_reserved() - before
        self.loss = loss.detach()
        self.hand_over()
        for leaf in (of_rank.parameter for of_rank in steps.training.leaves):
            leaf.grad = None

    def begin(self) -> None:
        """Gradients of zeros, before the first micro-batch of a step."""
        for leaf, gradient in self._own:
            leaf.grad = gradient
        torch._foreach_zero_([gradient for _, gradient in self._own])
        if self._sums is not None:
            self._sums.begin()

    def forward(self, batch: TokenBatch) -> None:
        """The forward pass of `batch`, whose result is `loss`."""
        self._batch.tokens_BT.copy_(batch.tokens_BT)
        for name, tensor in self._batch.arguments.items():
            tensor.copy_(batch.arguments[name])
        self._forward.replay()

    def backward(self) -> None:
        """The backward pass of the last forward pass."""
        self._backward.replay()

    def hand_over(self) -> None:
        """The leaves' gradients are the sums, after the last micro-batch."""
        if self._sums is not None:
            self._sums.hand_over()

    def release(self) -> None:
        """Free the graphs' memory; nothing is replayed any more."""
        self._forward.reset()
        self._backward.reset()
        self._own.clear()
        if self._sums is not None:
            self._sums.release()
        torch.cuda.empty_cache()
