"""The devices of this machine, and whether PyTorch can use them; torch is not imported in this process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.machine.gpu import H100, Gpu
from suite.paths import ROOT

CHOICES = ("auto", "cpu", "cuda")
DRIVER = "libcuda.so.1"  # also in containers, which may show neither /dev/nvidiactl nor /proc/driver/nvidia
KERNEL_GPUS = Path("/proc/driver/nvidia/gpus")
ANSWER_SECONDS = 180.0  # a lost GPU can block the driver for ever
NO_DEVICE = 100  # cuInit's answer where the driver has none, or none is visible
# cuInit's answers where the driver's library and the kernel's driver do not fit: of an image, or of an update
MISMATCHES = {803: "the driver's library is of another version than the kernel's", 804: "compatibility not supported"}
PCI_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
PCI_COMPUTE = ("0x0302", "0x12")  # classes of devices that are made to compute: 3D controllers, accelerators


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


class CudaState(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of the NVIDIA driver, and those that torch can use of them.

    Args:
        kernel_devices: that the kernel's driver has, where its library is not here: an image or a container lacks it.
        driver_devices: that the driver reports to this process, as CUDA_VISIBLE_DEVICES says.
        driver_error: what the driver answers in place of starting; 0 where it starts, `NO_DEVICE` without a device.
        torch: its version, and `built_for` the version of CUDA or ROCm; empty where no device is there to ask for.
        devices: that torch can use, in its order, which is that of local ranks.
    """

    kernel_devices: int = 0
    driver_devices: int = 0
    driver_error: int = NO_DEVICE
    torch: str = ""
    built_for: str = ""
    devices: tuple[CudaDevice, ...] = ()

    @property
    def why_unusable(self) -> str:
        """Why devices that are there cannot be used, in words that name the driver and torch; empty where they can."""
        if self.kernel_devices:
            return f"the kernel's NVIDIA driver has {_devices(self.kernel_devices)}, but {DRIVER} does not load here"
        if self.driver_error not in (0, NO_DEVICE):
            why = MISMATCHES.get(self.driver_error, "")
            return f"the NVIDIA driver does not start: CUDA error {self.driver_error}{f' ({why})' if why else ''}"
        if self.driver_devices and not self.devices:
            built = f"built for {self.built_for}" if self.built_for else "built without CUDA"
            has = _devices(self.driver_devices)
            return f"the NVIDIA driver has {has}, but PyTorch {self.torch} ({built}) can use none"
        return ""

    @property
    def why_gone(self) -> str:
        """Why there is no device for which the node is to blame: a driver that has none, or that does not start.

        Empty where devices are there, or an image, the environment or another vendor explain it.
        """
        if self.driver_devices or self.kernel_devices or self.driver_error in MISMATCHES or amd_gpus():
            return ""
        if self.driver_error != NO_DEVICE:
            return self.why_unusable
        if not has_driver():
            return f"no NVIDIA driver: {DRIVER} does not load"
        return "" if "CUDA_VISIBLE_DEVICES" in os.environ else "the NVIDIA driver has no device"


def _devices(count: int) -> str:
    return f"{count} device{'s' if count > 1 else ''}"


def cuda_state() -> CudaState:
    """The driver's devices and torch's.

    Both are asked once a process, in a process of their own: torch alone knows what CUDA_VISIBLE_DEVICES means to it,
    by number, by UUID or of parts of a GPU (MIG). That takes seconds; without a driver nothing is asked.

    Raises:
        InputError: there is a driver, but torch cannot be asked.
    """
    return _state(os.environ.get("CUDA_VISIBLE_DEVICES"))


def cuda_device_list() -> tuple[CudaDevice, ...]:
    """CUDA devices that torch can use, in its order, which is that of local ranks; empty without a device.

    Raises:
        InputError: the driver does not start, or has devices of which torch can use none, or torch cannot be asked.
    """
    state = cuda_state()
    if state.why_unusable:
        raise _unusable(state.why_unusable)
    return state.devices


@cache
def _state(_cuda_visible_devices: str | None) -> CudaState:
    return _answer_of_torch() if has_driver() else CudaState(kernel_devices=len([*KERNEL_GPUS.glob("*")]))


def _answer_of_torch() -> CudaState:
    failed = "an NVIDIA driver is installed, but torch cannot use its devices"
    try:
        answer = subprocess.run(
            [sys.executable, "-m", "suite.execute.devices"],
            cwd=ROOT,
            capture_output=True,
            check=False,
            timeout=ANSWER_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise _unusable(f"{failed}: no answer in {ANSWER_SECONDS:.0f} s") from error
    if answer.returncode != 0:
        last = (answer.stderr.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
        raise _unusable(f"{failed}: {last}")
    return msgspec.json.decode(answer.stdout, type=CudaState)


def _unusable(why: str) -> InputError:
    return InputError(
        why, allowed="a PyTorch that fits the driver (docs/install.md), or --device cpu", where="--device"
    )


def amd_gpus(kfd: Path = Path("/dev/kfd"), sysfs: Path = Path("/sys")) -> str:
    """Sign of AMD GPUs in this machine: ROCm's device, its library, or the PCI bus; empty without any."""
    if kfd.exists():
        nodes = [*(sysfs / "class/kfd/kfd/topology/nodes").glob("*/properties")]
        if not nodes or any(_computing_units(path) for path in nodes):
            return str(kfd)
    if accelerators("AMD", sysfs):
        return "the PCI bus"
    try:
        ctypes.CDLL("libamdhip64.so")
    except OSError:
        return ""
    return "libamdhip64.so"


def _computing_units(properties: Path) -> int:
    """Vector units of a node of ROCm's topology: 0 is a processor, or a file that cannot be read."""
    try:
        lines = properties.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("simd_count "))


def pci_devices(sysfs: Path = Path("/sys")) -> list[Path]:
    """All devices on the PCI bus."""
    return sorted((sysfs / "bus/pci/devices").glob("*"))


def accelerators(vendor: str, sysfs: Path = Path("/sys"), kinds: tuple[str, ...] = PCI_COMPUTE) -> list[str]:
    """PCI addresses of a vendor's devices that are made to compute, whether or not a driver has them.

    Args:
        kinds: how their classes begin.
    """
    found = []
    for path in pci_devices(sysfs):
        try:
            named, kind = ((path / part).read_text(encoding="ascii").strip() for part in ("vendor", "class"))
        except OSError:
            continue
        if PCI_VENDORS.get(named) == vendor and kind.startswith(kinds):
            found.append(path.name)
    return found


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

    Commands that launch ask here: GPUs that are there and cannot be used are an error, never a run on the CPU.

    Raises:
        InputError: an unknown choice, "cuda" without a CUDA device, or GPUs that cannot be used.
    """
    if choice not in CHOICES:
        raise InputError("unknown device", got=repr(choice), allowed=", ".join(CHOICES), where="--device")
    if choice == "cpu":
        return "cpu", 2
    devices = cuda_devices()
    if devices:
        return "cuda", devices
    if seen := amd_gpus():
        torch = f" (PyTorch {version})" if (version := _installed("torch")) else ""
        raise InputError(
            f"AMD GPUs{torch}: their runs are predicted, not executed",
            got=f"{choice}, and {seen} shows one",
            allowed="--device cpu",
            where="--device",
        )
    if choice == "cuda":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        got = "cuda" if visible is None else f"cuda, with CUDA_VISIBLE_DEVICES={visible}"
        raise InputError("no CUDA device here", got=got, allowed="cpu, auto", where="--device")
    return "cpu", 2


def _installed(name: str) -> str:
    """The version of an installed package; empty where it is not installed."""
    from importlib import metadata  # 20 ms, and seldom needed

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
