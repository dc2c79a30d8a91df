"""Joining two sets of figures."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.metrics.comparison import Row, Verdict, compare, overall
from suite.metrics.figures import Figure, Quantity, StepTerm, with_maximum_over_ranks

KEYS = [
    "quantity",
    "axis",
    "operation",
    "rank",
    "stage",
    "term",
    "convention",
    "unit",
    "left",
    "right",
    "difference",
    "tolerance",
    "verdict",
    "why",
]


def _figure(quantity: Quantity, value: float, **more: object) -> Figure:
    return msgspec.convert({"quantity": quantity, "value": value, **more}, Figure)


def _rows(left: list[Figure], right: list[Figure], *, judge: bool = True) -> list[Row]:
    return compare(left, right, left_name="predicted", right_name="measured", judge=judge)


def test_a_row_has_the_keys_of_the_json_form() -> None:
    (row,) = _rows([_figure(Quantity.MESSAGES, 2)], [_figure(Quantity.MESSAGES, 2)])
    assert list(msgspec.json.decode(msgspec.json.encode(row))) == KEYS


@pytest.mark.parametrize(("right", "verdict"), [(100, Verdict.PASS), (101, Verdict.FAIL), (99, Verdict.FAIL)])
def test_exact_quantities_pass_only_when_equal(right: int, verdict: Verdict) -> None:
    (row,) = _rows([_figure(Quantity.PAYLOAD_BYTES, 100)], [_figure(Quantity.PAYLOAD_BYTES, right)])
    assert (row.verdict, row.difference, row.tolerance, row.unit) == (verdict, right - 100, 0.0, "byte")


def test_large_exact_integers_are_not_compared_as_floats() -> None:
    (row,) = _rows([_figure(Quantity.MODEL_FLOP, 2**60)], [_figure(Quantity.MODEL_FLOP, 2**60 + 1)])
    assert (row.verdict, row.difference) == (Verdict.FAIL, 1)


@pytest.mark.parametrize(
    ("right", "verdict"), [(10.3, Verdict.PASS), (9.7, Verdict.PASS), (10.31, Verdict.FAIL), (9.69, Verdict.FAIL)]
)
def test_a_tolerance_is_relative_to_the_left_side(right: float, verdict: Verdict) -> None:
    left = _figure(Quantity.FIRST_LOSS, 10.0, tolerance=0.030001, why="spread of batches")
    (row,) = _rows([left], [_figure(Quantity.FIRST_LOSS, right)])
    assert (row.verdict, row.why) == (verdict, "spread of batches")


def test_nan_never_passes() -> None:
    left = _figure(Quantity.FIRST_LOSS, 10.0, tolerance=0.03)
    (row,) = _rows([left], [Figure(quantity=Quantity.FIRST_LOSS, value=float("nan"))])
    assert row.verdict is Verdict.FAIL


def test_an_exact_quantity_on_one_side_only_fails_where_it_is_judged() -> None:
    broadcast = _figure(Quantity.MESSAGES, 1, axis="dp", operation="broadcast")
    (unpredicted,) = _rows([], [broadcast])
    (unmeasured,) = _rows([broadcast], [])
    assert (unpredicted.verdict, unpredicted.why) == (Verdict.FAIL, "not predicted")
    assert (unmeasured.verdict, unmeasured.why) == (Verdict.FAIL, "not measured")
    assert _rows([], [broadcast], judge=False)[0].verdict is Verdict.SHOWN


def test_what_a_textbook_says_besides_is_shown_with_its_reason_and_not_judged() -> None:
    predicted = _figure(Quantity.PAYLOAD_BYTES, 100, axis="dp", operation="all_gather")
    textbook = msgspec.structs.replace(predicted, value=-4, term="textbook minus executed", why="no padding")
    other = msgspec.structs.replace(predicted, value=-4, term="something else")
    rows = _rows([predicted, textbook, other], [predicted])
    reported = [(row.verdict, row.left, row.right, row.why) for row in rows]
    assert reported == [
        (Verdict.PASS, 100, 100, "exact"),
        (Verdict.SHOWN, -4, None, "no padding"),
        (Verdict.FAIL, -4, None, "not measured"),
    ]


def test_a_quantity_that_is_not_predicted_is_shown() -> None:
    (row,) = _rows([], [_figure(Quantity.STEP_SECONDS, 0.5)])
    assert (row.left, row.right, row.verdict, row.why) == (None, 0.5, Verdict.SHOWN, "not predicted")


def test_figures_of_different_ranks_axes_and_operations_are_not_joined() -> None:
    left = [_figure(Quantity.MESSAGES, 1, axis="dp", operation="all_reduce", rank=0)]
    right = [_figure(Quantity.MESSAGES, 1, axis="dp", operation="all_reduce", rank=1)]
    assert [row.verdict for row in _rows(left, right)] == [Verdict.FAIL, Verdict.FAIL]


def test_one_failing_row_fails_all_and_shown_rows_pass_nothing() -> None:
    passing = _rows([_figure(Quantity.MESSAGES, 1)], [_figure(Quantity.MESSAGES, 1)])
    failing = _rows([_figure(Quantity.MESSAGES, 1)], [_figure(Quantity.MESSAGES, 2)])
    shown = _rows([], [_figure(Quantity.STEP_SECONDS, 1.0)])
    assert overall(passing + shown) is Verdict.PASS
    assert overall(passing + failing) is Verdict.FAIL
    assert overall(shown) is Verdict.SHOWN
    assert overall([]) is Verdict.SHOWN


def test_the_maximum_over_ranks_stands_before_the_ranks() -> None:
    figures = [_figure(Quantity.WEIGHT_BYTES, value, rank=rank) for rank, value in enumerate([5, 9, 7])]
    assert [(f.rank, f.value) for f in with_maximum_over_ranks(figures)] == [(None, 9), (0, 5), (1, 9), (2, 7)]


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


@pytest.mark.parametrize("right", [112.5, 87.5])
def test_a_tolerance_includes_its_edge(right: float) -> None:
    # 12.5 % of 100 is exact in binary
    (row,) = _rows([_figure(Quantity.FIRST_LOSS, 100.0, tolerance=0.125)], [_figure(Quantity.FIRST_LOSS, right)])
    assert row.verdict is Verdict.PASS


def test_of_two_conventions_the_left_one_is_shown_and_a_single_one_from_either_side() -> None:
    left, right = (_figure(Quantity.MFU, 0.4, convention=name) for name in ("causal", "full"))
    plain = _figure(Quantity.MFU, 0.4)
    shown = [_rows([one], [other])[0].convention for one, other in ((left, right), (plain, right), (left, plain))]
    assert shown == ["causal", "full", "causal"]
    assert _rows([plain], [plain])[0].convention is None


def test_a_step_stands_above_its_terms_whatever_their_order() -> None:
    first, second, *_ = StepTerm
    terms = [Figure(quantity=Quantity.STEP_SECONDS, value=1.0, term=term) for term in (second, first)]
    whole = Figure(quantity=Quantity.STEP_SECONDS, value=2.0)
    assert [row.term for row in _rows([*terms, whole], [])] == [None, first, second]
