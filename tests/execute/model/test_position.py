"""Positions of context-parallel ranks: what each adds to its scores is its part of what one rank adds."""

from __future__ import annotations

import msgspec
import pytest
import torch

from reference_runs.run import Position
from suite.execute.model.position import dealt, dealt_positions, rotation, score_bias
from tests.support.strategies import BLOOM

LENGTH, CPU = 24, torch.device("cpu")


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("position", [Position.ALIBI, Position.LEARNED])
@pytest.mark.parametrize("window", [None, 5])
def test_a_rank_has_rows_of_the_whole_bias_with_columns_in_the_order_of_gathered_keys(
    ranks: int, position: Position, window: int | None
) -> None:
    shape = msgspec.structs.replace(BLOOM.architecture, heads=6, position=position, sliding_window=window)
    whole = score_bias(shape, heads=slice(2, 5), length=LENGTH, device=CPU)
    order = torch.cat([dealt(torch.arange(LENGTH), rank=rank, ranks=ranks) for rank in range(ranks)])
    assert sorted(order.tolist()) == list(range(LENGTH))
    for rank in range(ranks):
        positions = dealt_positions(length=LENGTH, rank=rank, ranks=ranks, device=CPU)
        own = score_bias(shape, heads=slice(2, 5), length=LENGTH, device=CPU, positions=positions)
        rows = order.chunk(ranks)[rank]
        assert torch.equal(own, whole[:, rows][:, :, order])


def test_the_first_rank_of_two_has_the_first_and_the_last_quarter() -> None:
    assert dealt(torch.arange(8), rank=0, ranks=2).tolist() == [0, 1, 6, 7]
    assert dealt(torch.arange(8), rank=1, ranks=2).tolist() == [2, 3, 4, 5]


def test_queries_turn_by_their_positions_in_the_sequence() -> None:
    shape = msgspec.structs.replace(BLOOM.architecture, position=Position.ROTARY, rotary_dim=8, rotary_base=10000)
    whole = rotation(shape, torch.arange(LENGTH))
    positions = dealt_positions(length=LENGTH, rank=1, ranks=3, device=CPU)
    own = rotation(shape, positions.queries_T)
    assert whole is not None
    assert own is not None
    assert torch.equal(own, whole[:, positions.queries_T])
