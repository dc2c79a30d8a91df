"""Figures of the whole job in what commands print with --json."""

from __future__ import annotations

from typing import Any


def whole(entry: dict[str, Any]) -> dict[str, float]:
    """Predicted values of the whole job, by quantity; of several the first."""
    rows = [row for row in entry["figures"] if row["stage"] is None and row["term"] is None]
    return {row["quantity"]: row["left"] for row in reversed(rows)}
