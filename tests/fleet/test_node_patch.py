"""Which verdict becomes which condition and taint of a Kubernetes Node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reference_runs.errors import InputError
from suite.fleet.node_patch import CONDITION, TAINT, KubernetesNode, node_patches, read_node

OTHER = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
OURS = {"key": TAINT, "value": "rejected", "effect": "NoSchedule"}
BEFORE = "2026-01-01T00:00:00Z"
NOW = 1_800_000_000.0


def node(*taints: dict[str, str], status: str | None = None) -> KubernetesNode:
    conditions: list[dict[str, Any]] = [{"type": "Ready", "status": "True"}]
    if status is not None:
        conditions.append({"type": CONDITION, "status": status, "lastTransitionTime": BEFORE})
    return KubernetesNode("41", list(taints), conditions)


@pytest.mark.parametrize(
    ("code", "value", "reason"), [(1, "rejected", "Rejected"), (4, "execution-failed", "ExecutionFailed")]
)
def test_a_bad_node_gets_the_condition_and_the_taint_beside_those_of_others(code: int, value: str, reason: str) -> None:
    condition, taints = node_patches(
        node(OTHER), code, "quick: rejected: GPU 3 \u201ebits\u201c\n" + "x" * 300, release=False, now=NOW
    )
    (only,) = condition["status"]["conditions"]
    assert (only["type"], only["status"], only["reason"]) == (CONDITION, "True", reason)
    assert only["message"].isascii()
    assert len(only["message"]) <= 200
    assert only["message"].startswith("quick: rejected: GPU 3")
    assert only["lastTransitionTime"] == only["lastHeartbeatTime"] == "2027-01-15T08:00:00Z"
    assert taints["metadata"] == {"resourceVersion": "41"}
    assert taints["spec"]["taints"] == [OTHER, OURS | {"value": value}]


@pytest.mark.parametrize("code", [0, 2, 3, 124, 137])
def test_nothing_but_a_battery_after_a_repair_takes_a_bad_verdict_back(code: int) -> None:
    for bad in (node(OURS, status="True"), node(status="True"), node(OURS)):
        assert node_patches(bad, code, "", release=False, now=NOW) == ({}, {})
        assert (node_patches(bad, code, "", release=True, now=NOW) == ({}, {})) == (code != 0)


def test_an_accepted_battery_after_a_repair_takes_our_taint_alone() -> None:
    condition, taints = node_patches(node(OTHER, OURS, status="True"), 0, "accepted", release=True, now=NOW)
    assert condition["status"]["conditions"][0]["status"] == "False"
    assert taints["spec"]["taints"] == [OTHER]


@pytest.mark.parametrize(("code", "status"), [(0, "False"), (2, "Unknown"), (3, "Unknown"), (124, "Unknown")])
def test_what_is_not_bad_changes_no_taint(code: int, status: str) -> None:
    condition, taints = node_patches(node(OTHER, status="Unknown"), code, "", release=False, now=NOW)
    (only,) = condition["status"]["conditions"]
    assert (only["status"], taints) == (status, {})
    assert (only["lastTransitionTime"] == BEFORE) == (status == "Unknown")


def test_a_node_that_is_still_bad_keeps_its_time_and_its_taint() -> None:
    condition, taints = node_patches(node(OURS, status="True"), 1, "", release=False, now=NOW)
    assert condition["status"]["conditions"][0]["lastTransitionTime"] == BEFORE
    assert taints == {}


def test_a_node_is_read_as_kubectl_prints_it() -> None:
    data = {"kind": "Node", "metadata": {"resourceVersion": "7"}, "spec": {}, "status": {"conditions": None}}
    assert read_node(json.dumps(data).encode(), "node.json") == KubernetesNode("7", [], [])


def test_something_else_is_refused() -> None:
    texts = [
        "",
        "[]",
        "{}",
        '{"kind": "Pod"}',
        '{"kind": "Node"}',
        '{"kind": "Node", "metadata": {"resourceVersion": 7}}',
        '{"kind": "Node", "metadata": {"resourceVersion": "7"}, "spec": {"taints": [1]}}',
    ]
    for text in texts:
        with pytest.raises(InputError, match="no Node of Kubernetes"):
            read_node(text.encode(), "node.json")
