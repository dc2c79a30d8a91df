"""Joining two sets of figures."""

from __future__ import annotations

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from suite.metrics.comparison import Row, Verdict, compare, overall
from suite.metrics.figures import Figure, Quantity, StepTerm

PASS, FAIL, SHOWN = Verdict.PASS, Verdict.FAIL, Verdict.SHOWN
KEYS = (
    *("quantity", "axis", "operation", "rank", "stage", "term", "convention", "unit"),
    *("left", "right", "difference", "tolerance", "verdict", "why"),
)


def _figure(quantity: Quantity, value: float, **more: object) -> Figure:
    return msgspec.convert({"quantity": quantity, "value": value, **more}, Figure)


def _rows(left: list[Figure], right: list[Figure], *, judge: bool = True) -> list[Row]:
    return compare(left, right, left_name="predicted", right_name="measured", judge=judge)


def _row(left: Figure, right: float) -> Row:
    (row,) = _rows([left], [Figure(quantity=left.quantity, value=right)])
    return row


def test_a_row_has_the_keys_of_the_json_form() -> None:
    row = _row(_figure(Quantity.MESSAGES, 2), 2)
    assert tuple(msgspec.json.decode(msgspec.json.encode(row))) == KEYS


def test_exact_quantities_pass_only_when_equal_and_are_not_compared_as_floats() -> None:
    for right, verdict in ((100, PASS), (101, FAIL), (99, FAIL)):
        row = _row(_figure(Quantity.PAYLOAD_BYTES, 100), right)
        assert (row.verdict, row.difference, row.tolerance, row.unit) == (verdict, right - 100, 0.0, "byte")
    large = _row(_figure(Quantity.MODEL_FLOP, 2**60), 2**60 + 1)
    assert (large.verdict, large.difference) == (FAIL, 1)


def test_a_tolerance_is_relative_to_the_left_side_with_its_edge_and_nan_never_passes() -> None:
    # 12.5 % of 100 is exact in binary
    left = _figure(Quantity.FIRST_LOSS, 100.0, tolerance=0.125, why="spread of batches")
    expected = {100.0: PASS, 112.5: PASS, 87.5: PASS, 112.51: FAIL, 87.49: FAIL, math.nan: FAIL}
    rows = {right: _row(left, right) for right in expected}
    assert {right: row.verdict for right, row in rows.items()} == expected
    assert {row.why for row in rows.values()} == {"spread of batches"}


def test_an_exact_quantity_on_one_side_only_fails_where_it_is_judged_and_others_are_shown() -> None:
    broadcast = _figure(Quantity.MESSAGES, 1, axis="dp", operation="broadcast")
    (unpredicted,) = _rows([], [broadcast])
    (unmeasured,) = _rows([broadcast], [])
    assert (unpredicted.verdict, unpredicted.why) == (FAIL, "not predicted")
    assert (unmeasured.verdict, unmeasured.why) == (FAIL, "not measured")
    assert _rows([], [broadcast], judge=False)[0].verdict is SHOWN
    (step,) = _rows([], [_figure(Quantity.STEP_SECONDS, 0.5)])
    assert (step.left, step.right, step.verdict, step.why) == (None, 0.5, SHOWN, "not predicted")


def test_what_a_textbook_says_besides_is_shown_with_its_reason_and_not_judged() -> None:
    predicted = _figure(Quantity.PAYLOAD_BYTES, 100, axis="dp", operation="all_gather")
    textbook = msgspec.structs.replace(predicted, value=-4, term="textbook minus executed", why="no padding")
    other = msgspec.structs.replace(predicted, value=-4, term="something else")
    rows = _rows([predicted, textbook, other], [predicted])
    reported = [(row.verdict, row.left, row.right, row.why) for row in rows]
    assert reported == [(PASS, 100, 100, "exact"), (SHOWN, -4, None, "no padding"), (FAIL, -4, None, "not measured")]


def test_one_failing_row_fails_all_and_shown_rows_pass_nothing() -> None:
    passing, failing = ([_row(_figure(Quantity.MESSAGES, 1), value)] for value in (1, 2))
    shown = _rows([], [_figure(Quantity.STEP_SECONDS, 1.0)])
    families = [passing + shown, passing + failing, shown, []]
    assert list(map(overall, families)) == [PASS, FAIL, SHOWN, SHOWN]


@given(st.lists(st.tuples(st.sampled_from(Quantity), st.none() | st.integers(0, 3)), unique=True))
def test_every_figure_is_in_exactly_one_row(places: list[tuple[Quantity, int | None]]) -> None:
    figures = [_figure(quantity, 1, rank=rank) for quantity, rank in places]
    left, right = len(places) // 2, len(places) // 3  # places from `right` to `left` are on both sides
    rows = _rows(figures[:left], figures[right:])
    assert {(row.quantity, row.rank) for row in rows} == set(places)
    assert len(rows) == len(places)
    for row in rows:
        place = places.index((Quantity(row.quantity), row.rank))
        assert (row.left is not None, row.right is not None) == (place < left, place >= right)
        assert row.unit == places[place][0].unit


def test_of_two_conventions_the_left_one_is_shown_and_a_single_one_from_either_side() -> None:
    left, right = (_figure(Quantity.MFU, 0.4, convention=name) for name in ("causal", "full"))
    plain = _figure(Quantity.MFU, 0.4)
    sides = ((left, right), (plain, right), (left, plain), (plain, plain))
    shown = [_rows([one], [other])[0].convention for one, other in sides]
    assert shown == ["causal", "full", "causal", None]


def test_a_step_stands_above_its_terms_whatever_their_order() -> None:
    first, second, *_ = StepTerm
    terms = [Figure(quantity=Quantity.STEP_SECONDS, value=1.0, term=term) for term in (second, first)]
    whole = Figure(quantity=Quantity.STEP_SECONDS, value=2.0)
    assert [row.term for row in _rows([*terms, whole], [])] == [None, first, second]
