"""Samples that context-parallel ranks share out."""

from __future__ import annotations

from pathlib import Path

import numpy
import torch

from suite.execute.data.token_stream import TokenStream, documents_of


def test_the_parts_of_all_ranks_are_the_samples_each_token_with_its_target(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    numpy.arange(1000, dtype="<i4").tofile(path)

    def stream(rank: int, ranks: int) -> TokenStream:
        return TokenStream(str(path), tokens=1000, sequence=24, seed=1, context_part=(rank, ranks))

    whole = stream(0, 1).micro_batch(5, 3)
    parts = [stream(rank, 3).micro_batch(5, 3) for rank in range(3)]
    assert [part.tokens_BT.shape for part in parts] == [(3, 8)] * 3
    for part in parts:
        assert torch.equal(part.arguments["targets_BT"], part.tokens_BT + 1)
    together = torch.cat([part.tokens_BT for part in parts], dim=1)
    assert torch.equal(together.sort(dim=1).values, whole.tokens_BT)


def test_each_token_has_the_number_of_its_document_whose_end_belongs_to_it() -> None:
    tokens_BT = torch.tensor([[5, 0, 7, 8, 0, 0, 3], [0, 1, 2, 3, 4, 5, 6]])
    assert documents_of(tokens_BT).tolist() == [[0, 0, 1, 1, 1, 2, 3], [0, 1, 1, 1, 1, 1, 1]]
