"""Copy and matrix rates of one device, in seconds rather than a calibration's minutes: prints JSON.

python -m suite.execute.probe.rates cuda
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch

COPIED_BYTES = {"cuda": 2**31, "cpu": 2**26}  # far more than any cache holds
PRODUCT_ROWS = {"cuda": 8192, "cpu": 1024}
DTYPE = {"cuda": ("bf16", torch.bfloat16), "cpu": ("fp32", torch.float32)}
WARM_UP, TIMED = 3, 20


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of the median of timed calls, each between two events of the device; on a CPU by its clock."""
    samples: list[float] = []
    for number in range(WARM_UP + TIMED):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            spent = begin.elapsed_time(end) / 1e3
        else:
            start = time.perf_counter()
            call()
            spent = time.perf_counter() - start
        if number >= WARM_UP:
            samples.append(spent)
    return sorted(samples)[TIMED // 2]


def rates(kind: str) -> dict[str, float | str | None]:
    """Bytes a second that a copy reads and writes, and flop a second of a square product of random factors.

    None where the clock stood still, as a simulated device's may.
    """
    device = torch.device(kind)
    torch.manual_seed(1)
    source = torch.ones(COPIED_BYTES[kind] // 4, device=device)
    target = torch.empty_like(source)
    rows, (name, dtype) = PRODUCT_ROWS[kind], DTYPE[kind]
    left, right = (torch.randn(rows, rows, device=device, dtype=dtype) for _ in range(2))
    product = torch.empty_like(left)
    copy = seconds(lambda: target.copy_(source), device)
    matrix = seconds(lambda: torch.mm(left, right, out=product), device)
    return {
        "device": torch.cuda.get_device_name(device) if kind == "cuda" else kind,
        "copy_bytes_per_second": 2 * COPIED_BYTES[kind] / copy if copy else None,
        "product_flop_per_second": 2 * rows**3 / matrix if matrix else None,
        "product_dtype": name,
    }


if __name__ == "__main__":
    print(json.dumps(rates(sys.argv[1])))
