"""A made-up report of a rank at its end."""

from __future__ import annotations

from typing import Any

from suite.job.events import Finished

COUNTS = (
    *("parameters", "own_parameters", "model_flop", "hardware_flop", "weight_bytes", "gradient_bytes"),
    *("optimizer_bytes", "activation_bytes", "peak_bytes"),
)


def finished(count: int, **given: Any) -> Finished:
    """A report in which every count is `count`, and nothing was measured, but for what is given."""
    nothing = {"worked_seconds": [], "pipeline_seconds": [], "interface_sent_bytes": None, "collectives": []}
    words = {"arithmetic": "", "environment": {}, "time": 0.0, "coordinates": {"dp": 0}}
    return Finished(**(dict.fromkeys(COUNTS, count) | nothing | words | given))
