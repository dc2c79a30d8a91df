"""Acceptance batteries on the page: a row for each, and the findings of the newest battery of every node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from reference_runs.errors import InputError
from suite.acceptance.check_table import CHECKS
from suite.records.battery import BatteryBegin, BatteryEnd, CheckFinding, stored_batteries, worst_first
from suite.report.html.plot import utc
from suite.report.terminal.acceptance import compared, finding_reason, number_text, summary

MOST_BATTERIES = 200
MOST_NODES = 50  # whose findings are shown
NOT_ENDED = "not ended"


class FindingRow(NamedTuple):
    """A finding, as texts."""

    check: int
    name: str
    subject: str
    measured: str
    expected: str
    difference: str
    verdict: str
    part: str
    action: str
    why: str


class BatteryText(NamedTuple):
    """A battery, as texts.

    Args:
        decision: of its end; `NOT_ENDED` without an end.
        says: the one-line summary.
        newest: whether it is the newest of its node on this hardware.
        rows: of the findings, worst first; only of the newest.
    """

    id: str
    day: str
    node: str
    profile: str
    decision: str
    seconds: str
    says: str
    newest: bool
    rows: Sequence[FindingRow]


class Batteries(NamedTuple):
    """The newest batteries first, how many more there are, and what could not be read."""

    shown: list[BatteryText]
    left_out: int
    damaged: list[InputError]


def batteries(results: Path) -> Batteries:
    """Batteries of all nodes below `results`."""
    stored = stored_batteries(results, BatteryBegin, BatteryEnd)
    damaged = [battery.problem for battery in stored if battery.problem is not None]
    recorded = [(battery.begin, battery.end) for battery in stored if battery.begin is not None]
    recorded.sort(key=lambda both: (-both[0].started, both[0].id))
    nodes: set[tuple[str, str]] = set()
    shown = []
    for opening, closed in recorded[:MOST_BATTERIES]:
        node = (opening.node, opening.hashes.get("hardware", ""))
        newest = node not in nodes and len(nodes) < MOST_NODES
        nodes.add(node)
        shown.append(_battery(opening, closed, newest=newest))
    return Batteries(shown, len(recorded) - len(shown), damaged)


def _battery(opening: BatteryBegin, closed: BatteryEnd | None, *, newest: bool) -> BatteryText:
    return BatteryText(
        id=f"battery-{opening.id}",
        day=f"{utc(opening.started)} UTC",
        node=opening.node,
        profile=opening.profile,
        decision=NOT_ENDED if closed is None else closed.decision.value,
        seconds="" if closed is None else f"{closed.seconds:,.0f} s",
        says="it was interrupted, or still runs; --resume goes on with it" if closed is None else summary(closed),
        newest=newest,
        rows=[_row(finding) for finding in worst_first(closed.findings)] if newest and closed else [],
    )


def _row(finding: CheckFinding) -> FindingRow:
    known = finding.check < len(CHECKS)
    return FindingRow(
        check=finding.check,
        name=CHECKS[finding.check].name if known else f"check {finding.check}",
        subject=finding.subject,
        measured=number_text(finding.measured, finding.unit),
        expected=number_text(finding.expected, finding.unit),
        difference=compared(finding, finding.ratio),
        verdict=finding.verdict.value,
        part=finding.part,
        action="" if finding.action is None else finding.action.value,
        why=finding_reason(finding),
    )
