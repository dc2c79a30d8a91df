"""Error counters of the host, its disks and NVIDIA's services, from /sys and /proc: all of it without root."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from suite.acceptance.nics import nic_ports, pcie_link
from suite.acceptance.node_state import Disk, HostCounter, HostReading, LogSubject
from suite.machine import host_state
from suite.machine.host_state import file_text

# services by the first 15 characters of their processes' names, which is all that the kernel keeps
SERVICES = {"nv-fabricmanage": "fabric manager", "nvidia-persiste": "persistence daemon", "nvidia-imex": "IMEX"}
IMEX_CHANNELS = Path("/dev/nvidia-caps-imex-channels")
_KERNEL_THREADS = "kthreadd"  # process 2, where the host's processes are visible
# file of a PCI device, its line with the sum, what it counts, and whether data was lost
_PCIE = (
    ("aer_dev_fatal", "TOTAL_ERR_FATAL", "fatal errors", True),
    ("aer_dev_nonfatal", "TOTAL_ERR_NONFATAL", "uncorrected errors", False),
    ("aer_dev_correctable", "TOTAL_ERR_COR", "corrected errors", False),
)
_MEMORY = (("ue_count", "uncorrected errors of memory", True), ("ce_count", "corrected errors of memory", False))


def host_reading() -> HostReading:
    """The state now; empty where the system does not say."""
    memory = list(_memory_counters())
    return HostReading(
        counters=[*memory, *_pcie_counters()],
        nics=nic_ports(),
        disks=[_disk(path) for path in _entries("class/nvme", "nvme*")],
        services=_services(),
        switches=len(list((host_state.PROC / "driver/nvidia-nvswitch/devices").glob("*"))),
        imex_channels=len(list(IMEX_CHANNELS.glob("channel*"))),
        memory_counted=bool(memory),
    )


def _entries(directory: str, pattern: str) -> list[Path]:
    return sorted((host_state.SYS / directory).glob(pattern))


def _memory_counters() -> Iterable[HostCounter]:
    """Errors of each memory module, or of the whole controller where its modules are not counted."""
    for controller in _entries("devices/system/edac/mc", "mc[0-9]*"):
        modules = [path for path in sorted(controller.glob("dimm*")) if (path / "dimm_ce_count").exists()]
        named = [(path, "dimm_", file_text(path / "dimm_label") or path.name) for path in modules]
        for path, prefix, label in named or [(controller, "", "")]:
            for file, what, fatal in _MEMORY:
                value = file_text(path / f"{prefix}{file}")
                if value.isdecimal():
                    device = f"{controller.name} {label}".rstrip()
                    yield HostCounter(
                        subject=LogSubject.MEMORY, device=device, what=what, fatal=fatal, value=int(value)
                    )


def _pcie_counters() -> Iterable[HostCounter]:
    for device in _entries("bus/pci/devices", "*"):
        for file, line, what, fatal in _PCIE:
            found = re.search(rf"^{line} (\d+)$", file_text(device / file), re.MULTILINE)
            if found is not None:
                yield HostCounter(
                    subject=LogSubject.PCIE, device=device.name, what=what, fatal=fatal, value=int(found[1])
                )


def _disk(path: Path) -> Disk:
    sensor = next(iter(sorted([*path.glob("hwmon*"), *path.glob("device/hwmon/hwmon*")])), path / "none")
    alarm = file_text(sensor / "temp1_alarm")
    return Disk(
        name=path.name,
        model=file_text(path / "model"),
        state=file_text(path / "state"),
        celsius=_thousandth(sensor / "temp1_input"),
        most_celsius=_thousandth(sensor / "temp1_crit"),
        alarm=bool(int(alarm)) if alarm.isdecimal() else None,
        **pcie_link(path / "device"),
    )


def _thousandth(path: Path) -> float | None:
    text = file_text(path)
    return int(text) / 1000 if text.lstrip("-").isdecimal() else None


def _services() -> list[str] | None:
    if file_text(host_state.PROC / "2/comm") != _KERNEL_THREADS:
        return None
    names = {file_text(path) for path in host_state.PROC.glob("[0-9]*/comm")}
    return sorted(words for name, words in SERVICES.items() if name in names)
