"""RMSNorm over the last dim, forward and backward; also that of queries and keys, head by head.

Legend: M rows, N columns.
Least bytes, b an element: forward 2 M N b; backward 3 M N b and the partial sums of the weight's gradient.
Source: Zhang and Sennrich 2019, arXiv 1910.07467, equation 4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.operator import require_vectors, runs_triton
from kernels.row_norm import normalized
from kernels.tiles import require_columns, rows_of

NAME = "rms_norm"


def reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm in the arithmetic of x's dtype: x / sqrt(mean(x^2) + eps) * weight, last dim N."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dim of x [..., N] with weight [N], in fp32, rounded once; 1 / root is kept in fp32.

    The kernel on CUDA, or interpreted; elsewhere the plain reference.

    Raises:
        UnsupportedInputError: a dtype, device or shape that the kernel does not take.
    """
    require_columns(NAME, require_vectors(NAME, x, weight=weight))
    if not runs_triton(x):
        return reference(x, weight, eps)
    y: Tensor = normalized(rows_of(x), None, weight.contiguous(), None, None, None, eps, 1.0, False, True)[0]
    return y.view(x.shape)
