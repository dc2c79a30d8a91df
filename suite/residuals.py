"""Which term of a step's time is furthest from its prediction, and how much of the step no term explains."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from suite.compare import Row
from suite.figures import Quantity, StepTerm


class Residuals(msgspec.Struct, frozen=True, kw_only=True):
    """A measured step time beside its prediction.

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
    of_job = {row.term: row for row in rows if row.quantity == Quantity.STEP_SECONDS and row.rank is None and row.right}
    whole = of_job.get(None)
    terms = {term: row for term, row in of_job.items() if term is not None and term != StepTerm.UNEXPLAINED}
    terms = {term: row for term, row in terms.items() if row.difference is not None}
    if whole is None or whole.left is None or whole.right is None or not terms:
        return None
    term, row = max(terms.items(), key=lambda item: abs(item[1].difference or 0.0))
    rest = of_job.get(StepTerm.UNEXPLAINED)
    return Residuals(
        predicted_seconds=whole.left,
        measured_seconds=whole.right,
        difference=whole.right - whole.left,
        term=term or "",
        residual=row.difference or 0.0,
        unexplained_seconds=(rest.right or 0.0) if rest else 0.0,
    )
