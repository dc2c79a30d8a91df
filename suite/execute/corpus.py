"""Batches of the token stream: the same samples in the same order for any number of ranks."""

from __future__ import annotations

import torch
from torch import Tensor


class TokenStream:
    """Samples of `sequence` tokens and their successors, shuffled once for each pass by `seed`."""

    def __init__(self, path: str, *, tokens: int, sequence: int, seed: int) -> None:
        self._tokens = torch.from_file(path, shared=False, size=tokens, dtype=torch.int32)
        self._sequence = sequence
        self._samples = (tokens - 1) // sequence
        self._seed = seed
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def micro_batch(self, first: int, samples: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets, int64 [samples, sequence], of the samples numbered from `first` over the whole run."""
        rows = [self._sample(number) for number in range(first, first + samples)]
        both = torch.stack(rows).long()
        return both[:, :-1], both[:, 1:]

    def _sample(self, number: int) -> Tensor:
        epoch, place = divmod(number, self._samples)
        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed(self._seed + epoch)
            self._order = (epoch, torch.randperm(self._samples, generator=generator))
        start = int(self._order[1][place]) * self._sequence
        return self._tokens[start : start + self._sequence + 1]


def first_sample(step: int, micro_batch: int, *, rank: int, per_rank: int, samples: int, global_batch: int) -> int:
    """Number of the first sample of a micro-batch: each step is cut into one run of samples for each rank.

    Args:
        per_rank: micro-batches of a rank and step.
        samples: samples of a micro-batch.
    """
    return step * global_batch + (rank * per_rank + micro_batch) * samples
