"""Bias and activation y = act(x + bias) in one pass, forward and backward, the bias' gradient within it.

Legend: M rows, N columns; x_MN the input, dy_MN the gradient of the output, R rows and one block of columns that a
program holds at once: a row may have any length.
Least bytes, b an element: forward 2 M N b; backward 3 M N b and the partial sums of the bias' gradient. The backward
pass recomputes the activation from x, that of ReLU from y, which its successor keeps in any case.
Sources: Hendrycks and Gimpel 2016, arXiv 1606.08415 (GELU, both approximations); So et al. 2021, arXiv 2109.08668
(squared ReLU).
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import relu

from kernels.operator import contiguous, launchable, operator, require, require_vectors, runs_triton
from kernels.special_functions import RELU, RELU_SQUARED, fraction
from kernels.tiles import programs_over_tiles, rows_of, stages_of, tile_of, warps_of

NAME = "bias_activation"
MOST_COLUMNS_AT_ONCE = 1024  # of a program: 16 a thread with two rows and 4 warps

Activation = Literal["gelu", "gelu_tanh", "fast_gelu", "relu", "relu_squared"]  # numbered as in special_functions


def reference(x: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    """act(x + bias) in the arithmetic of x's dtype."""
    u = x if bias is None else x + bias
    if activation == "relu":
        return relu(u)
    if activation == "relu_squared":
        return relu(u).square()
    if activation == "gelu":
        return u * (1 + torch.erf(u * math.sqrt(0.5))) / 2
    if activation == "gelu_tanh":
        return u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3))) / 2
    return u * torch.sigmoid(1.702 * u)


@triton.jit
def _forward_kernel(
    x_ptr,
    bias_ptr,
    y_ptr,
    x_row,
    M,
    N,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    EXACT: tl.constexpr = (x_ptr.dtype.element_ty == tl.float32) or (bias_ptr.dtype.element_ty == tl.float32)
    blocks = tl.cdiv(N, BLOCK)
    rows = (tl.program_id(0) // blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    u = tl.load(x_ptr + rows[:, None] * x_row + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        u += tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    if ACTIVATION == RELU:
        y = tl.where(u <= 0.0, 0.0, u)  # NaN stays NaN
    elif ACTIVATION == RELU_SQUARED:
        y = tl.where(u <= 0.0, 0.0, u * u)
    else:
        part, _ = fraction(u, ACTIVATION, EXACT)
        y = u * part
    tl.store(y_ptr + rows[:, None] * N + columns[None, :], y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward_kernel(  # noqa: PLR0913  # pointers, strides and sizes of one launch
    dy_ptr,
    kept_ptr,
    bias_ptr,
    dx_ptr,
    sums_ptr,
    dy_row,
    kept_row,
    M,
    N,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    STAGES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    EXACT: tl.constexpr = (kept_ptr.dtype.element_ty == tl.float32) or (bias_ptr.dtype.element_ty == tl.float32)
    blocks = tl.cdiv(N, BLOCK)
    program = tl.program_id(0) // blocks
    programs = tl.num_programs(0) // blocks
    columns = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
        sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for first in tl.range(program * ROWS, M, programs * ROWS, num_stages=STAGES):
        rows = (first + tl.arange(0, ROWS)).to(tl.int64)
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        u = tl.load(kept_ptr + rows[:, None] * kept_row + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        dx = tl.load(dy_ptr + rows[:, None] * dy_row + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        if ACTIVATION == RELU:
            dx = tl.where(u <= 0.0, 0.0, dx)
        else:
            if HAS_BIAS:
                u += bias[None, :]
            if ACTIVATION == RELU_SQUARED:
                dx *= tl.where(u <= 0.0, 0.0, u * 2.0)
            else:
                part, slope = fraction(u, ACTIVATION, EXACT)
                dx *= part + u * slope
        tl.store(dx_ptr + rows[:, None] * N + columns[None, :], dx.to(dx_ptr.dtype.element_ty), mask=inside)
        if HAS_BIAS:
            sums += dx
    if HAS_BIAS:
        tl.store(sums_ptr + program * N + columns, tl.sum(sums, axis=0), mask=columns < N)


def _number(activation: str) -> int:
    return get_args(Activation).index(activation)


@operator(NAME)
def _forward(x_MN: Tensor, bias_N: Tensor | None, activation: str) -> Tensor:
    rows, columns = x_MN.shape
    y = torch.empty((rows, columns), dtype=x_MN.dtype, device=x_MN.device)
    if rows:
        at_once, block, blocks = tile_of(columns, MOST_COLUMNS_AT_ONCE)
        launchable(_forward_kernel)[(triton.cdiv(rows, at_once) * blocks,)](
            x_MN,
            x_MN if bias_N is None else bias_N,
            y,
            x_MN.stride(0),
            rows,
            columns,
            HAS_BIAS=bias_N is not None,
            ACTIVATION=_number(activation),
            ROWS=at_once,
            BLOCK=block,
            num_warps=warps_of(at_once * block, x_MN.device),
        )
    return y


@operator(f"{NAME}_backward")
def _backward(dy_MN: Tensor, kept_MN: Tensor, bias_N: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    """Gradients of x and bias (empty without one); kept is y of ReLU, x of the others."""
    rows, columns = kept_MN.shape
    dx = torch.empty((rows, columns), dtype=kept_MN.dtype, device=kept_MN.device)
    at_once, block, blocks = tile_of(columns, MOST_COLUMNS_AT_ONCE)
    programs = programs_over_tiles(rows, at_once, block, blocks, kept_MN.device)
    sums = torch.empty((0 if bias_N is None else programs, columns), dtype=torch.float32, device=kept_MN.device)
    launchable(_backward_kernel)[(programs * blocks,)](
        dy_MN,
        kept_MN,
        kept_MN if bias_N is None else bias_N,
        dx,
        sums,
        dy_MN.stride(0),
        kept_MN.stride(0),
        rows,
        columns,
        HAS_BIAS=bias_N is not None,
        ACTIVATION=_number(activation),
        STAGES=stages_of(at_once * block * kept_MN.element_size() * 2),
        ROWS=at_once,
        BLOCK=block,
        num_warps=warps_of(at_once * block, kept_MN.device),
    )
    return dx, kept_MN.new_empty(0) if bias_N is None else sums.sum(0).to(bias_N.dtype)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor | None, str], output: Tensor) -> None:
    x_MN, bias_N, ctx.activation = inputs
    ctx.save_for_backward(output if ctx.activation == "relu" else x_MN, bias_N)


def _gradients(ctx: Any, dy_MN: Tensor) -> tuple[Tensor | None, ...]:
    kept_MN, bias_N = ctx.saved_tensors
    dx, dbias = _backward(rows_of(dy_MN), kept_MN, bias_N, ctx.activation)
    return dx, None if bias_N is None else dbias, None


_forward.register_autograd(_gradients, setup_context=_keep)


def bias_activation(x: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    """act(x + bias) of x [..., N] and bias [N], computed in fp32 and rounded once.

    gelu is x Phi(x) by the error function, gelu_tanh its approximation, fast_gelu x sigmoid(1.702 x), relu_squared
    max(0, x)^2. The kernel on
    CUDA, or interpreted; elsewhere the plain reference.

    Raises:
        UnsupportedInputError: an activation, dtype, device or shape that the kernel does not take.
    """
    allowed = get_args(Activation)
    require(activation in allowed, NAME, "activation", ", ".join(allowed), activation)
    columns = require_vectors(NAME, x, bias=bias)
    require(columns >= 1, NAME, "columns", "1 or more", columns)
    if not runs_triton(x):
        return reference(x, bias, activation)
    y: Tensor = _forward(rows_of(x), contiguous(bias), activation)
    return y.view(x.shape)
