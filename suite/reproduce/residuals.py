"""Which term of a step's time is furthest from its prediction, and how much of the step no term explains."""

from __future__ import annotations

from collections.abc import Sequence

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
    of_job = [row for row in rows if row.quantity == Quantity.STEP_SECONDS and row.rank is None]
    predicted = {row.term: row.left for row in of_job if row.left is not None}
    measured = {row.term: row.right for row in of_job if row.right is not None}
    terms = {term: measured[term] - predicted[term] for term in EXPLAINED if term in predicted and term in measured}
    if None not in predicted or not measured.get(None) or not terms:
        return None
    furthest = max(terms, key=lambda term: abs(terms[term]))
    return Residuals(
        predicted_seconds=predicted[None],
        measured_seconds=measured[None],
        difference=measured[None] - predicted[None],
        term=furthest,
        residual=terms[furthest],
        unexplained_seconds=measured.get(StepTerm.UNEXPLAINED.value, 0.0),
    )
