"""Findings that did not pass, as health events in NVSentinel's form."""

from __future__ import annotations

import msgspec

from suite.fleet.health_events import health_events, recommended_action
from suite.job.events import Status
from suite.records.battery import CheckFinding, CheckVerdict, RecoveryAction

NOW = 1_800_000_000.0


def finding(verdict: CheckVerdict, **changes: object) -> CheckFinding:
    return CheckFinding(**({"check": 13, "subject": "GPU 3", "verdict": verdict} | changes))  # type: ignore[arg-type]


def events(*findings: CheckFinding) -> list[dict[str, object]]:
    found = health_events(findings, node="n1", virtual=False, now=NOW)
    return [msgspec.json.decode(msgspec.json.encode(event)) for event in found]


def test_a_failed_check_is_a_fatal_event_of_its_gpu_with_the_action_and_the_xid() -> None:
    part, evidence = "memory or board of GPU 3 at 0000:1b:00.0", "XID 48; XID 13 (of a program); XID 48"
    to_do = {"action": RecoveryAction.RESET_GPU, "to_do": "reset it", "command": "nvidia-smi --gpu-reset -i 3"}
    (event,) = events(finding(CheckVerdict.FAIL, part=part, evidence=evidence, **to_do))
    assert event == {
        "version": 1,
        "agent": "llm-reference-runs",
        "componentClass": "GPU",
        "checkName": "hardware errors",
        "isFatal": True,
        "isHealthy": False,
        "message": f"{part}; {evidence}",
        "recommendedAction": "COMPONENT_RESET",
        "errorCode": ["48"],
        "entitiesImpacted": [
            {"entityType": "GPU", "entityValue": "3"},
            {"entityType": "PCI", "entityValue": "0000:1b:00.0"},
        ],
        "metadata": {
            "verdict": "FAIL",
            "action": "reset the GPU",
            "toDo": "reset it",
            "command": "nvidia-smi --gpu-reset -i 3",
        },
        "generatedTimestamp": "2027-01-15T08:00:00Z",
        "nodeName": "n1",
    }


def test_what_warns_or_is_open_is_not_fatal_and_what_passed_is_no_event() -> None:
    fatal = {verdict: [event["isFatal"] for event in events(finding(verdict))] for verdict in CheckVerdict}
    assert {verdict for verdict, found in fatal.items() if found == [True]} == {CheckVerdict.FAIL, CheckVerdict.HANG}
    assert {verdict for verdict, found in fatal.items() if not found} == {CheckVerdict.PASS, CheckVerdict.NOT_RUN}
    assert events(finding(CheckVerdict.WARN, part="host, clocks"))[0]["componentClass"] == "Node"


def test_a_failure_that_software_explains_is_fatal_only_where_the_launch_crashed() -> None:
    fails = [finding(CheckVerdict.FAIL, check=7, status=status) for status in (Status.OK, Status.CRASHED)]
    assert [event["isFatal"] for event in events(*fails)] == [False, True]


def test_every_action_has_one_of_nvsentinels() -> None:
    known = {"NONE", "COMPONENT_RESET", "CONTACT_SUPPORT", "RESTART_BM", "RESTART_VM"}
    found = {recommended_action(action, virtual=virtual) for action in RecoveryAction for virtual in (False, True)}
    assert found == known
    assert recommended_action(RecoveryAction.REBOOT_NODE, virtual=True) == "RESTART_VM"
    assert recommended_action(None, virtual=True) == "NONE"
