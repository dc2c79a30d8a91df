"""Rows that no number routes are dealt evenly."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.execute.dry_run.even_routing import even_ends, even_routing
from suite.execute.model import experts
from suite.execute.parallel import expert_parallel


@given(number=st.integers(1, 300), rows=st.integers(0, 10**6))
def test_shares_differ_by_one_row_at_most_and_are_all_rows(number: int, rows: int) -> None:
    ends = even_ends(number, rows)
    shares = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    assert sum(shares) == ends[-1] == rows
    assert max(shares) - min(shares) <= 1


def test_what_a_router_chose_is_not_read() -> None:
    ends_E = torch.tensor([12, 12, 12, 12], dtype=torch.int32)
    by_rank_2GE = torch.tensor([[[12, 0], [0, 0]], [[3, 1], [5, 0]]])
    with even_routing():
        assert experts.ends_on_host(ends_E, 12) == [3, 6, 9, 12]
        assert expert_parallel.exchanged_on_host(by_rank_2GE, 12) == ([6, 6], [6, 6])
    assert experts.ends_on_host(ends_E, 12) == [12, 12, 12, 12]
    assert expert_parallel.exchanged_on_host(by_rank_2GE, 12) == ([12, 0], [4, 5])
