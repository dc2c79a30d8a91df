"""Findings that did not pass as health events of NVIDIA's NVSentinel: which part, and what to do with the node.

Names of fields and of recommended actions are those of its HealthEvent in proto3's JSON (NVIDIA NVSentinel,
data-models/protobufs/health_event.proto, as of 2025). Of its actions only those are used that a finding can mean.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

import msgspec

from suite.acceptance.check_table import CHECKS
from suite.acceptance.findings import convicts
from suite.job.events import Status
from suite.records.battery import NOT_PASSED, CheckFinding, CheckVerdict, RecoveryAction

AGENT = "llm-reference-runs"
VERSION = 1
_RECOMMENDED = {
    RecoveryAction.RESET_GPU: "COMPONENT_RESET",
    RecoveryAction.RESEAT: "CONTACT_SUPPORT",
    RecoveryAction.RETURN: "CONTACT_SUPPORT",
}
_GPU = re.compile(r"\bGPU (\d+)(?: at ([0-9a-f:.]+))?")
_XID = re.compile(r"\bXID (\d+)\b(?! \(of a program\))")


class Entity(msgspec.Struct, frozen=True, rename="camel"):
    """A part of the node: a GPU by its number, or by its PCI address."""

    entity_type: str
    entity_value: str


class HealthEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A finding that did not pass.

    Args:
        component_class: "GPU" where the part names one, otherwise "Node".
        is_fatal: whether the node should take no more work: the check failed on what it measured of the node, or hung.
        recommended_action: see `recommended_action`.
        error_code: numbers of XIDs that it names.
        generated_timestamp: in UTC, by RFC 3339.
        metadata: verdict and action in the words of this suite, and the command that is next.
    """

    version: int = VERSION
    agent: str = AGENT
    component_class: str
    check_name: str
    is_fatal: bool
    is_healthy: bool = False
    message: str
    recommended_action: str
    error_code: list[str]
    entities_impacted: list[Entity]
    metadata: dict[str, str]
    generated_timestamp: str
    node_name: str


def recommended_action(action: RecoveryAction | None, *, virtual: bool) -> str:
    """NVSentinel's action that means the same: NONE where the node's parts need nothing.

    Args:
        virtual: whether the node is a virtual machine, which is restarted otherwise than a machine.
    """
    if action is RecoveryAction.REBOOT_NODE:
        return "RESTART_VM" if virtual else "RESTART_BM"
    return "NONE" if action is None else _RECOMMENDED.get(action, "NONE")


def health_events(findings: Iterable[CheckFinding], *, node: str, virtual: bool, now: float) -> list[HealthEvent]:
    """An event for each finding that warns or did not pass.

    Args:
        node: name of the node, as its cluster knows it.
        now: seconds since 1970.
    """
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    return [
        HealthEvent(
            component_class="GPU" if _GPU.search(finding.part) else "Node",
            check_name=CHECKS[finding.check].name,
            is_fatal=_is_fatal(finding),
            message="; ".join(words for words in (finding.part or finding.subject, finding.evidence) if words),
            recommended_action=recommended_action(finding.action, virtual=virtual),
            error_code=list(dict.fromkeys(_XID.findall(finding.evidence))),
            entities_impacted=_entities(finding.part),
            metadata={
                "verdict": finding.verdict.value,
                "action": "" if finding.action is None else finding.action.value,
                "toDo": finding.to_do,
                "command": finding.command,
            },
            generated_timestamp=stamp,
            node_name=node,
        )
        for finding in findings
        if finding.verdict in (*NOT_PASSED, CheckVerdict.WARN)
    ]


def _is_fatal(finding: CheckFinding) -> bool:
    crashed = finding.verdict is CheckVerdict.FAIL and finding.status is not Status.OK
    return convicts(finding) or crashed or finding.verdict is CheckVerdict.HANG


def _entities(part: str) -> list[Entity]:
    entities = []
    for number, address in _GPU.findall(part):
        entities.append(Entity("GPU", number))
        if address:
            entities.append(Entity("PCI", address))
    return list(dict.fromkeys(entities))
