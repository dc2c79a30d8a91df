"""Measurements of a run with this suite: launches of its miniature, and of the run's own file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from suite.paths import RESULTS
from suite.records.index import launches
from suite.records.summary import LaunchSummary
from suite.report.compared_launches import SetupKey, by_setup, comparable_launches, median_launch
from suite.report.explore.presets import described_run
from suite.report.html.machine_names import machine_names

MOST_ROWS = 12


def measured(run: str, results: Path = RESULTS) -> dict[str, Any]:
    """The median launch of each setup, of those that compare, as in TABLES.md; the setups launched last come first."""
    described = described_run(run)
    name = described.miniature or described.name
    if ":" in name:  # a published row has no launches
        return {"words": "", "launches": []}
    found = [launch for launch in launches(results, run=Path(name).stem)[0] if not launch.rung]
    setups = [(key, own) for key, launched in by_setup(found).items() if (own := comparable_launches(launched))]
    setups.sort(key=lambda setup: max(launch.started for launch in setup[1]), reverse=True)
    machines = machine_names(found)
    words = f"{name}, the miniature of this run" if described.miniature else name
    return {
        "words": f"{words}: the median launch of each setup, as in TABLES.md, beside what was predicted of it.",
        "launches": [_row(machines[key.machine].short, key, own) for key, own in setups[:MOST_ROWS]],
    }


def _row(machine: str, key: SetupKey, comparable: list[LaunchSummary]) -> dict[str, Any]:
    shown = median_launch(comparable)
    assert shown is not None
    ranks = f"{key.ranks} {'rank' if key.ranks == 1 else 'ranks'} on {shown.device}"
    return {
        "machine": machine,
        "layout": ", ".join([key.layout, *([] if key.execution == "eager" else [key.execution]), ranks]),
        "launches": len(comparable),
        "predicted_seconds": shown.predicted.of("step_seconds"),
        "measured_seconds": shown.measured.of("step_seconds"),
        "measured_bytes": shown.measured.of("peak_bytes"),
    }
