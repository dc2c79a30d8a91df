"""Batches of the token stream: the same samples in the same order for any number of ranks."""

from __future__ import annotations

import os
from bisect import bisect_right
from typing import NamedTuple

import numpy
import torch
from tokenizers import Tokenizer
from torch import Tensor

from reference_runs.run import Mask, Objective
from suite.execute.data.blank_infilling import BlankInfilling
from suite.execute.model.position import dealt
from suite.job.corpus import END_OF_TEXT, END_TOKEN
from suite.job.events import PackedDocuments
from suite.job.options import Texts, document_offsets
from suite.job.training_job import Job


class TokenBatch(NamedTuple):
    """One micro-batch: tokens, int64 [B, T], and the other arguments of the decoder's forward pass, by name.

    Args:
        arguments: tensors whose first dimension is B; "targets_BT" among them.
    """

    tokens_BT: Tensor  # noqa: N815  # shape letters
    arguments: dict[str, Tensor]

    def to(self, device: torch.device) -> TokenBatch:
        """The same on `device`."""
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in self.arguments.items()}
        return TokenBatch(self.tokens_BT.to(device, non_blocking=True), moved)


class TokenisedDocuments:
    """The corpus's tokens as a naive script makes them: a slice reads and tokenises every document that it touches."""

    def __init__(self, texts: Texts) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the library's threads do not survive a worker's fork
        self._text_file = texts.text_file
        self._documents = document_offsets(texts)
        self._tokenizer = Tokenizer.from_file(texts.tokenizer_file)
        (self._end,) = self._tokenizer.encode(END_OF_TEXT).ids

    def __getitem__(self, span: slice) -> Tensor:
        byte_offsets, token_offsets = self._documents.byte_offsets, self._documents.token_offsets
        document = bisect_right(token_offsets, span.start) - 1
        first = token_offsets[document]
        tokens: list[int] = []
        with open(self._text_file, "rb") as file:
            file.seek(byte_offsets[document])
            while first + len(tokens) < span.stop and document + 1 < len(token_offsets):
                text = file.read(byte_offsets[document + 1] - byte_offsets[document]).decode()
                tokens += [*self._tokenizer.encode(text).ids, self._end]
                document += 1
        return torch.tensor(tokens[span.start - first : span.stop - first], dtype=torch.int32)


class TokenStream:
    """Samples made of texts of `sequence` + 1 tokens, which are shuffled once for each epoch by `seed`.

    Args:
        path: of the tokens.
        documents: to tokenise again; None: the tokens of the file are used.
        has_documents: whether samples say which document each token belongs to.
        context_part: index and number of the context-parallel ranks that every sample is dealt to.
        blanks: makes the samples; None: each token's target is the next one.
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
        has_documents: bool = False,
        context_part: tuple[int, int] = (0, 1),
    ) -> None:
        # through NumPy, as the order below: the peak of PyTorch's allocator is measured, without the data
        mapped = torch.from_numpy(numpy.memmap(path, dtype="<i4", mode="c", shape=(tokens,)))
        self._tokens = mapped if documents is None else documents
        self._sequence = sequence
        self._samples = (tokens - 1) // sequence
        self._seed = seed
        self._blanks = blanks
        self._context_part = context_part
        self._has_documents = has_documents
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def micro_batch(self, first: int, samples: int) -> TokenBatch:
        """The samples numbered from `first` over the whole run."""
        texts = [self._text(number) for number in range(first, first + samples)]
        if self._blanks is not None:
            return _infilled(self._blanks, texts, first)
        both = torch.stack(texts).long()
        tokens_BT, targets_BT = both[:, :-1], both[:, 1:]
        rank, ranks = self._context_part
        if ranks > 1:
            tokens_BT, targets_BT = (dealt(x, rank=rank, ranks=ranks) for x in (tokens_BT, targets_BT))
        arguments = {"targets_BT": targets_BT}
        if self._has_documents:
            arguments["documents_BT"] = documents_of(tokens_BT)
        return TokenBatch(tokens_BT, arguments)

    def _text(self, number: int) -> Tensor:
        epoch, index = divmod(number, self._samples)
        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed(self._seed + epoch)
            order = torch.randperm(self._samples, generator=generator)
            self._order = (epoch, torch.from_numpy(order.numpy().copy()))
        start = int(self._order[1][index]) * self._sequence
        return self._tokens[start : start + self._sequence + 1]


def documents_of(tokens_BT: Tensor) -> Tensor:
    """The number of each token's document in its sample, int64 [B, T]; the end of a text belongs to it."""
    ends_BT = (tokens_BT == END_TOKEN).long()
    return ends_BT.cumsum(1).sub_(ends_BT)


def _infilled(blanks: BlankInfilling, texts: list[Tensor], first: int) -> TokenBatch:
    samples = [blanks.sample(text.tolist(), number) for number, text in enumerate(texts, first)]
    arguments = {
        "targets_BT": torch.tensor([sample.targets for sample in samples]),
        "positions_BT": torch.tensor([sample.positions for sample in samples]),
        "seen_B2S": torch.tensor([[sample.seen_from, sample.seen_until] for sample in samples]),
    }
    return TokenBatch(torch.tensor([sample.tokens for sample in samples]), arguments)


def token_stream(job: Job, *, context_rank: int = 0) -> TokenStream:
    """The samples that a job trains on; of several context-parallel ranks the part of one."""
    infills = job.recipe.objective is Objective.BLANK_INFILLING
    blanks = BlankInfilling(job.architecture, job.recipe, seed=job.seed) if infills else None
    documents = None
    if job.training_options.tokenises:
        assert job.training_options.texts is not None
        documents = TokenisedDocuments(job.training_options.texts)
    return TokenStream(
        job.tokens_file,
        tokens=job.tokens,
        sequence=job.architecture.sequence,
        seed=job.seed,
        blanks=blanks,
        documents=documents,
        has_documents=job.architecture.mask is Mask.DOCUMENTS,
        context_part=(context_rank, job.layout.context_parallel),
    )


def packed_documents(batch: TokenBatch) -> PackedDocuments | None:
    """Documents of a batch; None where its samples do not say which they have."""
    if (documents_BT := batch.arguments.get("documents_BT")) is None:
        return None
    lengths = [row.bincount() for row in documents_BT]
    lengths_D = torch.cat([of_row[of_row > 0] for of_row in lengths])
    attended = int((lengths_D * (lengths_D + 1) // 2).sum())
    sequences, tokens = documents_BT.shape
    return PackedDocuments(sequences, tokens, len(lengths_D), attended)
