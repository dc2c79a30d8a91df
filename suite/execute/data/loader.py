"""A step's batches: made when they are needed, prefetched by worker processes, or copied ahead to the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset

from suite.execute.data.token_stream import TokenBatch, TokenStream, token_stream
from suite.execute.measure.phases import Part, Phases
from suite.job.training_job import Job

PREFETCHED = 2  # batches of each worker: torch.utils.data's own default


class _MicroBatches(Dataset[TokenBatch]):
    """Micro-batches by the number of their first sample."""

    def __init__(self, stream: TokenStream, samples: int) -> None:
        self._stream = stream
        self._samples = samples

    def __getitem__(self, first: int) -> TokenBatch:
        return self._stream.micro_batch(first, self._samples)


class PrefetchedBatches:
    """Micro-batches that worker processes make in the order in which they are needed. Others are made here.

    Args:
        firsts: the first sample of every micro-batch to come.
        pinned: whether they lie in page-locked memory.
    """

    def __init__(self, stream: TokenStream, firsts: Sequence[int], *, samples: int, workers: int, pinned: bool) -> None:
        self._stream = stream
        self._samples = samples
        self._left = iter(firsts)
        self._next = next(self._left, None)
        loader: DataLoader[TokenBatch] = DataLoader(
            _MicroBatches(stream, samples),
            batch_size=None,
            sampler=list(firsts),
            num_workers=workers,
            prefetch_factor=PREFETCHED if workers else None,
            collate_fn=_contiguous if pinned else None,
            pin_memory=pinned,
        )
        self._batches: Iterator[TokenBatch] | None = iter(loader)

    def micro_batch(self, first: int, samples: int) -> TokenBatch:
        if self._batches is None or first != self._next or samples != self._samples:
            return self._stream.micro_batch(first, samples)
        batch = next(self._batches)
        self._next = next(self._left, None)
        if self._next is None:
            self._batches = None  # ends the workers
        return batch


def _contiguous(batch: Any) -> TokenBatch:
    """A contiguous batch: the copy of any other to a device goes through pageable memory, pinned or not.

    Source: aten/src/ATen/native/cuda/Copy.cu, copy_requires_temporaries.
    """
    contiguous = {name: tensor.contiguous() for name, tensor in batch.arguments.items()}
    return TokenBatch(batch.tokens_BT.contiguous(), contiguous)


class Batches(Protocol):
    """Makes micro-batches."""

    def micro_batch(self, first: int, samples: int) -> TokenBatch:
        """The samples numbered from `first` over the whole run."""
        ...


def batches(job: Job, *, replica: int, context_rank: int = 0) -> Batches:
    """The micro-batches of a job at coordinate `replica` of the data-parallel axis; of several context ranks a part."""
    stream = token_stream(job, context_rank=context_rank)
    script, layout = job.training_options, job.layout
    if not script.workers and not script.pinned:
        return stream
    share = job.recipe.global_batch // layout.replicas
    firsts = [
        step * job.recipe.global_batch + replica * share + offset
        for step in range(job.steps)
        for offset in range(0, share, layout.micro_batch)
    ]
    return PrefetchedBatches(stream, firsts, samples=layout.micro_batch, workers=script.workers, pinned=script.pinned)


class CopiedAhead:
    """Micro-batches that are copied to a CUDA device on a stream of their own, while the device computes.

    Args:
        batches: on the host, in page-locked memory: else the host waits for each copy.
        phases: of the step, whose time making and copying is.
    """

    def __init__(self, batches: Batches, device: torch.device, phases: Phases) -> None:
        self._batches = batches
        self._device = device
        self._phases = phases
        self._stream = torch.cuda.Stream(device)
        self._moved: dict[tuple[int, int], TokenBatch] = {}  # the one batch that was begun

    def begin(self, first: int, samples: int) -> None:
        """Make the samples numbered from `first` and begin to copy them, without waiting."""
        with self._phases.phase(Part.DATA_LOADING):
            batch = self._batches.micro_batch(first, samples)
        with self._phases.phase(Part.HOST_DEVICE_COPY), torch.cuda.stream(self._stream):
            self._moved = {(first, samples): batch.to(self._device)}

    def micro_batch(self, first: int, samples: int) -> TokenBatch:
        """The samples numbered from `first`, begun before or now. The computing stream waits for the copy."""
        if (first, samples) not in self._moved:
            self.begin(first, samples)
        moved = self._moved.pop((first, samples))
        with self._phases.phase(Part.HOST_DEVICE_COPY):
            computing = torch.cuda.current_stream(self._device)
            computing.wait_stream(self._stream)
            for tensor in (moved.tokens_BT, *moved.arguments.values()):
                tensor.record_stream(computing)
        return moved
