from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from suite.predict.plan.frontier import by_number, frontier
from tests.predict.plan.test_search import question

points = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12)
MEASURES = (lambda point: point[0], lambda point: point[1])


@given(points)
def test_no_point_of_a_frontier_is_beaten_and_every_other_is(pairs: list[tuple[int, int]]) -> None:
    kept = frontier(pairs, *MEASURES)
    for point in pairs:
        better = [other for other in pairs if other != point and other[0] <= point[0] and other[1] <= point[1]]
        assert (point in kept) == (not better)


def test_numbers_are_of_whole_nodes_and_divisors_of_a_node() -> None:
    found = by_number(question(16, layouts=("tp", "pp", "zero1", "recompute-full")))
    ranks = [each.ranks for each in found]
    assert ranks == sorted(ranks)
    assert {1, 2, 4, 8, 16, 32, 64, 128} >= set(ranks)
    assert 16 in ranks
    for each in found:
        assert each.found.layout.ranks == each.ranks
    # gpt2-124m computes a batch of 64 samples faster on more accelerators, up to where the batch ends
    assert min(ranks) < 16 < max(ranks)
