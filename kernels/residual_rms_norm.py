"""RMSNorm of a residual sum, s = x + f and y = RMSNorm(s), forward and backward; the stream goes on with s.

Legend: M rows, N columns.
Least bytes, b an element: forward 4 M N b; backward 4 M N b, of s, the gradients of both outputs and their sum, and
the partial sums of the weight's gradient.
"""

from __future__ import annotations

from torch import Tensor

from kernels.operator import require, require_vectors, runs_triton
from kernels.rms_norm import reference as rms_norm_reference
from kernels.row_norm import normalized
from kernels.tiles import require_columns, rows_of

NAME = "residual_rms_norm"


def reference(x: Tensor, f: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """RMSNorm of s = x + f over the last dim N, and s, in the arithmetic of x's dtype."""
    total = x + f
    return rms_norm_reference(total, weight, eps), total


def residual_rms_norm(x: Tensor, f: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """RMSNorm over the last dim of s = x + f, x and f [..., N] with weight [N]; and s.

    s is rounded to x's dtype before its RMSNorm is taken. The kernel on CUDA, or interpreted; elsewhere the plain
    reference.

    Raises:
        UnsupportedInputError: a dtype, device or shape that the kernel does not take.
    """
    require_columns(NAME, require_vectors(NAME, x, weight=weight))
    require(f.dtype == x.dtype, NAME, "dtype of f", f"x's, {x.dtype}", f.dtype)
    require(f.device == x.device, NAME, "device of f", f"x's, {x.device}", f.device)
    require(f.shape == x.shape, NAME, "shape of f", f"x's, {tuple(x.shape)}", tuple(f.shape))
    if not runs_triton(x):
        return reference(x, f, weight, eps)
    y, _, s, _, _ = normalized(rows_of(x), rows_of(f), weight.contiguous(), None, None, None, eps, 1.0, True, True)
    return y.view(x.shape), s.view(x.shape)
