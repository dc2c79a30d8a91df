"""The kernels of all norms: LayerNorm or RMSNorm over the last dim, forward and backward.

They take a residual sum for input, s = alpha x + f, and a LayerNorm has a second output from a second weight where
wanted. The other modules of norms say which of it they launch, what they check, and how many bytes it moves.

Legend: M rows, N columns; x_MN the input, f_MN what is added, s_MN the sum, dy_MN, dy2_MN and ds_MN the gradients of
the outputs, R rows that a program holds at once. Where nothing is added, s is x and f is None.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.operator import launchable, operator
from kernels.tiles import programs_over_tiles, rows_of, stages_of, tile_of, warps_of

NAME = "row_norm"
SAMPLE = 32  # columns whose mean the sums of a row are taken about
# Rows of more columns are read piece by piece, once for the sums and again for the results, the second time from the L1
# or L2 cache: programs are small, and many share a multiprocessor. Compiled for sm_90 by Triton 3.7.1, 2026-11-30: held
# whole, rows of 12,288 with their sum took 88 registers of 16 warps, so that one program fitted.
MOST_COLUMNS_HELD = 8192
# A program of the backward pass that keeps the sums of all columns in registers has up to so many. Of longer rows other
# programs of the same launch have the sums, of GROUP rows and a block of columns each, and find them in the L2 cache.
MOST_COLUMNS_KEPT = 2048
PIECE = 4096
GROUP = 64
SUMS_ROWS, SUMS_COLUMNS = 8, 256  # that a program of these has at once


@triton.jit
def _wide(pointers, inside):
    return tl.load(pointers, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _sum(x_ptr, f_ptr, x_place, f_place, inside, alpha, ADDS: tl.constexpr):
    x = _wide(x_ptr + x_place, inside)
    if ADDS:
        x = alpha * x + _wide(f_ptr + f_place, inside)
    return x


@triton.jit
def _near(x_ptr, f_ptr, x_place, f_place, exists, N, alpha, ADDS: tl.constexpr, SAMPLE: tl.constexpr):
    """A number near the mean of each row, from its first columns.

    With it both sums of a row are taken in one reduction: about 0, the squares of a large mean would hide the variance.
    """
    few = tl.arange(0, SAMPLE)[None, :]
    sample = _sum(x_ptr, f_ptr, x_place + few, f_place + few, exists & (few < N), alpha, ADDS)
    return tl.sum(sample, axis=1) / tl.minimum(N, SAMPLE)


@triton.jit
def _forward_kernel(  # noqa: PLR0913  # long: one Triton program, its pointers and strides
    x_ptr,
    f_ptr,
    weight_ptr,
    bias_ptr,
    weight2_ptr,
    bias2_ptr,
    y_ptr,
    y2_ptr,
    s_ptr,
    mean_ptr,
    rstd_ptr,
    x_row,
    f_row,
    M,
    N,
    eps,
    alpha,
    RMS: tl.constexpr,
    ADDS: tl.constexpr,
    KEEPS: tl.constexpr,
    TWO: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SAMPLE: tl.constexpr,
):
    eps = tl.cast(eps, tl.float32)  # torch.compile hands Python's numbers over in fp64
    alpha = tl.cast(alpha, tl.float32)
    columns = tl.arange(0, BLOCK)
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    place = rows[:, None] * N + columns[None, :]
    x_place, f_place = rows[:, None] * x_row, rows[:, None] * f_row
    s = _sum(x_ptr, f_ptr, x_place + columns[None, :], f_place + columns[None, :], inside, alpha, ADDS)
    if KEEPS:
        rounded = s.to(s_ptr.dtype.element_ty)
        tl.store(s_ptr + place, rounded, mask=inside)
        s = rounded.to(tl.float32)
    if RMS:
        centred = s  # 0 outside
        variance = tl.sum(s * s, axis=1) / N
    else:
        near = _near(x_ptr, f_ptr, x_place, f_place, (rows < M)[:, None], N, alpha, ADDS, SAMPLE)
        apart = tl.where(inside, s - near[:, None], 0.0)
        level = tl.sum(apart, axis=1) / N
        variance = tl.maximum(tl.sum(apart * apart, axis=1) / N - level * level, 0.0)
        mean = near + level
        centred = apart - level[:, None]
    rstd = 1.0 / tl.sqrt(variance + eps)
    normal = centred * rstd[:, None]
    y = normal * _wide(weight_ptr + columns, columns < N)[None, :]
    if HAS_BIAS:
        y += _wide(bias_ptr + columns, columns < N)[None, :]
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)
    if TWO:
        y2 = normal * _wide(weight2_ptr + columns, columns < N)[None, :]
        if HAS_BIAS:
            y2 += _wide(bias2_ptr + columns, columns < N)[None, :]
        tl.store(y2_ptr + place, y2.to(y2_ptr.dtype.element_ty), mask=inside)
    if not RMS:
        tl.store(mean_ptr + rows, mean, mask=rows < M)
    tl.store(rstd_ptr + rows, rstd, mask=rows < M)


@triton.jit
def _wide_forward_kernel(  # noqa: PLR0913  # long: one Triton program, its pointers and strides
    x_ptr,
    f_ptr,
    weight_ptr,
    bias_ptr,
    weight2_ptr,
    bias2_ptr,
    y_ptr,
    y2_ptr,
    s_ptr,
    mean_ptr,
    rstd_ptr,
    x_row,
    f_row,
    M,  # noqa: ARG001  # the arguments are those of _forward_kernel
    N,
    eps,
    alpha,
    RMS: tl.constexpr,
    ADDS: tl.constexpr,
    KEEPS: tl.constexpr,
    TWO: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PIECE: tl.constexpr,
    SAMPLE: tl.constexpr,
):
    eps = tl.cast(eps, tl.float32)
    alpha = tl.cast(alpha, tl.float32)
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_row
    f_ptr += row * f_row
    y_ptr += row * N
    y2_ptr += row * N
    s_ptr += row * N
    near = 0.0
    if not RMS:
        start = tl.zeros([1, 1], dtype=tl.int64)
        near = tl.sum(_near(x_ptr, f_ptr, start, start, start == 0, N, alpha, ADDS, SAMPLE), axis=0)
    levels = tl.zeros([PIECE], dtype=tl.float32)
    squares = tl.zeros([PIECE], dtype=tl.float32)
    for first in tl.range(0, N, PIECE, num_stages=1):
        columns = first + tl.arange(0, PIECE)
        s = _sum(x_ptr, f_ptr, columns, columns, columns < N, alpha, ADDS)
        if KEEPS:
            rounded = s.to(s_ptr.dtype.element_ty)
            tl.store(s_ptr + columns, rounded, mask=columns < N)
            s = rounded.to(tl.float32)
        apart = tl.where(columns < N, s - near, 0.0)
        levels += apart
        squares += apart * apart
    level = 0.0 if RMS else tl.sum(levels, axis=0) / N
    mean = near + level
    rstd = 1.0 / tl.sqrt(tl.maximum(tl.sum(squares, axis=0) / N - level * level, 0.0) + eps)
    if not RMS:
        tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    if KEEPS:
        tl.debug_barrier()  # other threads may have stored what is read
    for first in tl.range(0, N, PIECE, num_stages=1):
        columns = first + tl.arange(0, PIECE)
        inside = columns < N
        s = _wide(s_ptr + columns, inside) if KEEPS else _sum(x_ptr, f_ptr, columns, columns, inside, alpha, ADDS)
        normal = (s - mean) * rstd
        y = normal * _wide(weight_ptr + columns, inside)
        if HAS_BIAS:
            y += _wide(bias_ptr + columns, inside)
        tl.store(y_ptr + columns, y.to(y_ptr.dtype.element_ty), mask=inside)
        if TWO:
            y2 = normal * _wide(weight2_ptr + columns, inside)
            if HAS_BIAS:
                y2 += _wide(bias2_ptr + columns, inside)
            tl.store(y2_ptr + columns, y2.to(y2_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward_kernel(  # noqa: PLR0913  # long: one Triton program, its pointers and strides
    dy_ptr,
    dy2_ptr,
    ds_ptr,
    x_ptr,
    f_ptr,
    weight_ptr,
    weight2_ptr,
    mean_ptr,
    rstd_ptr,
    dx_ptr,
    df_ptr,
    sums_ptr,
    dy_row,
    dy2_row,
    ds_row,
    x_row,
    f_row,
    M,
    N,
    alpha,
    RMS: tl.constexpr,
    HAS_DS: tl.constexpr,
    ADDS: tl.constexpr,
    SCALES: tl.constexpr,
    TWO: tl.constexpr,
    STAGES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    alpha = tl.cast(alpha, tl.float32)
    columns = tl.arange(0, BLOCK)
    weight_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    if not RMS:
        bias_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    if TWO:
        weight2_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
        bias2_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, M, tl.num_programs(0) * ROWS, num_stages=STAGES):
        rows = (first + tl.arange(0, ROWS)).to(tl.int64)
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        rstd = tl.load(rstd_ptr + rows, mask=rows < M, other=0.0)
        x_place = rows[:, None] * x_row + columns[None, :]
        s = _sum(x_ptr, f_ptr, x_place, rows[:, None] * f_row + columns[None, :], inside, alpha, ADDS)
        if not RMS:
            s -= tl.load(mean_ptr + rows, mask=rows < M, other=0.0)[:, None]
        normal = s * rstd[:, None]
        dy = _wide(dy_ptr + rows[:, None] * dy_row + columns[None, :], inside)
        scaled = dy * _wide(weight_ptr + columns, columns < N)[None, :]
        if TWO:
            dy2 = _wide(dy2_ptr + rows[:, None] * dy2_row + columns[None, :], inside)
            scaled += dy2 * _wide(weight2_ptr + columns, columns < N)[None, :]
            weight2_sums += dy2 * normal
            bias2_sums += dy2
        along = tl.sum(scaled * normal, axis=1) / N
        if RMS:
            df = (scaled - normal * along[:, None]) * rstd[:, None]
        else:
            level = tl.sum(scaled, axis=1) / N
            df = (scaled - normal * along[:, None] - level[:, None]) * rstd[:, None]
        if HAS_DS:
            df += _wide(ds_ptr + rows[:, None] * ds_row + columns[None, :], inside)
        place = rows[:, None] * N + columns[None, :]
        tl.store(df_ptr + place, df.to(df_ptr.dtype.element_ty), mask=inside)
        if SCALES:
            tl.store(dx_ptr + place, (alpha * df).to(dx_ptr.dtype.element_ty), mask=inside)
        weight_sums += dy * normal
        if not RMS:
            bias_sums += dy
    place = tl.program_id(0) * (1 if RMS else 4 if TWO else 2) * N + columns
    tl.store(sums_ptr + place, tl.sum(weight_sums, axis=0), mask=columns < N)
    if not RMS:
        tl.store(sums_ptr + place + N, tl.sum(bias_sums, axis=0), mask=columns < N)
    if TWO:
        tl.store(sums_ptr + place + 2 * N, tl.sum(weight2_sums, axis=0), mask=columns < N)
        tl.store(sums_ptr + place + 3 * N, tl.sum(bias2_sums, axis=0), mask=columns < N)


@triton.jit
def _wide_backward_kernel(  # noqa: PLR0913  # long: one Triton program, its pointers and strides
    dy_ptr,
    dy2_ptr,
    ds_ptr,
    x_ptr,
    f_ptr,
    weight_ptr,
    weight2_ptr,
    mean_ptr,
    rstd_ptr,
    dx_ptr,
    df_ptr,
    sums_ptr,
    dy_row,
    dy2_row,
    ds_row,
    x_row,
    f_row,
    M,
    N,
    alpha,
    RMS: tl.constexpr,
    HAS_DS: tl.constexpr,
    ADDS: tl.constexpr,
    SCALES: tl.constexpr,
    TWO: tl.constexpr,
    GROUP: tl.constexpr,
    PIECE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    # GROUP programs of a row each, then those that have the sums of these rows, a block of columns each. Neither needs
    # what the other computes; together they read x and dy from memory once.
    alpha = tl.cast(alpha, tl.float32)
    blocks = tl.cdiv(N, COLUMNS)
    group = tl.program_id(0) // (GROUP + blocks)
    number = tl.program_id(0) % (GROUP + blocks)
    row = (group * GROUP + number).to(tl.int64)
    if number >= GROUP:
        columns = (number - GROUP) * COLUMNS + tl.arange(0, COLUMNS)
        weight_sums = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        bias_sums = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        weight2_sums = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        bias2_sums = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        for first in tl.range(group * GROUP, tl.minimum(group * GROUP + GROUP, M), ROWS, num_stages=1):
            rows = (first + tl.arange(0, ROWS)).to(tl.int64)
            inside = (rows < M)[:, None] & (columns < N)[None, :]
            x_place = rows[:, None] * x_row + columns[None, :]
            normal = _sum(x_ptr, f_ptr, x_place, rows[:, None] * f_row + columns[None, :], inside, alpha, ADDS)
            dy = _wide(dy_ptr + rows[:, None] * dy_row + columns[None, :], inside)
            if not RMS:
                normal -= tl.load(mean_ptr + rows, mask=rows < M, other=0.0)[:, None]
            normal *= tl.load(rstd_ptr + rows, mask=rows < M, other=0.0)[:, None]
            weight_sums += dy * normal
            if not RMS:
                bias_sums += dy
            if TWO:
                dy2 = _wide(dy2_ptr + rows[:, None] * dy2_row + columns[None, :], inside)
                weight2_sums += dy2 * normal
                bias2_sums += dy2
        place = group.to(tl.int64) * (1 if RMS else 4 if TWO else 2) * N + columns
        tl.store(sums_ptr + place, tl.sum(weight_sums, axis=0), mask=columns < N)
        if not RMS:
            tl.store(sums_ptr + place + N, tl.sum(bias_sums, axis=0), mask=columns < N)
        if TWO:
            tl.store(sums_ptr + place + 2 * N, tl.sum(weight2_sums, axis=0), mask=columns < N)
            tl.store(sums_ptr + place + 3 * N, tl.sum(bias2_sums, axis=0), mask=columns < N)
    elif row < M:
        dy_ptr += row * dy_row
        dy2_ptr += row * dy2_row
        ds_ptr += row * ds_row
        x_ptr += row * x_row
        f_ptr += row * f_row
        dx_ptr += row * N
        df_ptr += row * N
        mean = 0.0 if RMS else tl.load(mean_ptr + row)
        rstd = tl.load(rstd_ptr + row)
        along_sums = tl.zeros([PIECE], dtype=tl.float32)
        level_sums = tl.zeros([PIECE], dtype=tl.float32)
        for first in tl.range(0, N, PIECE, num_stages=1):
            columns = first + tl.arange(0, PIECE)
            inside = columns < N
            s = _sum(x_ptr, f_ptr, columns, columns, inside, alpha, ADDS)
            scaled = _wide(dy_ptr + columns, inside) * _wide(weight_ptr + columns, inside)
            if TWO:
                scaled += _wide(dy2_ptr + columns, inside) * _wide(weight2_ptr + columns, inside)
            along_sums += scaled * (s - mean)
            level_sums += scaled
        along = tl.sum(along_sums, axis=0) * rstd * rstd / N
        level = 0.0 if RMS else tl.sum(level_sums, axis=0) / N
        for first in tl.range(0, N, PIECE, num_stages=1):
            columns = first + tl.arange(0, PIECE)
            inside = columns < N
            s = _sum(x_ptr, f_ptr, columns, columns, inside, alpha, ADDS)
            df = _wide(dy_ptr + columns, inside) * _wide(weight_ptr + columns, inside)
            if TWO:
                df += _wide(dy2_ptr + columns, inside) * _wide(weight2_ptr + columns, inside)
            df = (df - (s - mean) * along - level) * rstd
            if HAS_DS:
                df += _wide(ds_ptr + columns, inside)
            tl.store(df_ptr + columns, df.to(df_ptr.dtype.element_ty), mask=inside)
            if SCALES:
                tl.store(dx_ptr + columns, (alpha * df).to(dx_ptr.dtype.element_ty), mask=inside)


@operator(NAME)
def normalized(  # long: one launch, its arguments and sizes
    x_MN: Tensor,
    f_MN: Tensor | None,
    weight_N: Tensor,
    bias_N: Tensor | None,
    weight2_N: Tensor | None,
    bias2_N: Tensor | None,
    eps: float,
    alpha: float,
    keep_sum: bool,
    rms: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The norm of s = alpha x + f by each weight and bias; s; its mean and 1 / deviation in fp32.

    Empty are the second output without a second weight, s where it is not kept, and of an RMSNorm the mean. Kept, s is
    rounded to x's dtype before its norm is taken. Vectors are contiguous, and both weights have a bias, or none; an
    RMSNorm has one weight alone, and 1 / root mean square for its deviation.
    """
    assert not (rms and (bias_N is not None or weight2_N is not None))
    rows, columns = x_MN.shape
    two = weight2_N is not None
    y = torch.empty((rows, columns), dtype=x_MN.dtype, device=x_MN.device)
    y2 = torch.empty((rows if two else 0, columns), dtype=x_MN.dtype, device=x_MN.device)
    s = torch.empty((rows if keep_sum else 0, columns), dtype=x_MN.dtype, device=x_MN.device)
    rstd = torch.empty(rows, dtype=torch.float32, device=x_MN.device)
    mean = torch.empty(0 if rms else rows, dtype=torch.float32, device=x_MN.device)
    if rows:
        at_once, block, _ = tile_of(columns)
        arguments = (
            x_MN,
            x_MN if f_MN is None else f_MN,
            weight_N,
            weight_N if bias_N is None else bias_N,
            weight_N if weight2_N is None else weight2_N,
            weight_N if bias2_N is None else bias2_N,
            y,
            y2 if two else y,
            s if keep_sum else y,
            rstd if rms else mean,
            rstd,
            x_MN.stride(0),
            0 if f_MN is None else f_MN.stride(0),
            rows,
            columns,
            eps,
            alpha,
        )
        variant = {
            "RMS": rms,
            "ADDS": f_MN is not None,
            "KEEPS": keep_sum,
            "TWO": two,
            "HAS_BIAS": bias_N is not None,
            "SAMPLE": min(SAMPLE, block),
        }
        if (1 + two) * block <= MOST_COLUMNS_HELD:
            launchable(_forward_kernel)[(triton.cdiv(rows, at_once),)](
                *arguments,
                **variant,
                ROWS=at_once,
                BLOCK=block,
                num_warps=warps_of(at_once * block, x_MN.device, each=32 if block > 2048 else 16),
            )
        else:
            launchable(_wide_forward_kernel)[(rows,)](
                *arguments, **variant, PIECE=PIECE, num_warps=warps_of(PIECE, x_MN.device)
            )
    return y, y2, s, mean, rstd


@operator(f"{NAME}_backward")
def _backward(  # long: one launch, its arguments and sizes
    dy_MN: Tensor,
    dy2_MN: Tensor | None,
    ds_MN: Tensor | None,
    x_MN: Tensor,
    f_MN: Tensor | None,
    weight_N: Tensor,
    weight2_N: Tensor | None,
    mean_M: Tensor | None,
    rstd_M: Tensor,
    alpha: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x (empty where alpha is 1: it is that of f), f, weight, bias, second weight and bias (or empty).

    Without f, x is the sum itself; without a mean it is an RMSNorm.
    """
    rows, columns = x_MN.shape
    rms = mean_M is None
    sums_of_column = 1 if rms else 2 if weight2_N is None else 4
    df = torch.empty((rows, columns), dtype=x_MN.dtype, device=x_MN.device)
    dx = torch.empty((0 if alpha == 1 else rows, columns), dtype=x_MN.dtype, device=x_MN.device)
    at_once, block, _ = tile_of(columns)
    kept = block <= MOST_COLUMNS_KEPT
    values = max(2, sums_of_column) // 2 * at_once * block
    groups = programs_over_tiles(rows, at_once, values // at_once, 1, x_MN.device) if kept else triton.cdiv(rows, GROUP)
    sums = torch.empty((groups, sums_of_column, columns), dtype=torch.float32, device=x_MN.device)
    arguments = (
        dy_MN,
        dy_MN if dy2_MN is None else dy2_MN,
        dy_MN if ds_MN is None else ds_MN,
        x_MN,
        x_MN if f_MN is None else f_MN,
        weight_N,
        weight_N if weight2_N is None else weight2_N,
        rstd_M if rms else mean_M,
        rstd_M,
        df if alpha == 1 else dx,
        df,
        sums,
        dy_MN.stride(0),
        0 if dy2_MN is None else dy2_MN.stride(0),
        0 if ds_MN is None else ds_MN.stride(0),
        x_MN.stride(0),
        0 if f_MN is None else f_MN.stride(0),
        rows,
        columns,
        alpha,
    )
    variant = {
        "RMS": rms,
        "HAS_DS": ds_MN is not None,
        "ADDS": f_MN is not None,
        "SCALES": alpha != 1,
        "TWO": weight2_N is not None,
    }
    if kept:
        launchable(_backward_kernel)[(groups,)](
            *arguments,
            **variant,
            STAGES=stages_of(at_once * block * 3 * x_MN.element_size()),
            ROWS=at_once,
            BLOCK=block,
            num_warps=warps_of(values, x_MN.device),
        )
    elif rows:
        launchable(_wide_backward_kernel)[(groups * (GROUP + triton.cdiv(columns, SUMS_COLUMNS)),)](
            *arguments,
            **variant,
            GROUP=GROUP,
            PIECE=PIECE if weight2_N is None else PIECE // 2,
            ROWS=SUMS_ROWS,
            COLUMNS=SUMS_COLUMNS,
            num_warps=warps_of(PIECE, x_MN.device),
        )
    weights = [weight_N, weight_N, *([weight_N] if weight2_N is None else [weight2_N, weight2_N])][:sums_of_column]
    of_vectors = [sums[:, place].sum(0).to(weight.dtype) for place, weight in enumerate(weights)]
    of_vectors += [weight_N.new_empty(0) for _ in range(4 - len(weights))]
    return dx, df, of_vectors[0], of_vectors[1], of_vectors[2], of_vectors[3]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x_MN, f_MN, weight_N, bias_N, weight2_N, _, _, ctx.alpha, ctx.keeps, rms = inputs
    _, y2_MN, s_MN, mean_M, rstd_M = output
    ctx.adds, ctx.two, ctx.has_bias = f_MN is not None, weight2_N is not None, bias_N is not None
    ctx.set_materialize_grads(ctx.two)  # the sum may go nowhere else, and zeros cost as much as a gradient
    empty = [tensor for tensor, full in ((y2_MN, ctx.two), (s_MN, ctx.keeps)) if not full]
    ctx.mark_non_differentiable(*empty, mean_M, rstd_M)
    ctx.save_for_backward(
        *((s_MN, None) if ctx.keeps else (x_MN, f_MN)), weight_N, weight2_N, None if rms else mean_M, rstd_M
    )


def _gradients(
    ctx: Any, dy_MN: Tensor | None, dy2_MN: Tensor | None, ds_MN: Tensor | None, *_: object
) -> tuple[Tensor | None, ...]:
    if dy_MN is None:
        return None if ds_MN is None else ctx.alpha * ds_MN, ds_MN, *(None,) * 8
    dy2_MN = rows_of(dy2_MN) if ctx.two and dy2_MN is not None else None
    ds_MN = rows_of(ds_MN) if ctx.keeps and ds_MN is not None else None
    dx, df, *of_vectors = _backward(rows_of(dy_MN), dy2_MN, ds_MN, *ctx.saved_tensors, ctx.alpha)
    wanted = (True, ctx.has_bias, ctx.two, ctx.two and ctx.has_bias)
    of_vectors = [gradient if want else None for gradient, want in zip(of_vectors, wanted, strict=True)]
    return df if ctx.alpha == 1 else dx, df if ctx.adds else None, *of_vectors, *(None,) * 4


normalized.register_autograd(_gradients, setup_context=_keep)
