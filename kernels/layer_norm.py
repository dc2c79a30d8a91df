"""LayerNorm over the last dim, forward and backward; also that of embeddings.

Legend: M rows, N columns; x_MN the input, dy_MN the gradient of the output, R rows that a program holds at once.
Least bytes, b an element: forward 2 M N b; backward 3 M N b and the partial sums of the weights' gradients.
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
    programs_over_rows,
    require,
    require_columns,
    require_float,
    rows_at_once,
    rows_of,
    runs_triton,
    warps_of,
)

NAME = "layer_norm"


def reference(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """LayerNorm in the arithmetic of x's dtype: (x - mean) / sqrt(variance + eps) * weight + bias, last dim N."""
    centred = x - x.mean(-1, keepdim=True)
    normal = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return normal * weight if bias is None else normal * weight + bias


@triton.jit
def _forward_kernel(
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


@triton.jit
def _backward_kernel(
    dy_ptr,
    x_ptr,
    weight_ptr,
    mean_ptr,
    rstd_ptr,
    dx_ptr,
    weight_sums_ptr,
    bias_sums_ptr,
    dy_row,
    x_row,
    M,
    N,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    weight = tl.load(weight_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    weight_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    bias_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for first in range(program * ROWS, M, tl.num_programs(0) * ROWS):
        rows = (first + tl.arange(0, ROWS)).to(tl.int64)
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        x = tl.load(x_ptr + rows[:, None] * x_row + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + rows[:, None] * dy_row + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + rows, mask=rows < M, other=0.0)
        rstd = tl.load(rstd_ptr + rows, mask=rows < M, other=0.0)
        normal = tl.where(inside, (x - mean[:, None]) * rstd[:, None], 0.0)
        scaled = dy * weight[None, :]
        along = tl.sum(scaled * normal, axis=1) / N
        level = tl.sum(scaled, axis=1) / N
        dx = (scaled - normal * along[:, None] - level[:, None]) * rstd[:, None]
        tl.store(dx_ptr + rows[:, None] * N + columns[None, :], dx.to(dx_ptr.dtype.element_ty), mask=inside)
        weight_sums += dy * normal
        bias_sums += dy
    place = program * N + columns
    tl.store(weight_sums_ptr + place, tl.sum(weight_sums, axis=0), mask=columns < N)
    tl.store(bias_sums_ptr + place, tl.sum(bias_sums, axis=0), mask=columns < N)


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


@operator(f"{NAME}_backward")
def _backward(
    dy_MN: Tensor, x_MN: Tensor, weight_N: Tensor, mean_M: Tensor, rstd_M: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = x_MN.shape
    dx = torch.empty((rows, columns), dtype=x_MN.dtype, device=x_MN.device)
    block = block_of(columns)
    at_once = rows_at_once(block)
    programs = programs_over_rows(rows, at_once, x_MN.device)
    sums = torch.empty((2, programs, columns), dtype=torch.float32, device=x_MN.device)
    launchable(_backward_kernel)[(programs,)](
        dy_MN,
        x_MN,
        weight_N,
        mean_M,
        rstd_M,
        dx,
        sums[0],
        sums[1],
        dy_MN.stride(0),
        x_MN.stride(0),
        rows,
        columns,
        ROWS=at_once,
        BLOCK=block,
        num_warps=warps_of(at_once * block),
    )
    return dx, sums[0].sum(0).to(weight_N.dtype), sums[1].sum(0).to(weight_N.dtype)


@_forward.register_fake
def _forward_shapes(x_MN: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    mean_M, rstd_M = (x_MN.new_empty(x_MN.shape[0], dtype=torch.float32) for _ in range(2))
    return x_MN.new_empty(x_MN.shape), mean_M, rstd_M


@_backward.register_fake
def _backward_shapes(_: Tensor, x_MN: Tensor, weight_N: Tensor, *__: object) -> tuple[Tensor, Tensor, Tensor]:
    return x_MN.new_empty(x_MN.shape), torch.empty_like(weight_N), torch.empty_like(weight_N)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x_MN, weight_N, bias_N, _ = inputs
    ctx.has_bias = bias_N is not None
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.save_for_backward(x_MN, weight_N, output[1], output[2])


def _gradients(ctx: Any, dy_MN: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    dx, dweight, dbias = _backward(rows_of(dy_MN), *ctx.saved_tensors)
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
