"""Messages in the kernel's log about NVSwitches, PCIe, host memory, network cards and disks."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from suite.acceptance.kernel_log import DRIVER_LOADED
from suite.acceptance.node_state import LogEvent, LogSubject

_PCI = r"(?P<device>[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
HOST = "host"  # the device of messages that name none
_UNCORRECTED = 1 << 61  # bit UC of a machine-check bank's status (Intel SDM, volume 3B; AMD APM, volume 2)


class _Message(NamedTuple):
    """Messages of one kind; `what` is filled with the groups of the pattern."""

    subject: LogSubject
    pattern: re.Pattern[str]
    what: str
    fatal: bool


def _messages(subject: LogSubject, *rows: tuple[str, str, bool]) -> list[_Message]:
    return [_Message(subject, re.compile(pattern, re.IGNORECASE), what, fatal) for pattern, what, fatal in rows]


# The first that matches a line counts. An example of each source, as the kernel and NVIDIA's driver write it:
_MESSAGES = [
    # "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    *_messages(
        LogSubject.SWITCH,
        (rf"SXid \(PCI:{_PCI}\): (?P<number>\d+), Fatal", "fatal SXid {number}", True),
        (rf"SXid \(PCI:{_PCI}\): (?P<number>\d+), Non-fatal", "non-fatal SXid {number}", False),
    ),
    # "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0"
    # "nvidia 0000:18:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
    *_messages(
        LogSubject.PCIE,
        (rf"{_PCI}: AER: (?:subordinate )?device (?:recovery|reset) failed", "recovery from an error failed", True),
        (rf"{_PCI}: (?:AER: )?PCIe Bus Error: severity=Uncorrect\w+ \(Fatal\)", "fatal error", True),
        (rf"{_PCI}: (?:AER: )?PCIe Bus Error: severity=Uncorrect\w+", "uncorrected error", False),
        (rf"{_PCI}: (?:AER: )?PCIe Bus Error: severity=Correct\w+", "corrected error", False),
        (rf"AER: (?:Multiple )?Uncorrect\w+ \(Fatal\) error .*\b{_PCI}", "fatal error", True),
        (rf"AER: (?:Multiple )?Uncorrect\w+ (?:\(Non-Fatal\) )?error .*\b{_PCI}", "uncorrected error", False),
        (rf"AER: (?:Multiple )?Correct\w+ error .*\b{_PCI}", "corrected error", False),
        (rf"{_PCI}: pciehp: Slot\([^)]*\): (?:Link Down|Card not present)", "device lost", True),
    ),
    # "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x0 offset:0x0)"
    # "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 8: cc00008000010090"
    # "{1}[Hardware Error]: event severity: recoverable"
    *_messages(
        LogSubject.MEMORY,
        (r"EDAC (?P<device>MC\d+): \d+ UE\b(?:.*? on (?P<module>\S+))?", "uncorrected error of memory", True),
        (r"EDAC (?P<device>MC\d+): \d+ CE\b(?:.*? on (?P<module>\S+))?", "corrected error of memory", False),
        (r"\[Hardware Error\]: (?P<device>CPU \d+): Machine Check.* Bank \d+: (?P<status>[0-9a-f]{16})", "", False),
        (r"\[Hardware Error\]: event severity: (?P<kind>fatal|recoverable)", "{kind} error", True),
        (r"\[Hardware Error\]: event severity: corrected", "corrected error", False),
        (r"mce: Uncorrected hardware memory error", "uncorrected error of memory", True),
        (r"Memory failure: 0x[0-9a-f]+: ", "page of memory lost", True),
    ),
    # "mlx5_core 0000:0c:00.0: poll_health:801:(pid 0): device's health compromised - reached miss count"
    # "mlx5_core 0000:0c:00.0: Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)"
    *_messages(
        LogSubject.NETWORK,
        (rf"mlx5_core {_PCI}.*(?:health compromised|firmware (?:fatal|internal) error|assert_var)", "health", True),
        (rf"mlx5_core {_PCI}.*Health issue observed, .*severity\([0-3]\)", "health", True),
        (rf"mlx5_core {_PCI}.*Health issue observed", "health issue", False),
        (rf"mlx5_core {_PCI}.*timeout\. Will cause a leak of a command resource", "a command timed out", True),
        (rf"mlx5_core {_PCI}.*Port module event\[error\]", "error of the cable or its module", False),
        (rf"mlx5_core {_PCI}.*High temperature", "high temperature", False),
        (rf"mlx5_core {_PCI}.*insufficient power", "too little power of the slot", False),
        (rf"mlx5_core {_PCI}.*: (?:Port: \d+ )?Link down", "link down", False),
    ),
    # "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff"
    *_messages(
        LogSubject.DISK,
        (r"\b(?P<device>nvme\d+): controller is down", "controller down", True),
        (r"\b(?P<device>nvme\d+): (?:Disabling|Removing) (?:device )?after (?:reset|probe) failure", "lost", True),
        (r"\b(?P<device>nvme\d+): (?:I/O|Admin Cmd|QID).*timeout", "a command timed out", False),
        (r"critical (?:medium|target) error, dev (?P<device>\w+)", "medium error", True),
        (r"I/O error, dev (?P<device>(?:nvme|sd|vd)\w+)", "I/O error", False),
    ),
]
# "4,1234,56789000,-;text" of /dev/kmsg, and "[   56.789000] host kernel: text" of the journal
_SECONDS = re.compile(r"^\d+,\d+,(?P<microseconds>\d+),[^;]*;|^\[ *(?P<seconds>\d+\.\d+)\]")


def log_events(lines: Sequence[str], *, earlier: Collection[str]) -> list[LogEvent]:
    """The messages about devices, those of one kind and device together, in the order of their first.

    Args:
        earlier: lines that were there before the battery began.
    """
    found: dict[tuple[LogSubject, str, str, bool, bool], tuple[int, float | None]] = {}
    for line in lines:
        if DRIVER_LOADED in line:  # switches start anew with it
            found = {
                (subject, device, what, fatal and subject is not LogSubject.SWITCH, under_load): counted
                for (subject, device, what, fatal, under_load), counted in found.items()
            }
        event = _event(line)
        if event is None:
            continue
        key = (*event, line not in earlier)
        times, _ = found.get(key, (0, None))
        found[key] = times + 1, _second(line)
    return [
        LogEvent(
            subject=subject, device=device, what=what, fatal=fatal, under_load=under_load, times=times, second=second
        )
        for (subject, device, what, fatal, under_load), (times, second) in found.items()
    ]


def _event(line: str) -> tuple[LogSubject, str, str, bool] | None:
    """Subject, device and kind of a line, and whether it is fatal; None where it is about none of them."""
    for kind in _MESSAGES:
        match = kind.pattern.search(line)
        if match is None:
            continue
        groups = match.groupdict()
        device = " ".join(filter(None, (groups.get("device") or HOST, groups.get("module"))))
        if status := groups.get("status"):
            uncorrected = bool(int(status, 16) & _UNCORRECTED)
            what = "uncorrected machine check" if uncorrected else "corrected machine check"
            return kind.subject, device, what, uncorrected
        return kind.subject, device, kind.what.format(**groups), kind.fatal
    return None


def _second(line: str) -> float | None:
    found = _SECONDS.match(line)
    if found is None:
        return None
    return float(found["seconds"]) if found["seconds"] else int(found["microseconds"]) / 1e6
