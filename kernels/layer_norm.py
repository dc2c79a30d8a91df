"""LayerNorm over the last dim, forward and backward; also that of embeddings.

Legend: M rows, N columns; x_MN the input, dy_MN the gradient of the output, R rows that a program holds at once.
Least bytes, b an element: forward 2 M N b; backward 3 M N b and the partial sums of the weights' gradients.
The backward pass is that of a residual LayerNorm whose sum is x: kernels/residual_layer_norm.py has its kernel.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.operator import (
    block_of,
    launchable,
    operator,
    require,
    require_columns,
    require_float,
    rows_at_once,
    rows_of,
    runs_triton,
    warps_of,
)
from kernels.residual_layer_norm import layer_norm_gradients

NAME = "layer_norm"


def reference(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """LayerNorm in the arithmetic of x's dtype: (x - mean) / sqrt(variance + eps) * weight + bias, last dim N."""
    centred = x - x.mean(-1, keepdim=True)
    normal = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return normal * weight if bias is None else normal * weight + bias


@triton.jit
def _forward_kernel(  # noqa: PLR0913  # pointers, strides and sizes of one launch
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    mean_ptr,
    rstd_ptr,
    x_row,
    M,
    N,
    eps,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    x = tl.load(x_ptr + rows[:, None] * x_row + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=1) / N
    centred = tl.where(inside, x - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / N + eps)
    weight = tl.load(weight_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    y = centred * rstd[:, None] * weight[None, :]
    if HAS_BIAS:
        y += tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    tl.store(y_ptr + rows[:, None] * N + columns[None, :], y.to(y_ptr.dtype.element_ty), mask=inside)
    tl.store(mean_ptr + rows, mean, mask=rows < M)
    tl.store(rstd_ptr + rows, rstd, mask=rows < M)


@operator(NAME)
def _forward(x_MN: Tensor, weight_N: Tensor, bias_N: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = x_MN.shape
    y = torch.empty((rows, columns), dtype=x_MN.dtype, device=x_MN.device)
    mean = torch.empty(rows, dtype=torch.float32, device=x_MN.device)
    rstd = torch.empty_like(mean)
    if rows:
        block = block_of(columns)
        at_once = rows_at_once(block)
        launchable(_forward_kernel)[(triton.cdiv(rows, at_once),)](
            x_MN,
            weight_N,
            weight_N if bias_N is None else bias_N,
            y,
            mean,
            rstd,
            x_MN.stride(0),
            rows,
            columns,
            eps,
            HAS_BIAS=bias_N is not None,
            ROWS=at_once,
            BLOCK=block,
            num_warps=warps_of(at_once * block),
        )
    return y, mean, rstd


@_forward.register_fake
def _forward_shapes(x_MN: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    mean_M, rstd_M = (x_MN.new_empty(x_MN.shape[0], dtype=torch.float32) for _ in range(2))
    return x_MN.new_empty(x_MN.shape), mean_M, rstd_M


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x_MN, weight_N, bias_N, _ = inputs
    ctx.has_bias = bias_N is not None
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.save_for_backward(x_MN, weight_N, output[1], output[2])


def _gradients(ctx: Any, dy_MN: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x_MN, weight_N, mean_M, rstd_M = ctx.saved_tensors
    _, dx, dweight, dbias = layer_norm_gradients(rows_of(dy_MN), None, x_MN, None, weight_N, mean_M, rstd_M, 1.0)
    return dx, dweight, dbias if ctx.has_bias else None, None


_forward.register_autograd(_gradients, setup_context=_keep)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """LayerNorm over the last dim of x [..., N] with weight and bias [N]; mean and 1 / deviation are kept in fp32.

    The kernel on CUDA, or interpreted; elsewhere the plain reference.

    Raises:
        UnsupportedInputError: a dtype, device or shape that the kernel does not take.
    """
    require_float(NAME, x=x, weight=weight, **({} if bias is None else {"bias": bias}))
    require(x.dim() >= 1, NAME, "dims of x", "1 or more", x.dim())
    columns = x.shape[-1]
    require_columns(NAME, columns)
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None:
            require(tensor.shape == (columns,), NAME, f"shape of {name}", f"({columns},)", tuple(tensor.shape))
    if not runs_triton(x):
        return reference(x, weight, bias, eps)
    y: Tensor = _forward(rows_of(x), weight.contiguous(), None if bias is None else bias.contiguous(), eps)[0]
    return y.view(x.shape)
