"""Prints the node's environment, and what it lacks, as JSON.

python -m suite.first_hour.environment cuda
"""

from __future__ import annotations

import subprocess
import sys

import msgspec

from reference_runs.errors import InputError
from suite.machine.devices import CudaDevice, cuda_device_list
from suite.machine.fingerprint import Fingerprint, fingerprint
from suite.machine.packages import PACKAGES, Package, compilation_missing, installing, lacking

ASKED_OF_DRIVER = {"state": ["-q"], "links": ["nvlink", "-s"], "topology": ["topo", "-m"]}
ANSWER_SECONDS = 20.0


class NodeEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """The node's environment.

    Args:
        lacking: packages that some command needs, and pip's command for them.
        compilation_missing: what torch.compile lacks; empty where it lacks nothing.
        driver: what nvidia-smi says, by subject.
    """

    fingerprint: Fingerprint
    devices: tuple[CudaDevice, ...]
    lacking: list[Package]
    installing: str
    compilation_missing: str
    driver: dict[str, str]


def node_environment(device: str) -> NodeEnvironment:
    """The environment of this node."""
    missing = lacking(PACKAGES)
    try:
        devices = cuda_device_list() if device == "cuda" else ()
    except InputError:
        devices = ()
    return NodeEnvironment(
        fingerprint=fingerprint(device),
        devices=devices,
        lacking=missing,
        installing=installing(missing) if missing else "",
        compilation_missing=compilation_missing(device),
        driver={subject: _nvidia_smi(words) for subject, words in ASKED_OF_DRIVER.items()} if device == "cuda" else {},
    )


def _nvidia_smi(words: list[str]) -> str:
    command = ["nvidia-smi", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no answer: {error}"
    return done.stdout or done.stderr


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(node_environment(sys.argv[1])).decode() + "\n")
