"""RDMA network cards of this node, from /sys/class/infiniband: state, rate, error counters, PCIe link."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from suite.acceptance.node_state import NicPort
from suite.machine import host_state
from suite.machine.host_state import file_text

# files of a port in our words (Linux: Documentation/ABI/stable/sysfs-class-infiniband; NVIDIA: Understanding mlx5
# Linux counters)
COUNTERS = {
    "counters/link_downed": "times the link went down",
    "counters/link_error_recovery": "recoveries of the link",
    "counters/symbol_error": "symbol errors",
    "counters/port_rcv_errors": "receive errors",
    "counters/port_rcv_remote_physical_errors": "errors that the other end marked",
    "counters/local_link_integrity_errors": "link integrity errors",
    "counters/excessive_buffer_overrun_errors": "buffer overruns",
    "hw_counters/out_of_sequence": "packets out of sequence",
    "hw_counters/packet_seq_err": "packets lost",
    "hw_counters/local_ack_timeout_err": "acknowledgements that timed out",
    "hw_counters/rx_icrc_encapsulated": "wrong checksums",
    "hw_counters/roce_slow_restart": "restarts after loss",
}
WENT_DOWN = COUNTERS["counters/link_downed"]


def nic_ports() -> list[NicPort]:
    """Every port of every card, in the order of their names."""
    cards = (host_state.SYS / "class/infiniband").glob("*")
    return [
        _port(card, port)
        for card in sorted(cards, key=lambda path: _in_order(path.name))
        for port in sorted((card / "ports").glob("[0-9]*"), key=lambda path: int(path.name))
    ]


def _in_order(name: str) -> tuple[str, int]:
    """mlx5_2 before mlx5_10."""
    letters, _, number = name.rpartition("_")
    return (letters, int(number)) if number.isdecimal() else (name, 0)


def _port(card: Path, port: Path) -> NicPort:
    device = card / "device"
    rate = re.match(r"([\d.]+) Gb/sec", file_text(port / "rate"))
    counts = {words: file_text(port / file) for file, words in COUNTERS.items()}
    address = device.resolve().name
    return NicPort(
        name=card.name,
        port=int(port.name),
        kind=file_text(card / "hca_type") or file_text(device / "device"),
        pci=address if re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", address) else "",
        link_layer=file_text(port / "link_layer"),
        state=_words(port / "state"),
        physical=_words(port / "phys_state"),
        gbits=float(rate[1]) if rate else None,
        firmware=file_text(card / "fw_ver"),
        counters={words: int(count) for words, count in counts.items() if count.isdecimal()},
        **pcie_link(device),
    )


def _words(path: Path) -> str:
    """The word of "4: ACTIVE"."""
    return file_text(path).rpartition(":")[2].strip()


def pcie_link(device: Path) -> dict[str, Any]:
    """Speed in 10^9 transfers/s and width of a PCI device's link, now and at most, as fields of a port or a disk."""
    found: dict[str, Any] = {}
    for name, prefix in (("current", ""), ("max", "most_")):
        speed = re.match(r"([\d.]+) GT/s", file_text(device / f"{name}_link_speed"))
        width = file_text(device / f"{name}_link_width")
        found[f"{prefix}pcie_gigatransfers"] = float(speed[1]) if speed else None
        found[f"{prefix}pcie_width"] = int(width) if width.isdecimal() and int(width) else None
    return found
