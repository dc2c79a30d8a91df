"""Where a step's batches come from: made when they are needed, or ahead by worker processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset

from suite.execute.corpus import Batch, TokenStream, token_stream
from suite.job import Job

PREFETCHED = 2  # batches of each worker: torch.utils.data's own default


class Batches(Protocol):
    """The samples of a job."""

    def micro_batch(self, first: int, samples: int) -> Batch:
        """The samples numbered from `first` over the whole run."""


class _Ahead(Dataset[Batch]):
    """Micro-batches by the number of their first sample."""

    def __init__(self, stream: TokenStream, samples: int) -> None:
        self._stream = stream
        self._samples = samples

    def __getitem__(self, first: int) -> Batch:
        return self._stream.micro_batch(first, self._samples)


class WorkedAhead:
    """Micro-batches that worker processes make in the order in which they are needed.

    Any other than the next one is made here.

    Args:
        firsts: the first sample of every micro-batch to come.
        pinned: whether they lie in page-locked memory.
    """

    def __init__(self, stream: TokenStream, firsts: Sequence[int], *, samples: int, workers: int, pinned: bool) -> None:
        self._stream = stream
        self._samples = samples
        self._left = iter(firsts)
        self._next = next(self._left, None)
        loader: DataLoader[Batch] = DataLoader(
            _Ahead(stream, samples),
            batch_size=None,
            sampler=list(firsts),
            num_workers=workers,
            prefetch_factor=PREFETCHED if workers else None,
            collate_fn=_unchanged,
            pin_memory=pinned,
        )
        self._batches: Iterator[Batch] | None = iter(loader)

    def micro_batch(self, first: int, samples: int) -> Batch:
        """The samples numbered from `first` over the whole run."""
        if self._batches is None or first != self._next or samples != self._samples:
            return self._stream.micro_batch(first, samples)
        batch = next(self._batches)
        self._next = next(self._left, None)
        if self._next is None:
            self._batches = None  # ends the workers
        return batch


def _unchanged(batch: Any) -> Any:
    """With batch_size=None the loader hands on what the dataset gives, a whole batch."""
    return batch


def batches(job: Job, *, replica: int) -> Batches:
    """The micro-batches of a job at place `replica` of the data-parallel axis."""
    stream = token_stream(job)
    script, layout = job.script, job.layout
    if not script.workers and not script.pinned:
        return stream
    own = job.recipe.global_batch // layout.data_parallel
    firsts = [
        step * job.recipe.global_batch + replica * own + offset
        for step in range(job.steps)
        for offset in range(0, own, layout.micro_batch)
    ]
    return WorkedAhead(stream, firsts, samples=layout.micro_batch, workers=script.workers, pinned=script.pinned)


class SideStream:
    """Copies batches to a CUDA device on a stream of their own, which the computing stream waits for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def to_device(self, batch: Batch) -> Batch:
        """The batch on the device; the host waits for nothing where it lies in page-locked memory."""
        with torch.cuda.stream(self._stream):
            moved = batch.to(self._device)
        computing = torch.cuda.current_stream(self._device)
        computing.wait_stream(self._stream)
        for tensor in (moved.tokens_BT, *moved.arguments.values()):
            tensor.record_stream(computing)
        return moved
