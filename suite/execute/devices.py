"""Prints what the NVIDIA driver has, and what torch can use of it, as JSON: python -m suite.execute.devices."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING

import msgspec

from suite.machine.devices import DRIVER, NO_DEVICE, CudaDevice, CudaState
from suite.machine.gpu import WORKSPACE_VARIABLE, Gpu

if TYPE_CHECKING:
    import torch


def driver_answer() -> tuple[int, int]:
    """How many devices the driver reports to this process, as CUDA_VISIBLE_DEVICES says, and its error.

    It takes a few milliseconds where there is none, and seconds less than torch.
    """
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return 0, NO_DEVICE
    count = ctypes.c_int(0)
    error = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return (0, error) if error else (count.value, 0)


def cuda_state() -> CudaState:
    """The driver's devices and torch's; torch is not imported where the driver has none."""
    devices, error = driver_answer()
    if not devices:
        return CudaState(driver_error=error or NO_DEVICE)
    import torch  # as below

    version = torch.version
    built_for = f"CUDA {version.cuda}" if version.cuda else f"ROCm {version.hip}" if version.hip else ""
    return CudaState(
        driver_devices=devices,
        driver_error=error,
        torch=str(torch.__version__),
        built_for=built_for,
        devices=tuple(torch_devices()),
    )


def torch_devices() -> list[CudaDevice]:
    """The devices in torch's order, which is that of local ranks."""
    import torch  # takes seconds, and is not needed where the driver has no device

    devices = []
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        devices.append(
            CudaDevice(
                name=properties.name,
                uuid=str(properties.uuid),
                pci=pci_address(properties),
                memory_bytes=properties.total_memory,
                gpu=gpu_facts(number),
            )
        )
    return devices


def gpu_facts(device: int | torch.device) -> Gpu:
    """Facts of a GPU on which the memory of operators depends."""
    import torch  # as above

    properties = torch.cuda.get_device_properties(device)
    major, minor, *_ = torch.__version__.split(".")
    return Gpu(
        (properties.major, properties.minor),
        properties.multi_processor_count,
        properties.max_threads_per_multi_processor,
        torch.backends.cudnn.version() or 0,
        (int(major), int(minor)),
        os.environ.get(WORKSPACE_VARIABLE, ""),
    )


def pci_address(properties: object) -> str:
    """Address on the PCI bus as the kernel writes it: "0000:1b:00.0", of torch's properties of a device."""
    domain, bus, device = (getattr(properties, f"pci_{part}_id") for part in ("domain", "bus", "device"))
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(cuda_state()))
