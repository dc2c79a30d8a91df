"""Which term of a step's time is furthest from its prediction, and how much of the step no term explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from suite.metrics.comparison import Row
from suite.metrics.figures import Quantity, StepTerm

EXPLAINED = tuple(term.value for term in StepTerm if term is not StepTerm.UNEXPLAINED)


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
