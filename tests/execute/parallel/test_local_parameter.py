"""Parameters as a rank counts them: copies of key-value heads, and the table that two pipeline stages share."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from suite.execute.parallel.local_parameter import LocalParameter, Place, local_parameters
from suite.execute.parallel.tensor_parallel import Split


def leaf(parameter: nn.Parameter, *, own_rows: int | None, counts_copies: bool) -> LocalParameter:
    return LocalParameter(
        parameter,
        "a",
        0,
        counted=True,
        counts_gradient=True,
        partial=False,
        tied=False,
        own_rows=own_rows,
        counts_copies=counts_copies,
    )


@given(st.integers(1, 5), st.integers(0, 3), st.integers(1, 4), st.lists(st.integers(0, 40), max_size=4))
def test_parts_of_a_parameter_count_the_rows_that_the_whole_counts(
    own: int, copied: int, columns: int, cuts: list[int]
) -> None:
    """Its own, unless this rank counts the copies too; each part by itself, wherever it begins."""
    x = torch.arange(1, (own + copied) * columns + 1).view(-1, columns)
    for counts_copies in (False, True):
        counted = leaf(nn.Parameter(x.float()), own_rows=own, counts_copies=counts_copies)
        expected = x if counts_copies else x[:own]
        assert torch.equal(counted.counted_of(x), expected)
        bounds = sorted({0, x.numel(), *(cut for cut in cuts if cut < x.numel())})
        parts = [counted.counted_of_part(first, x.flatten()[first:last]) for first, last in itertools.pairwise(bounds)]
        assert torch.equal(torch.cat(parts), expected.flatten())


def test_a_parameter_without_copies_counts_whole() -> None:
    whole = leaf(nn.Parameter(torch.ones(3)), own_rows=None, counts_copies=False)
    assert torch.equal(whole.counted_of(torch.ones(3)), torch.ones(3))
    assert torch.equal(whole.counted_of_part(1, torch.ones(2)), torch.ones(2))


@pytest.mark.parametrize(
    ("ends", "tied_embeddings", "tied", "counted"),
    [
        (("embedding",), True, {"embedding.weight"}, {"embedding.weight"}),
        (("head",), True, {"head.weight"}, set()),  # the first stage counts it
        (("embedding", "head"), True, set(), {"embedding.weight", "head.weight"}),  # one module holds both
        (("embedding",), False, set(), {"embedding.weight"}),
        (("head",), False, set(), {"head.weight"}),
    ],
)
def test_only_the_table_of_first_and_last_stage_is_tied(
    ends: tuple[str, ...], tied_embeddings: bool, tied: set[str], counted: set[str]
) -> None:
    others = {"blocks.0.weight", "final_norm.weight"}  # names before and after the table's in the alphabet
    weights = {name: nn.Parameter(torch.ones(2, 2)) for name in (*others, *(f"{end}.weight" for end in ends))}
    chunk = SimpleNamespace(
        architecture=SimpleNamespace(tied_embeddings=tied_embeddings),
        embedding="embedding" if "embedding" in ends else None,
        head="head" if "head" in ends else None,
        named_parameters=weights.items,
    )
    split = Split(as_dtensor={}, dims={}, repeated=frozenset(), partial=frozenset(), own_rows={})
    place = Place(first=True, first_of_head=True, counts_dense=True, has_shards=False)
    found = list(local_parameters(chunk, split, frozenset(), place))
    assert {leaf.name for leaf in found if leaf.tied} == tied
    assert {leaf.name for leaf in found if leaf.counted} == others | counted
