"""What other batteries measured: of this node before, and of its siblings in a fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from reference_runs.errors import InputError
from suite.acceptance import battery_record
from suite.acceptance.battery_record import Closed
from suite.acceptance.check_table import HANG_GUARD
from suite.acceptance.findings import Decision, Finding, Past, Verdict

_BAD = (Verdict.FAIL, Verdict.HANG, Verdict.WARN)


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Values by check and subject, and what this node's own batteries said.

    Args:
        past: of accepted batteries of this node with the same hardware, software, device and ranks, oldest first.
        fleet: of other nodes with the same hardware, device and ranks, the newest accepted value of each.
        past_spreads, fleet_spreads: of the launches behind such a value, where it has any.
        past_terms, fleet_terms: of the steps behind such a value, where it has any: see `Finding`.
        fleet_nodes: how many nodes that are; `fleet_words` says so, and why others do not count; empty without a fleet.
        past_problems, fleet_problems: records that were left out, and why.
        judged: every battery of this node that ran as those of `past`, accepted or not, oldest first: which one it was,
            and what it found.
    """

    past: dict[str, list[float]] = {}
    fleet: dict[str, list[float]] = {}
    past_spreads: dict[str, list[float]] = {}
    fleet_spreads: dict[str, list[float]] = {}
    past_terms: dict[str, list[dict[str, float]]] = {}
    fleet_terms: dict[str, list[dict[str, float]]] = {}
    losses: dict[str, list[float]] = {}
    fleet_nodes: int = 0
    fleet_words: str = ""
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

    def terms_of(self, check: int, subject: str) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
        """Terms behind past and fleet values of one subject of a check, of those that have them."""
        key = f"{check}:{subject}"
        return self.past_terms.get(key, []), self.fleet_terms.get(key, [])

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


def history(
    results: Path, fleet: Path | None, *, node: str, hardware: str, software: str, device: str, ranks: int
) -> History:
    """What can be compared with a battery of `node` with these hashes of hardware and software, device and ranks.

    Another software is another stack: its rates are no past. Another number of ranks shares the node's memory and, on a
    CPU, its cores in another way. Both are counted as problems, in words, so that an operator sees why a new driver
    starts without a past. Records that cannot be read are left out, and named.

    Raises:
        InputError: `fleet` is no directory.
    """
    past = _Values({}, {}, {})
    losses: dict[str, list[float]] = {}
    problems: list[str] = []
    stale = others = unsaid = 0
    own: list[tuple[Past, list[Finding]]] = []
    for closed in _closed(results / "acceptance", problems):
        if closed.node != node:
            continue
        accepted = closed.decision is Decision.ACCEPTED
        if closed.hashes.get("hardware") != hardware or closed.hashes.get("software") != software:
            stale += accepted
            continue
        if not _says_how_it_ran(closed):
            unsaid += accepted
            continue
        if not _ran_alike(closed, device, ranks):
            others += accepted
            continue
        own.append((Past(battery=closed.id, finished=closed.finished), closed.findings))
        if not accepted:
            continue
        past.add(_values(closed))
        losses |= closed.losses
    if stale:
        problems.append(f"{stale} accepted batteries of this node had other hardware or software: not its past")
    if others:
        problems.append(f"{others} accepted batteries of this node had another device or other ranks: not its past")
    if unsaid:
        problems.append(f"{unsaid} accepted batteries of this node do not say their device and ranks: not its past")
    siblings = _siblings(fleet, node=node, hardware=hardware, software=software, device=device, ranks=ranks)
    return History(
        past=past.values,
        fleet=siblings.of.values,
        past_spreads=past.spreads,
        fleet_spreads=siblings.of.spreads,
        past_terms=past.terms,
        fleet_terms=siblings.of.terms,
        losses=siblings.losses | losses,
        fleet_nodes=siblings.nodes,
        fleet_words=siblings.words,
        past_problems=problems,
        fleet_problems=siblings.problems,
        judged=sorted(own, key=lambda one: one[0].finished),
    )


class _Values(NamedTuple):
    """Values of batteries by check and name, with what stands behind them."""

    values: dict[str, list[float]]
    spreads: dict[str, list[float]]
    terms: dict[str, list[dict[str, float]]]

    def add(self, findings: Mapping[str, Finding]) -> None:
        """Those of one battery, or of one node, behind the others."""
        for key, finding in findings.items():
            if finding.measured is not None:
                self.values.setdefault(key, []).append(finding.measured)
            if finding.spread is not None:
                self.spreads.setdefault(key, []).append(finding.spread)
            if finding.terms:
                self.terms.setdefault(key, []).append(finding.terms)


class _Siblings(NamedTuple):
    """What `History` says of a fleet, under shorter names."""

    of: _Values
    losses: dict[str, list[float]]
    nodes: int
    words: str
    problems: list[str]


def _siblings(fleet: Path | None, *, node: str, hardware: str, software: str, device: str, ranks: int) -> _Siblings:
    """The newest accepted values of each other node of a fleet; none without one.

    Raises:
        InputError: `fleet` is no directory.
    """
    if fleet is None:
        return _Siblings(_Values({}, {}, {}), {}, 0, "", [])
    if not fleet.is_dir():
        raise InputError("the fleet is no directory", got=str(fleet), allowed="a directory of records", where="--fleet")
    problems: list[str] = []
    losses: dict[str, list[float]] = {}
    newest: dict[str, dict[str, Finding]] = {}
    same_software: dict[str, bool] = {}
    left_out: dict[str, str] = {}
    for closed in sorted(_closed(fleet, problems), key=lambda one: one.finished):
        if closed.node == node:
            continue
        if closed.hashes.get("hardware") != hardware:
            left_out[closed.node] = "with other hardware"
        elif not _says_how_it_ran(closed):
            left_out[closed.node] = "that do not say their device and ranks"
        elif not _ran_alike(closed, device, ranks):
            left_out[closed.node] = "with another device or other ranks"
        elif closed.decision is not Decision.ACCEPTED:
            left_out[closed.node] = "not accepted"
        else:
            newest[closed.node] = newest.get(closed.node, {}) | _values(closed)
            same_software[closed.node] = closed.hashes.get("software") == software
            losses |= closed.losses if same_software[closed.node] else {}
    theirs = _Values({}, {}, {})
    for found in newest.values():
        theirs.add(found)
    words = _fleet_words(same_software, left_out)
    return _Siblings(theirs, losses, len(newest), words, problems if newest else [*problems, words])


def _fleet_words(counting: Mapping[str, bool], left_out: Mapping[str, str]) -> str:
    """How many siblings count, and how many other nodes do not, and why.

    Args:
        counting: whether its newest battery had this software, of each node that counts; `left_out` why, of others too.
    """
    words = f"fleet: {len(counting)} siblings count"
    other = sum(not same for same in counting.values())
    words += f" ({other} with other software)" if other else ""
    reasons = Counter(why for node, why in left_out.items() if node not in counting)
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return f"{words}; left out: {why}" if why else words


def _says_how_it_ran(closed: Closed) -> bool:
    """Whether it says its device and ranks: records of before 4.3 have no options."""
    return {"device", "ranks"} <= closed.options.keys()


def _ran_alike(closed: Closed, device: str, ranks: int) -> bool:
    """Whether it ran on this device with as many ranks."""
    return closed.options.get("device") == device and closed.options.get("ranks") == str(ranks)


def _closed(directory: Path, problems: list[str]) -> list[Closed]:
    found = []
    for path in sorted(directory.rglob("*.end.json")):
        try:
            data = path.read_bytes()
            if b'"battery"' not in data[:200] and "acceptance" not in path.parts[-2:]:
                continue  # the record of a launch
            found.append(battery_record.decode(data, Closed, str(path)))
        except (OSError, InputError) as error:
            problems.append(f"left out: {error}")
    return found


def _values(closed: Closed) -> dict[str, Finding]:
    """The findings whose values other batteries compare, by check and name of the value."""
    compared = [finding for finding in closed.findings if finding.siblings and finding.measured is not None]
    return {f"{finding.check}:{finding.siblings}": finding for finding in compared}
