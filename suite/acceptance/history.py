"""What other batteries measured: of this node before, and of its siblings in a fleet."""

from __future__ import annotations

from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.acceptance import evidence_record
from suite.acceptance.checks import HANG_GUARD
from suite.acceptance.evidence_record import Closed
from suite.acceptance.verdicts import Decision, Finding, Past, Verdict

_BAD = (Verdict.FAIL, Verdict.HANG, Verdict.WARN)


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Values by check and subject, and what this node's own batteries said.

    Args:
        past: of accepted batteries of this node with the same hardware and software, oldest first.
        fleet: of other nodes with the same hardware, the newest accepted battery of each.
        past_spreads, fleet_spreads: of the launches behind such a value, where it has any.
        fleet_nodes: how many nodes that are.
        past_problems, fleet_problems: records that were left out, and why.
        judged: every battery of this node with the same hardware and software, accepted or not, oldest first: which one
            it was, and what it found.
    """

    past: dict[str, list[float]] = {}
    fleet: dict[str, list[float]] = {}
    past_spreads: dict[str, list[float]] = {}
    fleet_spreads: dict[str, list[float]] = {}
    losses: dict[str, list[float]] = {}
    fleet_nodes: int = 0
    past_problems: list[str] = []
    fleet_problems: list[str] = []
    judged: list[tuple[Past, list[Finding]]] = []

    def of(self, check: int, subject: str) -> tuple[list[float], list[float]]:
        """Past and fleet values of one subject of a check."""
        key = f"{check}:{subject}"
        return self.past.get(key, []), self.fleet.get(key, [])

    def spreads_of(self, check: int, subject: str) -> tuple[list[float], list[float]]:
        """Spreads of the launches behind past and fleet values of one subject of a check, of those that have one."""
        key = f"{check}:{subject}"
        return self.past_spreads.get(key, []), self.fleet_spreads.get(key, [])

    def dated(self, finding: Finding) -> Finding:
        """The finding with the batteries between which it became bad; as it is where it is not bad.

        A failure is as bad as failures and hangs alone, a warning as all three. A battery that could not tell (not run,
        invalid, inconclusive) is passed over.
        """
        if finding.verdict not in _BAD:
            return finding
        as_bad = _BAD if finding.verdict is Verdict.WARN else (Verdict.FAIL, Verdict.HANG)
        good: Past | None = None
        bad: Past | None = None
        for battery, findings in self.judged:
            verdicts = _verdicts(finding, findings)
            if verdicts & set(as_bad):
                bad = bad or battery
            elif verdicts == {Verdict.PASS}:
                good, bad = battery, None
        return msgspec.structs.replace(finding, good_until=good, bad_since=bad)


def _verdicts(finding: Finding, earlier: list[Finding]) -> set[Verdict]:
    """What an earlier battery said of the same check and subject.

    Where the subject is none (nothing of the check ended well), or a phase that a passing check does not name: of all
    subjects of the check.
    """
    of_check = [one for one in earlier if one.check == finding.check and one.verdict is not Verdict.NOT_RUN]
    same = [one for one in of_check if one.subject == finding.subject]
    if not same and (not finding.subject or finding.check == HANG_GUARD):
        same = [one for one in of_check if one.subject in ("", "phases") or not finding.subject]
    return {one.verdict for one in same}


def history(results: Path, fleet: Path | None, *, node: str, hardware: str, software: str) -> History:
    """What can be compared with a battery of `node` with these hashes of hardware and software.

    Another software is another stack: its rates are no past. It is counted as a problem, in words, so that an operator
    sees why a new driver starts without one. Records that cannot be read are left out, and named.

    Raises:
        InputError: `fleet` is no directory.
    """
    past: dict[str, list[float]] = {}
    past_spreads: dict[str, list[float]] = {}
    losses: dict[str, list[float]] = {}
    problems: list[str] = []
    stale = 0
    own: list[tuple[Past, list[Finding]]] = []
    for closed in _closed(results / "acceptance", problems):
        if closed.node != node:
            continue
        accepted = closed.decision is Decision.ACCEPTED
        if closed.hashes.get("hardware") != hardware or closed.hashes.get("software") != software:
            stale += accepted
            continue
        own.append((Past(battery=closed.id, finished=closed.finished), closed.findings))
        if not accepted:
            continue
        _add(past, past_spreads, closed)
        losses |= closed.losses
    if stale:
        problems.append(f"{stale} accepted batteries of this node had other hardware or software: not its past")
    theirs: dict[str, list[float]] = {}
    their_spreads: dict[str, list[float]] = {}
    fleet_problems: list[str] = []
    newest: dict[str, Closed] = {}
    if fleet is not None:
        if not fleet.is_dir():
            raise InputError(
                "the fleet is no directory", got=str(fleet), allowed="a directory of records", where="--fleet"
            )
        for closed in sorted(_closed(fleet, fleet_problems), key=lambda one: one.finished):
            if (
                closed.node != node
                and closed.decision is Decision.ACCEPTED
                and closed.hashes.get("hardware") == hardware
            ):
                newest[closed.node] = closed
        for closed in newest.values():
            _add(theirs, their_spreads, closed)
            losses = {
                key: values for key, values in closed.losses.items() if closed.hashes.get("software") == software
            } | losses
    return History(
        past=past,
        fleet=theirs,
        past_spreads=past_spreads,
        fleet_spreads=their_spreads,
        losses=losses,
        fleet_nodes=len(newest),
        past_problems=problems,
        fleet_problems=fleet_problems,
        judged=sorted(own, key=lambda one: one[0].finished),
    )


def _closed(directory: Path, problems: list[str]) -> list[Closed]:
    found = []
    for path in sorted(directory.rglob("*.end.json")):
        try:
            data = path.read_bytes()
            if b'"battery"' not in data[:200] and "acceptance" not in path.parts[-2:]:
                continue  # the record of a launch
            found.append(evidence_record.decode(data, Closed, str(path)))
        except (OSError, InputError) as error:
            problems.append(f"left out: {error}")
    return found


def _add(values: dict[str, list[float]], spreads: dict[str, list[float]], closed: Closed) -> None:
    for finding in closed.findings:
        if finding.siblings and finding.measured is not None:
            key = f"{finding.check}:{finding.siblings}"
            values.setdefault(key, []).append(finding.measured)
            if finding.spread is not None:
                spreads.setdefault(key, []).append(finding.spread)
