"""The facts that identify a machine and its software; a record or a profile is valid for them."""

from __future__ import annotations

import hashlib
import platform
import re
import socket
import subprocess
import tomllib
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from reference_runs.errors import InputError
from suite.machine import malloc
from suite.machine.devices import cuda_device_list, usable_cores
from suite.paths import DISTRIBUTION, INSTALLED, ROOT


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a profile is valid for: another node, device, hardware or software makes it stale."""

    node: str
    device: str
    hardware: dict[str, str]
    software: dict[str, str]

    @property
    def hash(self) -> str:
        """16 hex digits of device, hardware and software."""
        return digest({"device": self.device, "hardware": self.hardware, "software": self.software})


def checksum(content: Any) -> str:
    """SHA-256 of `content` as JSON with sorted keys, in hexadecimal digits."""
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


_DISTRIBUTIONS = ("torch", "triton", "numpy", "tokenizers", "msgspec")


def digest(facts: Any) -> str:
    """The first 16 digits of the checksum."""
    return checksum(facts)[:16]


@cache
def node_identity() -> str:
    """A hash of this machine's id and host name: 8 hex digits."""
    machine = ""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            machine = Path(path).read_text(encoding="ascii").strip()
            break
        except OSError:
            continue
    return hashlib.sha256(f"{machine} {socket.gethostname()}".encode()).hexdigest()[:8]


def kernel_fact(path: str, name: str, *, missing: str = "unknown") -> str:
    """The value of the first line `name: value` of a file of the kernel, for what psutil does not know."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return missing
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), missing)


def driver_version(line: str) -> str:
    """The number in the kernel's line on NVIDIA's driver; the line where it has none.

    "NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder)" is "580.159.04".
    """
    found = re.search(r"\b\d+(?:\.\d+)+\b", line)
    return line if found is None else found[0]


def cpu_named(path: str = "/proc/cpuinfo") -> str:
    """The processor's name and generation: virtual machines call processors of 2021 and of 2023 both "AMD EPYC"."""
    name = kernel_fact(path, "model name")
    family, model = kernel_fact(path, "cpu family"), kernel_fact(path, "model\t")
    return name if "unknown" in (family, model) else f"{name} (family {family}, model {model})"


def hardware() -> dict[str, str]:
    """Processor, cores that this process may use, and memory, as texts."""
    import psutil

    return {
        "cpu": cpu_named(),
        "cpu_flags": digest(kernel_fact("/proc/cpuinfo", "flags")),
        "cores": str(usable_cores()),
        "memory": f"{psutil.virtual_memory().total // 1024} kB",
        "gpus": ", ".join(sorted(gpu_models())) or "none",
    }


def gpu_models(root: Path = Path("/proc/driver/nvidia/gpus")) -> list[str]:
    """The model of every GPU of the driver's; in a container that does not show them, of those that torch can use."""
    shown = [kernel_fact(str(path), "Model") for path in root.glob("*/information")]
    if shown:
        return shown
    with suppress(InputError):  # it is raised where devices are needed
        return [device.name for device in cuda_device_list()]
    return []


def software() -> dict[str, str]:
    """Versions of this suite, Python, the system, the driver and the packages that affect results, and the settings of
    the memory allocator, as texts."""
    facts = {
        "suite": suite_version(),
        "driver": driver_version(kernel_fact("/proc/driver/nvidia/version", "NVRM version")),
        "allocator": malloc.described(),
    } | {"python": platform.python_version(), "system": f"{platform.system()} {platform.release()}"}
    for name in _DISTRIBUTIONS:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = "not installed"
    return facts


def fingerprint(device: str) -> Fingerprint:
    """The fingerprint of a machine profile for "cpu" or "cuda" that is measured here and now.

    The suite's version is not part of it, because a profile describes the machine and PyTorch. Memory is rounded to
    GiB, because the part that the kernel reserves differs from boot to boot.
    """
    versions = {name: version for name, version in software().items() if name != "suite"}
    facts = hardware()
    facts["memory"] = f"{round(int(facts['memory'].removesuffix(' kB')) / 2**20)} GiB"
    return Fingerprint(node=node_identity(), device=device, hardware=facts, software=versions)


def suite_version() -> str:
    """Version and commit of this suite, with "modified" where files other than results differ from the commit."""
    if INSTALLED:
        return f"{metadata.version(DISTRIBUTION)} (no checkout)"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        if _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results"):
            commit += ", modified"
    except (OSError, subprocess.SubprocessError):
        commit = "no checkout"
    return f"{version} ({commit})"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
