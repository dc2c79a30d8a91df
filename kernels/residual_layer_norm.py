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

from typing import Any, Literal, overload

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.operator import (
    block_of,
    launchable,
    operator,
    programs_over_tiles,
    require,
    require_columns,
    require_float,
    rows_at_once,
    rows_of,
    runs_triton,
    stages_of,
    warps_of,
)

NAME = "residual_layer_norm"
# Columns whose sums one program of the backward pass holds: with 16 warps 112 to 128 registers a thread and at most 8
# bytes next to them; twice as many 184 to 1272 bytes (compiled for sm_90 by Triton 3.6.0 and 3.7.1, 2026-11-22).
MOST_SUMMED = 8192


def reference(
    x: Tensor, f: Tensor, weight: Tensor, bias: Tensor | None, eps: float, alpha: float
) -> tuple[Tensor, Tensor]:
    """LayerNorm of s = alpha x + f over the last dim N, and s, in the arithmetic of x's dtype."""
    total = alpha * x + f
    centred = total - total.mean(-1, keepdim=True)
    normal = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return normal * weight if bias is None else normal * weight + bias, total


@triton.jit
def _sum(x_ptr, f_ptr, x_place, f_place, inside, alpha, ADDS: tl.constexpr):
    x = tl.load(x_ptr + x_place, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        x = alpha * x + tl.load(f_ptr + f_place, mask=inside, other=0.0).to(tl.float32)
    return x


@triton.jit
def _forward_kernel(  # noqa: PLR0913  # pointers, strides and sizes of one launch
    x_ptr,
    f_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    s_ptr,
    mean_ptr,
    rstd_ptr,
    x_row,
    f_row,
    M,
    N,
    eps,
    alpha,
    HAS_BIAS: tl.constexpr,
    KEEPS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    place = rows[:, None] * N + columns[None, :]
    x_place = rows[:, None] * x_row + columns[None, :]
    s = _sum(x_ptr, f_ptr, x_place, rows[:, None] * f_row + columns[None, :], inside, alpha, ADDS=True)
    if KEEPS:
        rounded = s.to(s_ptr.dtype.element_ty)
        tl.store(s_ptr + place, rounded, mask=inside)
        s = rounded.to(tl.float32)
    mean = tl.sum(s, axis=1) / N
    centred = tl.where(inside, s - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / N + eps)
    weight = tl.load(weight_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    y = centred * rstd[:, None] * weight[None, :]
    if HAS_BIAS:
        y += tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)
    tl.store(mean_ptr + rows, mean, mask=rows < M)
    tl.store(rstd_ptr + rows, rstd, mask=rows < M)


@triton.jit
def _backward_kernel(  # noqa: PLR0913  # long: one Triton program, its pointers and strides
    dy_ptr,
    ds_ptr,
    x_ptr,
    f_ptr,
    weight_ptr,
    mean_ptr,
    rstd_ptr,
    dx_ptr,
    df_ptr,
    sums_ptr,
    dy_row,
    ds_row,
    x_row,
    f_row,
    M,
    N,
    alpha,
    HAS_DS: tl.constexpr,
    ADDS: tl.constexpr,
    SCALES: tl.constexpr,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # Where a row is longer than a block, neighbouring programs share it: each reads it whole for the two means, all but
    # one of them from the L2 cache, and has the sums and the gradients of one block of columns.
    program = tl.program_id(0) // PARTS
    programs = tl.num_programs(0) // PARTS
    columns = tl.program_id(0) % PARTS * BLOCK + tl.arange(0, BLOCK)
    weight_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    bias_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for first in tl.range(program * ROWS, M, programs * ROWS, num_stages=STAGES if PARTS == 1 else 1):
        rows = (first + tl.arange(0, ROWS)).to(tl.int64)
        mean = tl.load(mean_ptr + rows, mask=rows < M, other=0.0)
        rstd = tl.load(rstd_ptr + rows, mask=rows < M, other=0.0)
        if PARTS > 1:
            along_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
            level_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
            for start in tl.range(0, N, BLOCK, num_stages=STAGES):
                others = start + tl.arange(0, BLOCK)
                inside = (rows < M)[:, None] & (others < N)[None, :]
                x_place = rows[:, None] * x_row + others[None, :]
                s = _sum(x_ptr, f_ptr, x_place, rows[:, None] * f_row + others[None, :], inside, alpha, ADDS=ADDS)
                dy = tl.load(dy_ptr + rows[:, None] * dy_row + others[None, :], mask=inside, other=0.0).to(tl.float32)
                weight = tl.load(weight_ptr + others, mask=others < N, other=0.0).to(tl.float32)
                along_sums += dy * weight[None, :] * ((s - mean[:, None]) * rstd[:, None])
                level_sums += dy * weight[None, :]
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        x_place = rows[:, None] * x_row + columns[None, :]
        s = _sum(x_ptr, f_ptr, x_place, rows[:, None] * f_row + columns[None, :], inside, alpha, ADDS=ADDS)
        dy = tl.load(dy_ptr + rows[:, None] * dy_row + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
        normal = (s - mean[:, None]) * rstd[:, None]
        scaled = dy * weight[None, :]
        if PARTS == 1:
            along_sums = scaled * normal
            level_sums = scaled
        along = tl.sum(along_sums, axis=1) / N
        level = tl.sum(level_sums, axis=1) / N
        df = (scaled - normal * along[:, None] - level[:, None]) * rstd[:, None]
        if HAS_DS:
            df += tl.load(ds_ptr + rows[:, None] * ds_row + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        place = rows[:, None] * N + columns[None, :]
        tl.store(df_ptr + place, df.to(df_ptr.dtype.element_ty), mask=inside)
        if SCALES:
            tl.store(dx_ptr + place, (alpha * df).to(dx_ptr.dtype.element_ty), mask=inside)
        weight_sums += dy * normal
        bias_sums += dy
    place = program * 2 * N + columns
    tl.store(sums_ptr + place, tl.sum(weight_sums, axis=0), mask=columns < N)
    tl.store(sums_ptr + place + N, tl.sum(bias_sums, axis=0), mask=columns < N)


@operator(NAME)
def _forward(
    x_MN: Tensor, f_MN: Tensor, weight_N: Tensor, bias_N: Tensor | None, eps: float, alpha: float, keep_sum: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, columns = x_MN.shape
    y = torch.empty((rows, columns), dtype=x_MN.dtype, device=x_MN.device)
    s = torch.empty((rows if keep_sum else 0, columns), dtype=x_MN.dtype, device=x_MN.device)
    mean = torch.empty(rows, dtype=torch.float32, device=x_MN.device)
    rstd = torch.empty_like(mean)
    if rows:
        block = block_of(columns)
        at_once = rows_at_once(block)
        launchable(_forward_kernel)[(triton.cdiv(rows, at_once),)](
            x_MN,
            f_MN,
            weight_N,
            weight_N if bias_N is None else bias_N,
            y,
            s if keep_sum else y,
            mean,
            rstd,
            x_MN.stride(0),
            f_MN.stride(0),
            rows,
            columns,
            eps,
            alpha,
            HAS_BIAS=bias_N is not None,
            KEEPS=keep_sum,
            ROWS=at_once,
            BLOCK=block,
            num_warps=warps_of(at_once * block),
        )
    return y, s, mean, rstd


@operator(f"{NAME}_backward")
def layer_norm_gradients(
    dy_MN: Tensor,
    ds_MN: Tensor | None,
    x_MN: Tensor,
    f_MN: Tensor | None,
    weight_N: Tensor,
    mean_M: Tensor,
    rstd_M: Tensor,
    alpha: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x (empty where alpha = 1: it is that of f), f, weight and bias; without f, x is the sum itself.

    Without f and ds it is the backward pass of LayerNorm alone.
    """
    rows, columns = x_MN.shape
    df = torch.empty((rows, columns), dtype=x_MN.dtype, device=x_MN.device)
    dx = torch.empty((0 if alpha == 1 else rows, columns), dtype=x_MN.dtype, device=x_MN.device)
    block = min(block_of(columns), MOST_SUMMED)
    parts = triton.cdiv(columns, block)
    at_once = rows_at_once(block)
    programs = programs_over_tiles(rows, at_once, block, parts, x_MN.device)
    sums = torch.empty((programs, 2, columns), dtype=torch.float32, device=x_MN.device)
    launchable(_backward_kernel)[(programs * parts,)](
        dy_MN,
        dy_MN if ds_MN is None else ds_MN,
        x_MN,
        x_MN if f_MN is None else f_MN,
        weight_N,
        mean_M,
        rstd_M,
        df if alpha == 1 else dx,
        df,
        sums,
        dy_MN.stride(0),
        0 if ds_MN is None else ds_MN.stride(0),
        x_MN.stride(0),
        0 if f_MN is None else f_MN.stride(0),
        rows,
        columns,
        alpha,
        HAS_DS=ds_MN is not None,
        ADDS=f_MN is not None,
        SCALES=alpha != 1,
        PARTS=parts,
        STAGES=stages_of(at_once * block * x_MN.element_size() * 3),
        ROWS=at_once,
        BLOCK=block,
        num_warps=warps_of(at_once * block),
    )
    return dx, df, sums[:, 0].sum(0).to(weight_N.dtype), sums[:, 1].sum(0).to(weight_N.dtype)


@_forward.register_fake
def _forward_shapes(x_MN: Tensor, *more: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, columns = x_MN.shape
    mean_M, rstd_M = (x_MN.new_empty(rows, dtype=torch.float32) for _ in range(2))
    return x_MN.new_empty(x_MN.shape), x_MN.new_empty(rows if more[-1] else 0, columns), mean_M, rstd_M


@layer_norm_gradients.register_fake
def _backward_shapes(_: Tensor, __: Tensor | None, x_MN: Tensor, *more: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    weight_N, alpha = more[1], more[-1]
    dx_MN = x_MN.new_empty(0 if alpha == 1 else x_MN.shape[0], x_MN.shape[1])
    return dx_MN, x_MN.new_empty(x_MN.shape), torch.empty_like(weight_N), torch.empty_like(weight_N)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    x_MN, f_MN, weight_N, bias_N, _, ctx.alpha, ctx.keeps = inputs
    _, s_MN, mean_M, rstd_M = output
    ctx.has_bias = bias_N is not None
    ctx.set_materialize_grads(False)  # the sum may go nowhere else, and zeros cost as much as a gradient
    ctx.mark_non_differentiable(*(() if ctx.keeps else (s_MN,)), mean_M, rstd_M)
    ctx.save_for_backward(*((s_MN, None) if ctx.keeps else (x_MN, f_MN)), weight_N, mean_M, rstd_M)


def _gradients(ctx: Any, dy_MN: Tensor | None, ds_MN: Tensor | None, *_: object) -> tuple[Tensor | None, ...]:
    if dy_MN is None:
        return None if ds_MN is None else ctx.alpha * ds_MN, ds_MN, *(None,) * 5
    ds_MN = rows_of(ds_MN) if ctx.keeps and ds_MN is not None else None
    dx, df, dweight, dbias = layer_norm_gradients(rows_of(dy_MN), ds_MN, *ctx.saved_tensors, ctx.alpha)
    return df if ctx.alpha == 1 else dx, df, dweight, dbias if ctx.has_bias else None, None, None, None


_forward.register_autograd(_gradients, setup_context=_keep)


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
    require_float(NAME, x=x, f=f, weight=weight, **({} if bias is None else {"bias": bias}))
    require(x.dim() >= 1, NAME, "dims of x", "1 or more", x.dim())
    require(f.dtype == x.dtype, NAME, "dtype of f", f"x's, {x.dtype}", f.dtype)
    require(f.shape == x.shape, NAME, "shape of f", f"x's, {tuple(x.shape)}", tuple(f.shape))
    columns = x.shape[-1]
    require_columns(NAME, columns)
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None:
            require(tensor.shape == (columns,), NAME, f"shape of {name}", f"({columns},)", tuple(tensor.shape))
    if runs_triton(x):
        rows = (rows_of(x), rows_of(f), weight.contiguous(), None if bias is None else bias.contiguous())
        y, s, _, _ = _forward(*rows, eps, alpha, keep_sum)
    else:
        y, s = reference(x, f, weight, bias, eps, alpha)
    return (y.view(x.shape), s.view(x.shape)) if keep_sum else y.view(x.shape)
