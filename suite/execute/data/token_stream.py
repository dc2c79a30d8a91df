"""Batches of the token stream: the same samples in the same order for any number of ranks."""

from __future__ import annotations

from typing import NamedTuple

import numpy
import torch
from torch import Tensor

from reference_runs.run import Objective
from suite.execute.data.blank_infilling import BlankInfilling
from suite.execute.data.documents import TokenisedDocuments
from suite.job.training_job import Job


class TokenBatch(NamedTuple):
    """One micro-batch: tokens, int64 [B, T], and what the decoder's forward pass takes beside them, by name.

    Args:
        arguments: tensors whose first dimension is B; "targets_BT" among them.
    """

    tokens_BT: Tensor  # noqa: N815  # shape letters
    arguments: dict[str, Tensor]

    def to(self, device: torch.device) -> TokenBatch:
        """The same on `device`."""
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in self.arguments.items()}
        return TokenBatch(self.tokens_BT.to(device, non_blocking=True), moved)


class TokenStream:
    """Texts of `sequence` tokens and one more, shuffled once for each pass by `seed`, and the samples made of them.

    Args:
        path: of the tokens.
        documents: that the tokens are made of anew, in place of what the file has; None: the file.
        blanks: makes the samples; None: each token's target is its successor.
    """

    def __init__(
        self,
        path: str,
        *,
        tokens: int,
        sequence: int,
        seed: int,
        blanks: BlankInfilling | None = None,
        documents: TokenisedDocuments | None = None,
    ) -> None:
        # through NumPy, as the order below: PyTorch's allocator, whose bytes are measured, has what trains alone
        mapped = torch.from_numpy(numpy.memmap(path, dtype="<i4", mode="c", shape=(tokens,)))
        self._tokens = mapped if documents is None else documents
        self._sequence = sequence
        self._samples = (tokens - 1) // sequence
        self._seed = seed
        self._blanks = blanks
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def micro_batch(self, first: int, samples: int) -> TokenBatch:
        """The samples numbered from `first` over the whole run, with what each token is to be followed by."""
        texts = [self._text(number) for number in range(first, first + samples)]
        if self._blanks is not None:
            return _infilled(self._blanks, texts, first)
        both = torch.stack(texts).long()
        return TokenBatch(both[:, :-1], {"targets_BT": both[:, 1:]})

    def _text(self, number: int) -> Tensor:
        epoch, place = divmod(number, self._samples)
        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed(self._seed + epoch)
            order = torch.randperm(self._samples, generator=generator)
            self._order = (epoch, torch.from_numpy(order.numpy().copy()))
        start = int(self._order[1][place]) * self._sequence
        return self._tokens[start : start + self._sequence + 1]


def _infilled(blanks: BlankInfilling, texts: list[Tensor], first: int) -> TokenBatch:
    samples = [blanks.sample(text.tolist(), number) for number, text in enumerate(texts, first)]
    seen = [[sample.seen_from, sample.seen_until] for sample in samples]
    arguments = {
        "targets_BT": torch.tensor([sample.targets for sample in samples]),
        "positions_BT": torch.tensor([sample.positions for sample in samples]),
        "seen_B2S": torch.tensor(seen),
    }
    return TokenBatch(torch.tensor([sample.tokens for sample in samples]), arguments)


def token_stream(job: Job) -> TokenStream:
    """The samples that a job trains on."""
    blanks = None
    if job.recipe.objective is Objective.BLANK_INFILLING:
        blanks = BlankInfilling(job.architecture, job.recipe, seed=job.seed)
    documents = None
    if job.script.tokenises:
        assert job.script.texts is not None
        documents = TokenisedDocuments(job.script.texts)
    return TokenStream(
        job.tokens_file,
        tokens=job.tokens,
        sequence=job.architecture.sequence,
        seed=job.seed,
        blanks=blanks,
        documents=documents,
    )
