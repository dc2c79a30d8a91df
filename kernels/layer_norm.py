"""LayerNorm over the last dim, forward and backward; also that of embeddings.

Legend: M rows, N columns.
Least bytes, b an element: forward 2 M N b; backward 3 M N b and the partial sums of the weights' gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.operator import contiguous, require_vectors, runs_triton
from kernels.row_norm import normalized
from kernels.tiles import require_columns, rows_of

NAME = "layer_norm"


def reference(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """LayerNorm in the arithmetic of x's dtype: (x - mean) / sqrt(variance + eps) * weight + bias, last dim N."""
    centred = x - x.mean(-1, keepdim=True)
    normal = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return normal * weight if bias is None else normal * weight + bias


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """LayerNorm over the last dim of x [..., N] with weight and bias [N]; mean and 1 / deviation are kept in fp32.

    The kernel on CUDA, or interpreted; elsewhere the plain reference.

    Raises:
        UnsupportedInputError: a dtype, device or shape that the kernel does not take.
    """
    require_columns(NAME, require_vectors(NAME, x, weight=weight, bias=bias))
    if not runs_triton(x):
        return reference(x, weight, bias, eps)
    vectors = (weight.contiguous(), contiguous(bias), None, None)
    y: Tensor = normalized(rows_of(x), None, *vectors, eps, 1.0, False, False)[0]
    return y.view(x.shape)
