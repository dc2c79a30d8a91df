"""Values of other batteries: earlier ones of this node, and those of other nodes of a fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from reference_runs.errors import InputError
from suite.acceptance.check_table import HANG_GUARD
from suite.records.battery import (
    DIRECTORY,
    BatteryEnd,
    CheckFinding,
    CheckVerdict,
    Decision,
    PastBattery,
    battery_directory,
    battery_paths,
    compared_values,
    decode,
    good_until_and_bad_since,
)
from suite.records.record import contents

NODE_PAST = "accepted batteries of this node"
OTHER_NODES = "other nodes of the fleet"
_ONE = {NODE_PAST: "1 accepted battery of this node", OTHER_NODES: "1 other node of the fleet"}
_FAILED = {CheckVerdict.FAIL, CheckVerdict.HANG}


def counted(count: int, of: str) -> str:
    """How many accepted batteries of this node, or other nodes of the fleet."""
    return _ONE.get(of, f"1 {of}") if count == 1 else f"{count} {of}"


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Findings of other batteries.

    Args:
        past: of accepted batteries of this node with the same hardware, software, device and ranks, oldest first, by
            check and name of the compared value.
        fleet: likewise the newest of each other node with the same hardware, device and ranks.
        losses: of accepted batteries, by stack.
        fleet_nodes: number of those nodes; `fleet_summary` has it with the reasons why others do not count; empty
            without a fleet.
        past_problems, fleet_problems: records that were left out, and why.
        judged: every battery of this node that ran as those of `past`, accepted or not, and its findings, oldest first.
        virtual: whether the values are of processors of a virtual machine, as `MicroMeasurements.virtual` says.
    """

    past: dict[str, list[CheckFinding]] = {}
    fleet: dict[str, list[CheckFinding]] = {}
    losses: dict[str, list[float]] = {}
    fleet_nodes: int = 0
    fleet_summary: str = ""
    past_problems: list[str] = []
    fleet_problems: list[str] = []
    judged: list[tuple[PastBattery, list[CheckFinding]]] = []
    virtual: bool = False

    def of(self, check: int, compared_as: str) -> tuple[list[CheckFinding], list[CheckFinding]]:
        """Findings of the past and of the fleet that have this value of a check."""
        key = f"{check}:{compared_as}"
        return self.past.get(key, []), self.fleet.get(key, [])

    def dated(self, finding: CheckFinding) -> CheckFinding:
        """The finding, if it is bad, with the batteries between which it became bad.

        Only failures and hangs are as bad as a failure; a warning, a failure and a hang are as bad as a warning.
        Batteries without a verdict (not run, invalid, inconclusive) are skipped.
        """
        if finding.verdict not in {*_FAILED, CheckVerdict.WARN}:
            return finding
        as_bad = _FAILED | {CheckVerdict.WARN} if finding.verdict is CheckVerdict.WARN else _FAILED
        earlier = ((battery, _verdicts(finding, findings)) for battery, findings in self.judged)
        good, bad = good_until_and_bad_since(
            (battery, False if verdicts & as_bad else True if verdicts == {CheckVerdict.PASS} else None)
            for battery, verdicts in earlier
        )
        return msgspec.structs.replace(finding, good_until=good, bad_since=bad)


def _verdicts(finding: CheckFinding, earlier: list[CheckFinding]) -> set[CheckVerdict]:
    """Verdicts of an earlier battery on the same check and subject.

    Of all subjects of the check, where the finding has none (nothing of the check ended well), or names a phase: a
    passing hang guard names no phase.
    """
    ran = [other for other in earlier if other.check == finding.check and other.verdict is not CheckVerdict.NOT_RUN]
    name = finding.compared_as
    same = [other for other in ran if other.subject == finding.subject or (name and other.compared_as == name)]
    if not same and (not finding.subject or finding.check == HANG_GUARD):
        same = [other for other in ran if other.subject in ("", "phases") or not finding.subject]
    return {other.verdict for other in same}


class NodeIdentity(NamedTuple):
    """Facts that batteries must share with this one: node, hashes of hardware and software, device and ranks."""

    node: str
    hardware: str
    software: str
    device: str
    ranks: int

    def has(self, hashed: str, end: BatteryEnd) -> bool:
        """Whether the battery had this "hardware" or "software"."""
        return bool(end.hashes.get(hashed) == getattr(self, hashed))

    def runs_like(self, end: BatteryEnd) -> bool:
        """Whether the battery had this device, and as many ranks, which share memory and cores in the same way."""
        return (end.options.get("device"), end.options.get("ranks")) == (self.device, str(self.ranks))


def measured_values(findings: Sequence[CheckFinding]) -> list[float]:
    """The measured values of findings that have one."""
    return [finding.measured for finding in findings if finding.measured is not None]


def history(results: Path, fleet: Path | None, here: NodeIdentity) -> History:
    """Everything that can be compared with a battery of this node.

    Batteries with other software or other ranks are not compared. They are counted among the problems, so that an
    operator sees why a new driver has no past. Records that cannot be read are left out, and named.

    Raises:
        InputError: `fleet` is no directory.
    """
    past: dict[str, list[CheckFinding]] = {}
    losses: dict[str, list[float]] = {}
    problems: list[str] = []
    left_out: Counter[str] = Counter()
    judged: list[tuple[PastBattery, list[CheckFinding]]] = []
    for end in _ended(battery_directory(results), problems):  # the project's own are nobody's past
        accepted = end.decision is Decision.ACCEPTED
        if end.node != here.node:
            continue
        if not (here.has("hardware", end) and here.has("software", end)):
            left_out["other hardware or software"] += accepted
            continue
        if not here.runs_like(end):
            left_out["another device or other ranks"] += accepted
            continue
        judged.append((PastBattery(battery=end.id, finished=end.finished), end.findings))
        if accepted:
            losses |= end.losses
            for key, finding in _compared(end).items():
                past.setdefault(key, []).append(finding)
    problems += [f"{counted(count, NODE_PAST)} had {why}: not its past" for why, count in left_out.items() if count]
    known = _fleet_history(fleet, here)
    return msgspec.structs.replace(
        known,
        past=past,
        losses=known.losses | losses,
        past_problems=problems,
        judged=sorted(judged, key=lambda battery: battery[0].finished),
    )


def _fleet_history(fleet: Path | None, here: NodeIdentity) -> History:
    """The newest accepted findings of each other node of a fleet.

    Raises:
        InputError: `fleet` is no directory.
    """
    if fleet is None:
        return History()
    if not fleet.is_dir():
        raise InputError("the fleet is no directory", got=str(fleet), allowed="a directory of records", where="--fleet")
    problems: list[str] = []
    losses: dict[str, list[float]] = {}
    newest: dict[str, dict[str, CheckFinding]] = {}
    same_software: dict[str, bool] = {}
    left_out: dict[str, str] = {}
    for end in sorted(_ended(fleet, problems), key=lambda end: end.finished):
        if end.node == here.node:
            continue
        if not here.has("hardware", end):
            left_out[end.node] = "with other hardware"
        elif not here.runs_like(end):
            left_out[end.node] = "with another device or other ranks"
        elif end.decision is not Decision.ACCEPTED:
            left_out[end.node] = "not accepted"
        else:
            newest[end.node] = newest.get(end.node, {}) | _compared(end)
            same_software[end.node] = here.has("software", end)
            losses |= end.losses if same_software[end.node] else {}
    findings: dict[str, list[CheckFinding]] = {}
    for of_node in newest.values():
        for key, finding in of_node.items():
            findings.setdefault(key, []).append(finding)
    summary = _fleet_summary(same_software, left_out)
    return History(
        fleet=findings,
        losses=losses,
        fleet_nodes=len(newest),
        fleet_summary=summary,
        fleet_problems=problems if newest else [*problems, summary],
    )


def _fleet_summary(counting: Mapping[str, bool], left_out: Mapping[str, str]) -> str:
    """How many other nodes with the same hardware count, how many do not, and why.

    Args:
        counting: by node that counts, whether its newest battery had this software.
        left_out: by node, why a battery of it does not count.
    """
    summary = f"fleet: {len(counting)} other nodes with the same hardware count"
    other = sum(not same for same in counting.values())
    summary += f" ({other} with other software)" if other else ""
    reasons = Counter(why for node, why in left_out.items() if node not in counting)
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return f"{summary}; left out: {why}" if why else summary


def _ended(place: Path, problems: list[str]) -> list[BatteryEnd]:
    """Batteries below a place that ended; in a directory of another name those that say that they are batteries."""
    ended = []
    for path in battery_paths(place, everywhere=True):
        try:
            data = contents(path)
            if b'"battery"' in data[:200] or DIRECTORY in Path(path).parts[-2:]:
                ended.append(decode(data, BatteryEnd, path))
        except InputError as error:
            problems.append(f"left out: {error}")
    return ended


def _compared(end: BatteryEnd) -> dict[str, CheckFinding]:
    """The findings whose values other batteries compare, by check and name of the value."""
    return {f"{finding.check}:{finding.compared_as}": finding for finding, _ in compared_values(end.findings)}
