"""The devices of this machine, without importing torch in this process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from reference_runs.errors import InputError
from suite.paths import ROOT

CHOICES = ("auto", "cpu", "cuda")


def cuda_devices() -> int:
    """CUDA devices that torch can use; 0 at once where no NVIDIA driver is present.

    Raises:
        InputError: there is a driver, but torch cannot be asked.
    """
    if not (Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia").exists()):
        return 0
    return _answer_of_torch("--devices")


def cuda_memory_bytes() -> int:
    """Memory of the smallest CUDA device, in bytes.

    Raises:
        InputError: torch cannot be asked.
    """
    return _answer_of_torch("--device-memory")


def _answer_of_torch(question: str) -> int:
    answer = subprocess.run(
        [sys.executable, "-m", "suite.execute", question], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        lines = answer.stderr.strip().splitlines() or ["no output"]
        raise InputError(
            f"an NVIDIA driver is installed, but torch cannot use its devices: {lines[-1]}",
            allowed="--device cpu",
            where="--device",
        )
    return int(answer.stdout)


def usable_threads() -> frozenset[int]:
    """Numbers of the hardware threads that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Processor cores that this process may use."""
    return len(usable_threads())


def resolved_device(choice: str) -> tuple[str, int]:
    """The device kind to run on, and its default number of ranks: 2 on the CPU, otherwise one per GPU.

    Raises:
        InputError: an unknown choice, or "cuda" without a CUDA device.
    """
    if choice not in CHOICES:
        raise InputError("unknown device", got=repr(choice), allowed=", ".join(CHOICES), where="--device")
    if choice == "cpu":
        return "cpu", 2
    devices = cuda_devices()
    if devices:
        return "cuda", devices
    if choice == "cuda":
        raise InputError("no CUDA device here", got="cuda", allowed="cpu, auto", where="--device")
    return "cpu", 2
