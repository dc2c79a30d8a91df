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
# Sums of columns that one program of the backward pass holds, two or four a column: with 16 warps 94 to 128 registers a
# thread and at most 8 bytes next to them; twice as many sums 128 to 184 registers and 72 to 1272 bytes (compiled for
# sm_90 by Triton 3.6.0 and 3.7.1, 2026-11-22).
MOST_SUMS = 16_384
# Up to here a program of the forward pass has one tile, and many programs share a multiprocessor: one loads while
# others compute. Wider rows leave room for one or two programs, which load the next row ahead.
MOST_COLUMNS_OF_ONE_TILE = 4096
MOST_COLUMNS_HELD = 8192  # of weight and bias, in registers from row to row: 32 of a thread's 64
MOST_COLUMNS_OF_16_WARPS = 16_384  # of a row in the forward pass: 32 in each thread, wider ones have 32 warps
PIECE = 4096  # columns of the pieces in which the backward pass reads a long row for its means


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
    LOOPS: tl.constexpr,
    HOLDS: tl.constexpr,
    STAGES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    eps = tl.cast(eps, tl.float32)  # torch.compile hands Python's numbers over in fp64
    alpha = tl.cast(alpha, tl.float32)
    columns = tl.arange(0, BLOCK)
    if HOLDS:
        weight = _wide(weight_ptr + columns, columns < N)
        if HAS_BIAS:
            bias = _wide(bias_ptr + columns, columns < N)
    tiles = tl.cdiv(M - tl.program_id(0) * ROWS, tl.num_programs(0) * ROWS) if LOOPS else 1
    for tile in tl.range(0, tiles, num_stages=STAGES):
        first = (tl.program_id(0) + tile * tl.num_programs(0)) * ROWS
        rows = (first + tl.arange(0, ROWS)).to(tl.int64)
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        place = rows[:, None] * N + columns[None, :]
        x_place = rows[:, None] * x_row + columns[None, :]
        s = _sum(x_ptr, f_ptr, x_place, rows[:, None] * f_row + columns[None, :], inside, alpha, ADDS)
        if KEEPS:
            rounded = s.to(s_ptr.dtype.element_ty)
            tl.store(s_ptr + place, rounded, mask=inside)
            s = rounded.to(tl.float32)
        if RMS:
            centred = s  # 0 outside
        else:
            mean = tl.sum(s, axis=1) / N
            centred = tl.where(inside, s - mean[:, None], 0.0)
        rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / N + eps)
        normal = centred * rstd[:, None]
        if not HOLDS:
            weight = _wide(weight_ptr + columns, columns < N)
            if HAS_BIAS:
                bias = _wide(bias_ptr + columns, columns < N)
        y = normal * weight[None, :]
        if HAS_BIAS:
            y += bias[None, :]
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
    PARTS: tl.constexpr,
    PIECES: tl.constexpr,
    PIECE: tl.constexpr,
    STAGES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # Where a row is longer than a block, neighbouring programs share it: each reads it whole for the two means, piece
    # by piece, all but one of them from the L2 cache, and has the sums and the gradients of one block of columns. The
    # pieces are unrolled, so that those of the next row are loaded ahead.
    alpha = tl.cast(alpha, tl.float32)
    program = tl.program_id(0) // PARTS
    programs = tl.num_programs(0) // PARTS
    columns = tl.program_id(0) % PARTS * BLOCK + tl.arange(0, BLOCK)
    weight_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    if not RMS:
        bias_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    if TWO:
        weight2_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
        bias2_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for first in tl.range(program * ROWS, M, programs * ROWS, num_stages=STAGES):
        rows = (first + tl.arange(0, ROWS)).to(tl.int64)
        if not RMS:
            mean = tl.load(mean_ptr + rows, mask=rows < M, other=0.0)
        rstd = tl.load(rstd_ptr + rows, mask=rows < M, other=0.0)
        if PARTS > 1:
            along_sums = tl.zeros([ROWS, PIECE], dtype=tl.float32)
            if not RMS:
                level_sums = tl.zeros([ROWS, PIECE], dtype=tl.float32)
            for piece in tl.static_range(0, PIECES):
                others = piece * PIECE + tl.arange(0, PIECE)
                inside = (rows < M)[:, None] & (others < N)[None, :]
                x_place = rows[:, None] * x_row + others[None, :]
                s = _sum(x_ptr, f_ptr, x_place, rows[:, None] * f_row + others[None, :], inside, alpha, ADDS)
                dy = _wide(dy_ptr + rows[:, None] * dy_row + others[None, :], inside)
                scaled = dy * _wide(weight_ptr + others, others < N)[None, :]
                if TWO:
                    dy2 = _wide(dy2_ptr + rows[:, None] * dy2_row + others[None, :], inside)
                    scaled += dy2 * _wide(weight2_ptr + others, others < N)[None, :]
                if RMS:
                    along_sums += scaled * s
                else:
                    along_sums += scaled * (s - mean[:, None])
                    level_sums += scaled
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        x_place = rows[:, None] * x_row + columns[None, :]
        s = _sum(x_ptr, f_ptr, x_place, rows[:, None] * f_row + columns[None, :], inside, alpha, ADDS)
        dy = _wide(dy_ptr + rows[:, None] * dy_row + columns[None, :], inside)
        normal = (s if RMS else s - mean[:, None]) * rstd[:, None]
        scaled = dy * _wide(weight_ptr + columns, columns < N)[None, :]
        if TWO:
            dy2 = _wide(dy2_ptr + rows[:, None] * dy2_row + columns[None, :], inside)
            scaled += dy2 * _wide(weight2_ptr + columns, columns < N)[None, :]
            weight2_sums += dy2 * normal
            bias2_sums += dy2
        if PARTS == 1:
            along_sums = scaled * normal
            if not RMS:
                level_sums = scaled
        along = tl.sum(along_sums, axis=1) / N
        if PARTS > 1:
            along *= rstd
        if RMS:
            df = (scaled - normal * along[:, None]) * rstd[:, None]
        else:
            level = tl.sum(level_sums, axis=1) / N
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
    place = program * (1 if RMS else 4 if TWO else 2) * N + columns
    tl.store(sums_ptr + place, tl.sum(weight_sums, axis=0), mask=columns < N)
    if not RMS:
        tl.store(sums_ptr + place + N, tl.sum(bias_sums, axis=0), mask=columns < N)
    if TWO:
        tl.store(sums_ptr + place + 2 * N, tl.sum(weight2_sums, axis=0), mask=columns < N)
        tl.store(sums_ptr + place + 3 * N, tl.sum(bias2_sums, axis=0), mask=columns < N)


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
        programs, stages = triton.cdiv(rows, at_once), 1
        holds = MOST_COLUMNS_OF_ONE_TILE < block <= MOST_COLUMNS_HELD and not two
        if block > MOST_COLUMNS_OF_ONE_TILE:
            vectors = () if holds else (weight_N, bias_N, weight2_N, bias2_N)
            loaded = sum(tensor is not None for tensor in (x_MN, f_MN, *vectors))
            stages = stages_of(block * x_MN.element_size() * loaded)
        if stages > 1:
            programs = programs_over_tiles(rows, 1, block // 2, 1, x_MN.device)
        launchable(_forward_kernel)[(programs,)](
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
            RMS=rms,
            ADDS=f_MN is not None,
            KEEPS=keep_sum,
            TWO=two,
            HAS_BIAS=bias_N is not None,
            LOOPS=stages > 1,
            HOLDS=holds,
            STAGES=stages,
            ROWS=at_once,
            BLOCK=block,
            num_warps=32 if block > MOST_COLUMNS_OF_16_WARPS else warps_of(at_once * block),
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
    at_once, block, parts = tile_of(columns, MOST_SUMS // max(2, sums_of_column))
    values = max(2, sums_of_column) // 2 * block
    programs = programs_over_tiles(rows, at_once, values, parts, x_MN.device)
    pieces = triton.cdiv(columns, PIECE) if parts > 1 else 0
    # values that a pass of the loop loads: of x, dy and the weight; of longer rows all that comes with them, as there
    # a pass fills shared memory
    loaded = (pieces * PIECE + at_once * block) * 3
    if parts > 1:
        loaded += (pieces * PIECE + block) * ((f_MN is not None) + 2 * (weight2_N is not None)) + block * (
            ds_MN is not None
        )
    sums = torch.empty((programs, sums_of_column, columns), dtype=torch.float32, device=x_MN.device)
    launchable(_backward_kernel)[(programs * parts,)](
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
        RMS=rms,
        HAS_DS=ds_MN is not None,
        ADDS=f_MN is not None,
        SCALES=alpha != 1,
        TWO=weight2_N is not None,
        PARTS=parts,
        PIECES=pieces,
        PIECE=PIECE,
        STAGES=stages_of(loaded * x_MN.element_size()),
        ROWS=at_once,
        BLOCK=block,
        num_warps=warps_of(at_once * values),
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
