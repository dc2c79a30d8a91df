"""Check 13 of RDMA network cards: state, rate and errors, and each against the others of its kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from suite.acceptance.check_table import ERRORS
from suite.acceptance.findings import not_run
from suite.acceptance.judge.causes import Cause, bad, finding_of, minor
from suite.acceptance.nics import WENT_DOWN
from suite.acceptance.node_state import NicPort
from suite.records.battery import CheckFinding, RecoveryAction

NICS = "network cards"
ACTIVE = "ACTIVE"
# ports of a kind, beside the one that differs from all of them, from which it fails: a card for storage alone, or the
# second port of one, may be left without a cable
LEAST_SIBLINGS = 3


def nic_findings(before: Sequence[NicPort], after: Sequence[NicPort]) -> list[CheckFinding]:
    """A finding for each port with a fault, one for all that have none."""
    if not after and not before:
        return [not_run(ERRORS, "no RDMA network card", NICS)]
    first = {port.label: port for port in before}
    lost = [
        finding_of(
            ERRORS,
            f"{NICS}, {label}",
            [bad("gone under load", RecoveryAction.REBOOT_NODE)],
            part=f"{label} at {first[label].pci}",
            fine="",
        )
        for label in first.keys() - {port.label for port in after}
    ]
    findings, good = sorted(lost, key=lambda finding: finding.subject), []
    if after and not any(port.state in (ACTIVE, "") for port in [*before, *after]):
        none = [minor(f"none of {len(after)} ports is active", RecoveryAction.RESEAT)]
        return [*findings, finding_of(ERRORS, NICS, none, part=NICS, fine="")]
    for port in after:
        causes = _causes(first.get(port.label), port, after)
        if not causes:
            good.append(port)
            continue
        part = f"{port.label} at {port.pci}" if port.pci else port.label
        findings.append(finding_of(ERRORS, f"{NICS}, {port.label}", causes, part=part, fine=""))
    if good:
        findings.append(finding_of(ERRORS, NICS, [], part="", fine=_summary(good)))
    return findings


def _causes(before: NicPort | None, port: NicPort, ports: Sequence[NicPort]) -> list[Cause]:
    causes = []
    others = [other for other in ports if other.kind == port.kind and other.label != port.label]
    if before is not None and before.state == ACTIVE != port.state:
        causes.append(bad(f"{port.state.lower()} ({port.physical}), and active before the load", RecoveryAction.RESEAT))
    elif port.state != ACTIVE:
        if not port.state or _unused(port, ports):
            return []
        words = f"{port.state.lower()} ({port.physical})"
        causes.append(_against(words, ACTIVE.lower(), [other.state == ACTIVE for other in others], port, ports))
    else:
        causes += _slower("gbits", "Gbit/s", port, others, ports)
    for field, unit in (("pcie_gigatransfers", "GT/s of PCIe"), ("pcie_width", "PCIe lanes")):
        causes += _slower(field, unit, port, others, ports)
    for what, count in port.counters.items():
        grown = count - (before.counters.get(what, 0) if before else count)
        if grown > 0 and what == WENT_DOWN:
            causes.append(bad(f"the link went down {grown} times under load", RecoveryAction.RESEAT))
        elif grown > 0:
            causes.append(minor(f"{grown} {what} under load", RecoveryAction.RESEAT))
    firmwares = Counter(other.firmware for other in [*others, port] if other.firmware)
    if len(firmwares) > 1 and port.firmware != firmwares.most_common(1)[0][0]:
        words = f"firmware {port.firmware}, {firmwares.most_common(1)[0][0]} on most others of its kind"
        causes.append(minor(words, RecoveryAction.FIX_SETTING))
    return causes


def _unused(port: NicPort, ports: Sequence[NicPort]) -> bool:
    """Whether most others of its kind are not active either, as virtual functions that nobody uses."""
    others = [other.state == ACTIVE for other in ports if other.kind == port.kind and other.label != port.label]
    return bool(others) and 2 * sum(others) < len(others)


def _slower(field: str, unit: str, port: NicPort, others: Sequence[NicPort], ports: Sequence[NicPort]) -> list[Cause]:
    """A rate below that of the other active ports of its kind."""
    own = getattr(port, field)
    known = [value for other in others if other.state == ACTIVE and (value := getattr(other, field)) is not None]
    if own is None or not known or own >= max(known):
        return []
    usual = max(known)
    return [_against(f"{own:g} {unit}", f"{usual:g}", [value == usual for value in known], port, ports)]


def _against(words: str, usual: str, alike: Sequence[bool], port: NicPort, ports: Sequence[NicPort]) -> Cause:
    """A port that differs from its siblings fails where enough agree, and its card has one port alone."""
    second = any(
        other.label != port.label and port.pci and other.pci.rpartition(".")[0] == port.pci.rpartition(".")[0]
        for other in ports
    )
    evidence = f"{words}, {usual} on {sum(alike)} of {len(alike)} others of its kind" if alike else words
    fails = len(alike) >= LEAST_SIBLINGS and all(alike) and not second
    return (bad if fails else minor)(evidence, RecoveryAction.RESEAT)


def _summary(ports: Sequence[NicPort]) -> str:
    rates = Counter(
        f"{port.kind or 'a card'} at {port.gbits:g} Gbit/s"
        for port in ports
        if port.gbits is not None and port.state == ACTIVE
    )
    downs = sum(port.counters.get(WENT_DOWN, 0) for port in ports)
    active = [port for port in ports if port.state == ACTIVE]
    evidence = [f"{count} active: {words}" for words, count in rates.items()] or [f"{len(active)} active"]
    evidence += [f"{len(ports) - len(active)} not used"] if len(active) < len(ports) else []
    return "; ".join([*evidence, *([f"links went down {downs} times since the driver was loaded"] if downs else [])])
