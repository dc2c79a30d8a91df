"""Wall time with the device's work included, and bytes that a network interface sent."""

from __future__ import annotations

import time
from pathlib import Path

import torch


def now(device: torch.device) -> float:
    """Seconds of a monotonic clock after all work handed to `device` is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


HEADER_BYTES = 14 + 20 + 32  # Ethernet, IPv4, TCP with timestamps: RFC 894, 791, 9293 and 7323


def interface_sent_bytes(name: str | None) -> int | None:
    """Bytes that left network interface `name` since it came up, less the headers; None where none is named.

    How many packets carry the same messages is TCP's choice: after a pause it starts with few small ones (RFC 5681),
    and its acknowledgements are packets of headers alone.
    """
    if name is None:
        return None
    directory = Path(f"/sys/class/net/{name}/statistics")
    sent, packets = (int((directory / counter).read_text(encoding="ascii")) for counter in ("tx_bytes", "tx_packets"))
    return sent - HEADER_BYTES * packets
