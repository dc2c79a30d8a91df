"""The devices of this machine, without importing torch in this process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from functools import cache

import msgspec

from reference_runs.errors import InputError
from suite.machine.gpu import H100, Gpu
from suite.paths import ROOT

CHOICES = ("auto", "cpu", "cuda")
DRIVER = "libcuda.so.1"  # also in containers, which may show neither /dev/nvidiactl nor /proc/driver/nvidia
ANSWER_SECONDS = 180.0  # a lost GPU can block the driver for ever


class CudaDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device that torch can use.

    Args:
        uuid: as torch prints it, without "GPU-" or "MIG-".
        pci: its address on the PCI bus, "0000:1b:00.0".
        memory_bytes: all of it.
        gpu: what predictions of memory take of it and of torch's libraries.
    """

    name: str
    uuid: str
    pci: str
    memory_bytes: int
    gpu: Gpu = H100


def has_driver() -> bool:
    """Whether an NVIDIA driver is installed, with or without devices."""
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return False
    return True


def cuda_device_list() -> tuple[CudaDevice, ...]:
    """CUDA devices that torch can use, in its order, which is that of local ranks; empty without an NVIDIA driver.

    Torch is asked once a process, in a process of its own: alone it knows what CUDA_VISIBLE_DEVICES means to it, by
    number, by UUID or of parts of a GPU (MIG). That takes seconds.

    Raises:
        InputError: there is a driver, but torch cannot be asked.
    """
    return _visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"))


@cache
def _visible_devices(_cuda_visible_devices: str | None) -> tuple[CudaDevice, ...]:
    return _answer_of_torch() if has_driver() else ()


def _answer_of_torch() -> tuple[CudaDevice, ...]:
    try:
        answer = subprocess.run(
            [sys.executable, "-m", "suite.execute.devices"],
            cwd=ROOT,
            capture_output=True,
            check=False,
            timeout=ANSWER_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise _unusable(f"no answer in {ANSWER_SECONDS:.0f} s") from error
    if answer.returncode != 0:
        raise _unusable((answer.stderr.decode(errors="replace").strip().splitlines() or ["no output"])[-1])
    return msgspec.json.decode(answer.stdout, type=tuple[CudaDevice, ...])


def _unusable(why: str) -> InputError:
    return InputError(
        f"an NVIDIA driver is installed, but torch cannot use its devices: {why}",
        allowed="--device cpu",
        where="--device",
    )


def cuda_devices() -> int:
    """Number of CUDA devices that torch can use.

    Raises:
        InputError: there is a driver, but torch cannot be asked.
    """
    return len(cuda_device_list())


def cuda_memory_bytes() -> int:
    """Memory of the smallest CUDA device, in bytes.

    Raises:
        InputError: torch cannot be asked.
    """
    return min(device.memory_bytes for device in cuda_device_list())


def cuda_gpu() -> Gpu:
    """The first CUDA device's facts; those of an H100 where there is none.

    Raises:
        InputError: torch cannot be asked.
    """
    return next((device.gpu for device in cuda_device_list()), H100)


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
