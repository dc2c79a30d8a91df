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


def interface_sent_bytes(name: str | None) -> int | None:
    """Bytes that left network interface `name` since it came up; None where none is named."""
    if name is None:
        return None
    return int(Path(f"/sys/class/net/{name}/statistics/tx_bytes").read_text(encoding="ascii"))
