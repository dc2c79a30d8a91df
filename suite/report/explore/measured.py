"""Measurements of a run with this suite: launches of its miniature, and of the run's own file."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suite.paths import RESULTS
from suite.records.index import launches
from suite.records.summary import LaunchSummary
from suite.report.explore.presets import described_run

MOST_ROWS = 12


def measured(run: str, results: Path = RESULTS) -> dict[str, Any]:
    """Launches that ended well, those of one machine, layout and way of execution together: medians, newest first."""
    described = described_run(run)
    name = described.miniature or described.name
    if ":" in name:  # a published row has no launches
        return {"words": "", "launches": []}
    found = [
        launch for launch in launches(results, run=Path(name).stem)[0] if launch.status == "ok" and not launch.rung
    ]
    alike: dict[tuple[str, str], list[LaunchSummary]] = defaultdict(list)
    for launch in reversed(found):
        alike[launch.machine, _words(launch)].append(launch)
    words = f"{name}, the miniature of this run" if described.miniature else name
    return {
        "words": f"{words}: medians of its launches beside what was predicted for each.",
        "launches": [_row(machine, layout, each) for (machine, layout), each in alike.items()][:MOST_ROWS],
    }


def _words(launch: LaunchSummary) -> str:
    ranks = f"{launch.ranks} {'rank' if launch.ranks == 1 else 'ranks'} on {launch.device}"
    return f"{launch.layout}{', compiled' if launch.compiled else ''}, {ranks}"


def _row(machine: str, layout: str, alike: Sequence[LaunchSummary]) -> dict[str, Any]:
    return {
        "machine": machine.replace(", GPUs: none", ""),
        "layout": layout,
        "launches": len(alike),
        "predicted_seconds": _median(launch.predicted.of("step_seconds") for launch in alike),
        "measured_seconds": _median(launch.measured.of("step_seconds") for launch in alike),
        "measured_bytes": _median(launch.measured.of("peak_bytes") for launch in alike),
    }


def _median(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
