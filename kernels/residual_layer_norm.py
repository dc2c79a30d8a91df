"""LayerNorm of a residual sum, s = alpha x + f and y = LayerNorm(s), forward and backward.

Pre-LayerNorm streams have alpha = 1 and go on with s; DeepNorm has alpha = sqrt(2 L) and needs s nowhere else.

Legend: M rows, N columns; x_MN the stream, f_MN what is added, s_MN their sum, dy_MN and ds_MN the gradients of the
outputs, R rows that a program holds at once.
Bytes, b an element, with the partial sums of the weights' gradients besides:
    s kept                  forward 4 M N b: s is rounded first, and y is LayerNorm of what is rounded, as in PyTorch
                            backward 3 M N b from s, and M N b more for ds
    s not kept              forward 3 M N b: s stays in fp32
                            backward 4 M N b from x and f. Writing s for it would cost in the forward pass what it saves
                            in the backward pass, and more where the forward pass is recomputed or has no backward pass.
    alpha other than 1      backward M N b more: the gradients of x and f differ, else they are one tensor
The least is 3 M N b forward (4 with s) and 3 M N b backward (4 with ds).
"""

from __future__ import annotations

from typing import Literal, overload

from torch import Tensor

from kernels.layer_norm import reference as layer_norm_reference
from kernels.operator import contiguous, require, require_vectors, runs_triton
from kernels.row_norm import normalized
from kernels.tiles import require_columns, rows_of

NAME = "residual_layer_norm"


def reference(
    x: Tensor, f: Tensor, weight: Tensor, bias: Tensor | None, eps: float, alpha: float
) -> tuple[Tensor, Tensor]:
    """LayerNorm of s = alpha x + f over the last dim N, and s, in the arithmetic of x's dtype."""
    total = alpha * x + f
    return layer_norm_reference(total, weight, bias, eps), total


@overload
def residual_layer_norm(
    x: Tensor,
    f: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    *,
    alpha: float = 1.0,
    keep_sum: Literal[False] = False,
) -> Tensor: ...


@overload
def residual_layer_norm(
    x: Tensor,
    f: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    *,
    alpha: float = 1.0,
    keep_sum: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def residual_layer_norm(
    x: Tensor, f: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *, alpha: float = 1.0, keep_sum: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """LayerNorm over the last dim of s = alpha x + f, x and f [..., N] with weight and bias [N]; and s if it is kept.

    Kept, s is rounded to x's dtype before its LayerNorm is taken; else it is a sum in fp32. The kernel on CUDA, or
    interpreted; elsewhere the plain reference.

    Raises:
        UnsupportedInputError: a dtype, device or shape that the kernel does not take.
    """
    require_columns(NAME, require_vectors(NAME, x, weight=weight, bias=bias))
    require(f.dtype == x.dtype, NAME, "dtype of f", f"x's, {x.dtype}", f.dtype)
    require(f.device == x.device, NAME, "device of f", f"x's, {x.device}", f.device)
    require(f.shape == x.shape, NAME, "shape of f", f"x's, {tuple(x.shape)}", tuple(f.shape))
    if runs_triton(x):
        vectors = (weight.contiguous(), contiguous(bias), None, None)
        y, _, s, _, _ = normalized(rows_of(x), rows_of(f), *vectors, eps, alpha, keep_sum, False)
    else:
        y, s = reference(x, f, weight, bias, eps, alpha)
    return (y.view(x.shape), s.view(x.shape)) if keep_sum else y.view(x.shape)
