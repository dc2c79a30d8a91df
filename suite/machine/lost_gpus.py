"""GPUs that a node had, or has on its bus, while no driver reports one; and whether the node is to blame for that."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from suite.machine.devices import DRIVER, PCI_COMPUTE, accelerators, has_driver, pci_devices

GRAPHICS = ("0x03",)  # class of PCI devices: GPUs with a display, and without
OURS, GIVEN_AWAY = "nvidia", "vfio-pci"  # drivers of the kernel: NVIDIA's own, and that of virtual machines' devices


class LostGpus(NamedTuple):
    """GPUs that no driver reports.

    Args:
        gpus: their models or number; `seen_by` what says so.
        why_gone: evidence that the node lost them; empty where the image, its container or a setting may hide them.
    """

    gpus: str
    seen_by: str
    why_gone: str


def lost_gpus(earlier: str, root: Path = Path("/")) -> LostGpus | None:
    """GPUs of a node for which no driver reports one; None where nothing says that it ever had some.

    The kernel's bus and drivers are those of the node, also in a container. What a container lacks is the driver's
    library and the devices' files: without them nothing is known of the node.

    Args:
        earlier: models that an earlier battery of this node had; empty where none had any.
        root: of /sys and /dev.
    """
    sysfs = root / "sys"
    on_bus = accelerators("NVIDIA", sysfs, (*GRAPHICS, *PCI_COMPUTE) if earlier else PCI_COMPUTE)
    if not earlier and not on_bus:
        return None
    gpus, seen_by = (
        (earlier, "an earlier battery of this node")
        if earlier
        else (f"{len(on_bus)} of NVIDIA on the PCI bus", "the PCI bus")
    )
    return LostGpus(gpus, seen_by, _why_gone(on_bus, root, sysfs))


def _why_gone(on_bus: Sequence[str], root: Path, sysfs: Path) -> str:
    """Evidence that the node is to blame; empty without any."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return ""
    if not on_bus:
        others = len(pci_devices(sysfs))  # none: the bus is not visible here
        return f"the PCI bus has {others} devices, and no GPU of NVIDIA among them" if others else ""
    drivers = Counter(_driver(sysfs / "bus/pci/devices" / address) for address in on_bus)
    has = f"{len(on_bus)} of NVIDIA on the PCI bus"
    without = {name: count for name, count in drivers.items() if name not in (OURS, GIVEN_AWAY)}
    if without:
        words = ", ".join(f"{count} {f'with {name}' if name else 'with none'}" for name, count in without.items())
        return f"{has}, and not all have NVIDIA's driver in the kernel: {words}"
    has_files = any((root / "dev").glob("nvidia[0-9]*"))
    if drivers[OURS] and has_files and has_driver():
        return f"{has}, with NVIDIA's driver and their files in /dev, and {DRIVER} finds none"
    return ""


def _driver(device: Path) -> str:
    """The driver that the kernel has bound to a device; empty without one."""
    try:
        return (device / "driver").readlink().name
    except OSError:
        return ""
