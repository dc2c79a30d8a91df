"""A battery's verdict as patches of a Kubernetes Node: a condition that says it, and a taint that keeps pods away.

The condition is true where the node is bad, as those of node-problem-detector are. As the gates under Slurm do, a sweep
taints and never releases: what is bad stays bad until a battery after a repair is accepted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from reference_runs.errors import InputError
from reference_runs.regular_file import json_of
from suite.launch.slurm import drain_reason

CONDITION = "BatteryRejected"
TAINT = "llm-reference-runs/battery"
EFFECT = "NoSchedule"  # running pods stay
# of exit codes of `accept`; of all others NotDecided
DECIDED = {0: "Accepted", 1: "Rejected", 2: "NotJudged", 3: "NotDecided", 4: "ExecutionFailed"}
VALUES = {1: "rejected", 4: "execution-failed"}  # of the taint


class KubernetesNode(NamedTuple):
    """The parts of a Node that are needed: its version, and the lists that a patch changes."""

    version: str
    taints: Sequence[Mapping[str, Any]]
    conditions: Sequence[Mapping[str, Any]]


class NodePatches(NamedTuple):
    """Two patches; an empty one changes nothing.

    Args:
        condition: a strategic merge patch of the subresource `status`.
        taints: a JSON merge patch. It replaces the whole list, so it names the version of the Node that it was made
            for: the server refuses it where somebody else changed the Node meanwhile.
    """

    condition: dict[str, Any]
    taints: dict[str, Any]


def read_node(data: bytes, where: str) -> KubernetesNode:
    """A Node as `kubectl get node NAME -o json` prints it.

    Raises:
        InputError: it is something else.
    """
    try:
        node = json_of(data, dict[str, Any])
        if node.get("kind") != "Node":
            raise InputError("no Node of Kubernetes", got=f"kind {node.get('kind')}", allowed="kind Node", where=where)
        parts = {name: msgspec.convert(node.get(name) or {}, dict[str, Any]) for name in ("metadata", "spec", "status")}
        lists = [parts["spec"].get("taints"), parts["status"].get("conditions")]
        taints, conditions = (msgspec.convert(found or [], list[dict[str, Any]]) for found in lists)
        return KubernetesNode(msgspec.convert(parts["metadata"]["resourceVersion"], str), taints, conditions)
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
        raise InputError(
            f"no Node of Kubernetes: {error}", allowed="kubectl get node NAME -o json", where=where
        ) from error


class NodeCondition(msgspec.Struct, frozen=True):
    """A condition of a Node without its times; `status` "True" where the node is bad."""

    type: str
    status: str
    reason: str
    message: str


def node_condition(code: int, words: str) -> NodeCondition:
    """The condition for an exit code of `accept` and its line."""
    status = "True" if code in VALUES else "False" if code == 0 else "Unknown"
    return NodeCondition(CONDITION, status, DECIDED.get(code, "NotDecided"), drain_reason(words))


def node_patches(node: KubernetesNode, code: int, words: str, *, release: bool, now: float) -> NodePatches:
    """Both patches for an exit code of `accept` and its line.

    Args:
        release: an accepted battery makes a bad node good again.
        now: seconds since 1970.
    """
    before = next((one for one in node.conditions if one.get("type") == CONDITION), {})
    others = [dict(taint) for taint in node.taints if taint.get("key") != TAINT]
    marked = len(others) < len(node.taints)
    bad = code in VALUES
    if not bad and (marked or before.get("status") == "True") and not (release and code == 0):
        return NodePatches({}, {})
    wanted_condition = node_condition(code, words)
    status = wanted_condition.status
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    condition = {
        **msgspec.structs.asdict(wanted_condition),
        "lastHeartbeatTime": stamp,
        "lastTransitionTime": since or stamp,
    }
    wanted = [*others, *([{"key": TAINT, "value": VALUES[code], "effect": EFFECT}] if bad else [])]
    changed = {"metadata": {"resourceVersion": node.version}, "spec": {"taints": wanted}}
    return NodePatches(
        {"status": {"conditions": [condition]}}, changed if _sorted(wanted) != _sorted(node.taints) else {}
    )


def _sorted(taints: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    return sorted((str(one.get("key")), str(one.get("value", "")), str(one.get("effect"))) for one in taints)
