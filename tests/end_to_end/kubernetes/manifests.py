"""The manifests of deploy/kubernetes/ against schemas of Kubernetes 1.37 and JobSet v1alpha2; no cluster is needed.

`nox -s kubernetes` names this file, which no other session collects: the schemas come with two packages of their own.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

from suite.fleet.node_patch import CONDITION, TAINT, node_patches, read_node
from suite.paths import ROOT

KUBERNETES = "1.37.0"
REFUSALS = (ValueError, kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError)
DIRECTORY = ROOT / "deploy" / "kubernetes"
OBJECTS = {
    f"{path.name} {found['kind']}": found
    for path in sorted(DIRECTORY.glob("*.yaml"))
    for found in yaml.safe_load_all(path.read_text(encoding="utf-8"))
}
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n7", "resourceVersion": "7"},
    "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}


def check(found: dict[str, Any]) -> None:
    """Raises ValueError, or the schema's own error, for an object with a wrong type or a field that does not exist."""
    if found["kind"] != "JobSet":
        kubernetes_validate.validate(found, KUBERNETES, strict=True)
        return
    if found["apiVersion"] != "jobset.x-k8s.io/v1alpha2":
        raise ValueError(f"no schema of {found['apiVersion']}")
    read = JobsetV1alpha2JobSet.from_dict(found)
    if read is None or json.loads(json.dumps(read.to_dict())) != found:
        raise ValueError("fields that JobSet does not know")  # they are dropped as it is read
    for replicated in found["spec"]["replicatedJobs"]:
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "a"},
            "spec": replicated["template"]["spec"],
        }
        kubernetes_validate.validate(job, KUBERNETES, strict=True)


def pod_of(found: dict[str, Any]) -> dict[str, Any]:
    """The specification of an object's pods."""
    spec = found["spec"]["replicatedJobs"][0]["template"]["spec"] if found["kind"] == "JobSet" else found["spec"]
    pod: dict[str, Any] = spec["template"]["spec"]
    return pod


WITH_PODS = [name for name, found in OBJECTS.items() if found["kind"] in ("DaemonSet", "Job", "JobSet")]
BREAKS: dict[str, Callable[[dict[str, Any]], object]] = {
    "unknown field of the container": lambda found: pod_of(found)["containers"][0].update(comand=["a"]),
    "wrong type in the container": lambda found: pod_of(found)["containers"][0].update(command="a"),
    "number as an environment variable": lambda found: pod_of(found)["containers"][0].update(
        env=[{"name": "A", "value": 3}]
    ),
    "unknown field of the object": lambda found: found["spec"].update(replica=1),
    "list in place of the specification": lambda found: found.update(spec=[]),
    "unknown version": lambda found: found.update(apiVersion="batch/v9"),
}


def test_there_is_a_sweep_a_gate_after_repairs_and_a_group() -> None:
    assert [name.split()[1] for name in WITH_PODS] == ["JobSet", "Job", "DaemonSet"]


@pytest.mark.parametrize("name", OBJECTS)
def test_every_manifest_passes(name: str) -> None:
    check(OBJECTS[name])


@pytest.mark.parametrize("name", WITH_PODS)
@pytest.mark.parametrize("what", BREAKS)
def test_a_broken_one_does_not(name: str, what: str) -> None:
    broken = copy.deepcopy(OBJECTS[name])
    BREAKS[what](broken)
    with pytest.raises(REFUSALS):
        check(broken)


@pytest.mark.parametrize(
    ("path", "value"),
    [(("failurePolicy", "maxRestarts"), "none"), (("replicatedJobs", 0, "replicas"), "1"), (("succesPolicy",), {})],
)
def test_a_broken_part_of_jobset_itself_does_not_pass(path: tuple[str | int, ...], value: object) -> None:
    broken = copy.deepcopy(OBJECTS["group.yaml JobSet"])
    part: Any = broken["spec"]
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    with pytest.raises(ValueError, match=r"Job[sS]et"):
        check(broken)


@pytest.mark.parametrize("name", WITH_PODS)
def test_what_a_container_runs_is_here(name: str) -> None:
    (container,) = pod_of(OBJECTS[name])["containers"]
    assert container["command"][0].startswith(("/opt/suite/", "/bin/sh"))
    if container["command"][0] != "/bin/sh":
        script = ROOT / Path(container["command"][0]).relative_to("/opt/suite")
        assert os.access(script, os.X_OK)
        read = script.read_text(encoding="utf-8")
        names = {variable["name"] for variable in container["env"]} - {"NVIDIA_VISIBLE_DEVICES"}
        assert all(f"${{{name}" in read for name in names), names


def test_both_patches_make_a_node_that_passes() -> None:
    """kubectl itself applies them, to a file."""
    if shutil.which("kubectl") is None:
        pytest.skip("NOT RUN: no kubectl on the PATH")
    found = copy.deepcopy(NODE)
    condition, taints = node_patches(
        read_node(json.dumps(found).encode(), "-"), 1, "rejected: GPU 3", release=False, now=0
    )
    for kind, patch in (("merge", taints), ("strategic", condition)):
        command = ["kubectl", "patch", "--local", "--filename=-", f"--type={kind}", "--output=json", "--patch"]
        said = subprocess.run(
            [*command, json.dumps(patch)], input=json.dumps(found), capture_output=True, text=True, check=True
        )
        found = json.loads(said.stdout)
        kubernetes_validate.validate(found, KUBERNETES, strict=True)
    assert [taint["key"] for taint in found["spec"]["taints"]] == ["nvidia.com/gpu", TAINT]
    assert {one["type"]: one["status"] for one in found["status"]["conditions"]} == {"Ready": "True", CONDITION: "True"}
