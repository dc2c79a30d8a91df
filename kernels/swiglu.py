"""SwiGLU of an interleaved expansion, y = silu(gate) * gated with its bias in one pass, forward and backward.

silu(x) = x sigmoid(x).

Legend: M rows, F units.
Least bytes, b an element: forward 3 M F b; backward 5 M F b and the partial sums of the bias' gradient.
Source: Shazeer 2020, arXiv 2002.05202 (SwiGLU).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.gated_activation import gated, require_pairs
from kernels.operator import runs_triton

NAME = "swiglu"


def reference(x: Tensor, bias: Tensor | None) -> Tensor:
    """silu(gate) * gated in the arithmetic of x's dtype, the last dim of x + bias being [F, 2], gate and gated."""
    gate, other = (x if bias is None else x + bias).unflatten(-1, (-1, 2)).unbind(-1)
    y: Tensor = gate * torch.sigmoid(gate) * other
    return y


def swiglu(x: Tensor, bias: Tensor | None) -> Tensor:
    """silu(gate) * gated [..., F] of the expansion x [..., 2 F], whose last dim is [F, 2], plus its bias [2 F].

    Computed in fp32 and rounded once. The kernel on CUDA, or interpreted; elsewhere the plain reference.

    Raises:
        UnsupportedInputError: a dtype, device or shape that the kernel does not take.
    """
    require_pairs(NAME, x, bias)
    return gated(x, bias, "silu") if runs_triton(x) else reference(x, bias)
