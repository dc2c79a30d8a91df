"""Wall time including the device's work, and bytes that a network interface sent."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from suite.machine.processes import boot_identity

Call = Callable[[], object]


def now(device: torch.device) -> float:
    """Seconds of a monotonic clock after all work of `device` is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def seconds_ahead(device: torch.device) -> float:
    """How far `time.perf_counter` of this rank is ahead of rank 0's: 0 on the same host, whose ranks share a clock.

    Between hosts the median difference of the moments at which the two ranks leave BARRIERS barriers: right but for the
    time in which a message reaches one of them earlier than the other. All ranks must call it together.
    """
    hosts: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, boot_identity())
    if len(set(hosts)) == 1:
        return 0.0
    own = []
    for _ in range(BARRIERS):
        dist.barrier()
        own.append(now(device))
    moments: list[list[float]] = [[]] * dist.get_world_size()
    dist.all_gather_object(moments, own)
    return statistics.median(mine - first for mine, first in zip(own, moments[0], strict=True))


BARRIERS = 15
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
    """Segments that all TCP connections of this network namespace sent again."""
    names, values = (line.split() for line in SNMP.read_text(encoding="ascii").splitlines() if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])
