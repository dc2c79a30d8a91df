"""Triton's interpreter as exact as a GPU: it cuts fp32 off to bf16, here it rounds to nearest, ties to even.

Measured with Triton 3.7.1: half of 1024 random numbers differ from torch's `.to(torch.bfloat16)` by one place, with
`fp_downcast_rounding="rtne"` too, which does not carry into the exponent. fp16 is rounded as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton.language as tl


def round_to_nearest() -> None:
    """Replace the interpreter's conversion from fp32 to bf16 in this process; once is enough."""
    from triton.runtime import interpreter

    convert: Callable[..., Any] = interpreter._convert_float
    if convert.__module__ == __name__:
        return

    def converted(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source != tl.float32 or target != tl.bfloat16 or rounding not in (None, interpreter._ir.ROUNDING_MODE.RTNE):
            return convert(values, source, target, rounding)
        exact = torch.tensor(values, dtype=torch.float32)
        return exact.to(torch.bfloat16).view(torch.uint16).numpy().reshape(values.shape)

    interpreter._convert_float = converted
