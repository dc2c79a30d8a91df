"""Wall time including the device's work, and bytes that a network interface sent."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

Call = Callable[[], object]


def now(device: torch.device) -> float:
    """Seconds of a monotonic clock after all work of `device` is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


IP_AND_TCP_BYTES = 20 + 32  # headers of IPv4 and TCP with timestamps: RFC 791, 9293 and 7323
HEADER_BYTES = 14 + IP_AND_TCP_BYTES  # and Ethernet's: RFC 894
SNMP = Path("/proc/net/snmp")


def interface_sent_bytes(name: str | None) -> int | None:
    """Bytes that left network interface `name` since it came up, without headers and retransmissions; None for None.

    TCP chooses how many packets carry a message (RFC 5681), and its acknowledgements are packets of headers alone. If
    acknowledgements come late, it sends whole segments again: the system counts these for all connections.
    """
    if name is None:
        return None
    directory = Path(f"/sys/class/net/{name}")
    sent, packets, mtu = (
        int((directory / counter).read_text(encoding="ascii"))
        for counter in ("statistics/tx_bytes", "statistics/tx_packets", "mtu")
    )
    return sent - HEADER_BYTES * packets - (mtu - IP_AND_TCP_BYTES) * _retransmitted_segments()


def _retransmitted_segments() -> int:
    """Of all TCP connections of this network namespace."""
    names, values = (line.split() for line in SNMP.read_text(encoding="ascii").splitlines() if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])
