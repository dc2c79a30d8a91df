"""Which term of a step's time is furthest from its prediction, and how much of the step no term explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from suite.job.events import Status
from suite.metrics.comparison import Row
from suite.metrics.figures import Quantity, StepTerm
from suite.records.index import LaunchSummary, Values
from suite.records.summary import Key

TERMS = tuple(term.value for term in StepTerm)
EXPLAINED = tuple(term for term in TERMS if term != StepTerm.UNEXPLAINED)


class Residuals(msgspec.Struct, frozen=True, kw_only=True):
    """A measured step time and its prediction.

    Args:
        difference: measured less predicted seconds of the step.
        term: whose measured seconds are furthest from the predicted ones; `residual` how far, with its sign.
        unexplained_seconds: of the measured step, in no term.
    """

    predicted_seconds: float
    measured_seconds: float
    difference: float
    term: str
    residual: float
    unexplained_seconds: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_seconds / self.measured_seconds - 1

    @property
    def unexplained_share(self) -> float:
        """Of the measured step, without sign."""
        return abs(self.unexplained_seconds) / self.measured_seconds


def residuals(rows: Sequence[Row]) -> Residuals | None:
    """Of the job's rows; None where step time was not predicted or not split."""
    of_job = {row.term: row for row in rows if row.quantity == Quantity.STEP_SECONDS and row.rank is None}
    left = {term: row.left for term, row in of_job.items() if row.left is not None}
    right = {term: row.right for term, row in of_job.items() if row.right is not None}
    return _residuals(left, right)


def launch_residuals(launch: LaunchSummary) -> Residuals | None:
    """Of a recorded launch, as of its rows; None where it did not end well too."""
    if launch.status != Status.OK or not launch.predicted.numbers:
        return None
    left, right = (_step_seconds(figures) for figures in (launch.predicted, launch.measured))
    return _residuals(left, right)


def _step_seconds(figures: Values) -> dict[str | None, int | float]:
    """By term; None: of the whole step."""
    numbers = figures.numbers
    return {term: numbers[index] for term, index in _terms(figures.places)}


_known: dict[int, tuple[dict[Key, int], list[tuple[str | None, int]]]] = {}


def _terms(places: dict[Key, int]) -> list[tuple[str | None, int]]:
    """The terms of the step, and where their seconds are; looked up once for all launches that share the places."""
    same, terms = _known.get(id(places), (None, []))
    if same is not places:
        keys = ((term, (Quantity.STEP_SECONDS.value, None, None, term)) for term in (None, *TERMS))
        terms = [(term, places[key]) for term, key in keys if key in places]
        _known[id(places)] = places, terms
    return terms


def _residuals(left: Mapping[str | None, float], right: Mapping[str | None, float]) -> Residuals | None:
    whole = right.get(None)
    shared = [term for term in EXPLAINED if term in left and term in right]
    if None not in left or not whole or not shared:
        return None
    term = max(shared, key=lambda term: abs(right[term] - left[term]))
    return Residuals(
        predicted_seconds=left[None],
        measured_seconds=whole,
        difference=whole - left[None],
        term=term,
        residual=right[term] - left[term],
        unexplained_seconds=right.get(StepTerm.UNEXPLAINED.value, 0.0),
    )
