"""The choice from stacked parametrizations: everything has its turn, and no test is lost."""

from __future__ import annotations

import itertools
from collections import Counter
from types import SimpleNamespace

import pytest

from tests.support.covering import cover, make_others_rare

SIZES = (5, 3, 2)
CASES = list(itertools.product(*map(range, SIZES)))
STACKED = [pytest.mark.parametrize(("rows", "columns"), []).mark, pytest.mark.parametrize("dtype", []).mark]


@pytest.mark.parametrize(("together", "count"), [(1, 5), (2, 15), (3, 30)])
def test_all_that_so_many_parameters_can_be_is_chosen(together: int, count: int) -> None:
    chosen = [CASES[number] for number in cover(CASES, together)]
    assert len(chosen) == count  # no fewer can have all that the longest are
    for places in itertools.combinations(range(len(SIZES)), together):
        found = {tuple(case[place] for place in places) for case in chosen}
        assert found == {*itertools.product(*(range(SIZES[place]) for place in places))}
    turns = Counter(case[1] for case in chosen)
    assert max(turns.values()) - min(turns.values()) <= 1


class Item:
    """One case of a test, with what of pytest's is asked for."""

    def __init__(self, test: str, case: tuple[int, int, int], mark: pytest.Mark | None) -> None:
        self.nodeid, self.marks = f"{test}{[*case]}", list[str]()
        self.callspec = SimpleNamespace(params=dict(zip(("rows", "columns", "dtype"), case, strict=True)))
        self.iter_markers = {"parametrize": STACKED}.get
        self.get_closest_marker = {"covering": mark}.get
        self.add_marker = self.marks.append


def test_of_each_test_what_is_not_chosen_is_rare_and_what_has_no_mark_stays() -> None:
    mark = pytest.mark.covering(1).mark
    cases = [(rows, 7 * rows, dtype) for rows in range(5) for dtype in range(3)]
    tests = {"a": mark, "b": mark, "c": None}
    one, other, free = ([Item(name, case, own) for case in cases] for name, own in tests.items())
    make_others_rare([*one, *other, *free])  # type: ignore[list-item]
    usual = [[item for item in items if not item.marks] for items in (one, other, free)]
    assert [len(items) for items in usual] == [5, 5, len(cases)]
    assert {item.callspec.params["dtype"] for item in usual[0]} == {0, 1, 2}
    assert {word for item in one for word in item.marks} == {"rare"}
