"""The two LayerNorms of a parallel residual from one read of their input, forward and backward.

y1 and y2 are LayerNorm(x) with weights and biases of their own; mean and 1 / deviation are common to both.

Legend: M rows, N columns; x_MN the input, dy1_MN and dy2_MN the gradients of the outputs, R rows that a program holds
at once.
Least bytes, b an element: forward 3 M N b; backward 4 M N b and the partial sums of the four weights' gradients. Two
LayerNorms and the sum of their gradients move 4 M N b and 9 M N b.
"""

from __future__ import annotations

from torch import Tensor

from kernels.layer_norm import reference as layer_norm_reference
from kernels.operator import contiguous, require, require_vectors, runs_triton
from kernels.row_norm import normalized
from kernels.tiles import require_columns, rows_of

NAME = "parallel_layer_norms"


def reference(
    x: Tensor, weight1: Tensor, bias1: Tensor | None, weight2: Tensor, bias2: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Two LayerNorms over the last dim N in the arithmetic of x's dtype."""
    return layer_norm_reference(x, weight1, bias1, eps), layer_norm_reference(x, weight2, bias2, eps)


def parallel_layer_norms(
    x: Tensor, weight1: Tensor, bias1: Tensor | None, weight2: Tensor, bias2: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Two LayerNorms over the last dim of x [..., N], each with a weight and a bias [N], or both without bias.

    Mean and 1 / deviation are kept in fp32. The kernel on CUDA, or interpreted; elsewhere the plain reference.

    Raises:
        UnsupportedInputError: a dtype, device or shape that the kernel does not take.
    """
    require_columns(NAME, require_vectors(NAME, x, weight1=weight1, bias1=bias1, weight2=weight2, bias2=bias2))
    require((bias1 is None) == (bias2 is None), NAME, "biases", "both or none", "one")
    if not runs_triton(x):
        return reference(x, weight1, bias1, weight2, bias2, eps)
    vectors = (weight1.contiguous(), contiguous(bias1), weight2.contiguous(), contiguous(bias2))
    y1, y2, _, _, _ = normalized(rows_of(x), None, *vectors, eps, 1.0, False, False)
    return y1.view(x.shape), y2.view(x.shape)
