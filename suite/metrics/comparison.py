"""Joins two sets of figures into rows: left, right, difference, tolerance, verdict, why."""

from __future__ import annotations

import enum

import msgspec

from suite.metrics.figures import EXACT, Figure, Quantity, StepTerm


class Verdict(enum.StrEnum):
    """Verdict on one row, or on all: "shown" rows are not judged."""

    PASS = "pass"
    FAIL = "fail"
    SHOWN = "shown"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison; keys that do not apply are null. `difference` is right - left, `tolerance` is relative."""

    quantity: str
    axis: str | None
    operation: str | None
    rank: int | None
    stage: int | None
    term: str | None
    convention: str | None
    unit: str
    left: int | float | None
    right: int | float | None
    difference: int | float | None
    tolerance: float | None
    verdict: Verdict
    why: str | None


def compare(left: list[Figure], right: list[Figure], *, left_name: str, right_name: str, judge: bool) -> list[Row]:
    """Rows in the order of `left`, then what only `right` has; a step's terms in their own order below its seconds.

    Exact quantities compare with ==; with `judge`, one that only one side has is a failure, so that a message that
    nobody predicted is not overlooked. Others are judged by the left figure's tolerance, or only shown. A figure whose
    term begins with "textbook" says what else could have been predicted: it is only shown.
    """
    others = {figure.key: figure for figure in right}
    rows = [_row(figure, others.pop(figure.key, None), left_name, right_name, judge) for figure in left]
    rows += [_row(None, figure, left_name, right_name, judge) for figure in others.values()]
    order = {quantity: index for index, quantity in enumerate(Quantity)}
    return sorted(rows, key=lambda row: (order[Quantity(row.quantity)], row.rank is not None, _index_of_term(row)))


def _index_of_term(row: Row) -> int:
    """0 for all rows but those of a step's terms, which are numbered from 1."""
    return _TERM_NUMBERS.get(row.term or "", 0) if row.quantity == Quantity.STEP_SECONDS else 0


_TERM_NUMBERS = {term.value: number for number, term in enumerate(StepTerm, start=1)}


def _row(left: Figure | None, right: Figure | None, left_name: str, right_name: str, judge: bool) -> Row:
    figure = left or right
    assert figure is not None
    tolerance = left.tolerance if left else None
    why = (left.why if left else "") or None
    difference = right.value - left.value if left and right else None
    exact = figure.quantity in EXACT
    verdict = Verdict.SHOWN
    if left and not right and (left.term or "").startswith("textbook"):
        pass  # its reason stands; no measurement is missing
    elif not left or not right:
        missing = left_name if not left else right_name
        why = why or figure.why
        why = f"not {missing}: {why}" if why else f"not {missing}"
        if exact and judge:
            verdict = Verdict.FAIL
    elif not judge:
        why = why or right.why or None
    elif exact:
        verdict = Verdict.PASS if difference == 0 else Verdict.FAIL
        tolerance = 0.0
        why = why or "exact"
    elif tolerance is not None:
        assert difference is not None
        verdict = Verdict.PASS if abs(difference) <= tolerance * abs(left.value) else Verdict.FAIL
    conventions = [side.convention for side in (left, right) if side and side.convention]
    return Row(
        quantity=figure.quantity.value,
        axis=figure.axis,
        operation=figure.operation,
        rank=figure.rank,
        stage=figure.stage,
        term=figure.term,
        convention=conventions[0] if conventions else None,
        unit=figure.quantity.unit,
        left=left.value if left else None,
        right=right.value if right else None,
        difference=difference,
        tolerance=tolerance,
        verdict=verdict,
        why=why,
    )


def overall(rows: list[Row]) -> Verdict:
    """fail where any row fails, pass where any passes and none fails, otherwise shown."""
    verdicts = {row.verdict for row in rows}
    if Verdict.FAIL in verdicts:
        return Verdict.FAIL
    return Verdict.PASS if Verdict.PASS in verdicts else Verdict.SHOWN
