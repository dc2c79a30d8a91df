"""Wall time with the device's work included, and bytes that a network interface sent."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch


def now(device: torch.device) -> float:
    """Seconds of a monotonic clock after all work handed to `device` is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def interface_sent_bytes() -> int | None:
    """Bytes that left the interface in GLOO_SOCKET_IFNAME since it came up; None for none or the loopback."""
    name = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    if name == "lo":
        return None
    return int(Path(f"/sys/class/net/{name}/statistics/tx_bytes").read_text(encoding="ascii"))
