"""Mean cross-entropy of targets under logits, which the forward pass overwrites with the gradient.

Legend: M rows, V columns of which `vocabulary` are tokens; logits_MV, targets_M. With the softmax p over the tokens,
the gradient of a row that is learned is (p - [column is the target]) / learned rows, that of others and of columns that
are no tokens 0.
Least bytes, b an element: 2 M V b: logits read, gradients written in their place; M V b where no gradient is wanted.
The kernel reads a row twice, first for its maximum and sum, then from its end back for the gradient: 3 M V b where the
rows in work, at least two a multiprocessor, do not stay in the cache (264 of 150,528 columns in bf16 are 79 MB).

An operator of torch.library that changes an argument can have no autograd formula, so a torch.autograd.Function calls
it. What the gradient is multiplied by in the backward pass is passed to the forward pass where it is known (`scale`):
then it costs nothing, and fp16 gradients are rounded as PyTorch's, which otherwise underflow: 1 / (M V) is 5e-9 at
M = 4096, V = 50,304, where the least fp16 number is 6e-8.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.operator import launchable, operator, require, require_float, runs_triton
from kernels.special_functions import exp
from kernels.tiles import block_of, programs_over_rows, warps_of

NAME = "cross_entropy"
IGNORED = -100  # torch.nn.functional.cross_entropy's
AT_ONCE = 16_384  # columns of a multiprocessor, 16 in each thread; two blocks are loaded at a time
CACHED_BYTES = 30_000_000
MOST_ROWS = 16  # of a multiprocessor


def reference(
    logits_MV: Tensor, targets_M: Tensor, *, ignore_index: int = IGNORED, vocabulary: int | None = None
) -> Tensor:
    """Mean of log(sum exp(logits)) - logit of the target over the learned rows, in fp32 or wider."""
    wide = logits_MV if logits_MV.dtype == torch.float64 else logits_MV.float()
    tokens = wide[:, :vocabulary]
    learned = targets_M != ignore_index
    at_target = tokens.gather(1, targets_M.masked_fill(~learned, 0)[:, None])[:, 0]
    return (torch.logsumexp(tokens, dim=1) - at_target).masked_fill(~learned, 0.0).sum() / learned.sum()


@triton.jit
def _kernel(  # noqa: PLR0913  # long: one Triton program, its pointers and sizes
    logits_ptr,
    targets_ptr,
    factor_ptr,
    losses_ptr,
    M,
    V,
    vocabulary,
    ignore_index,
    GRADIENT: tl.constexpr,
    VECTOR: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_REST: tl.constexpr,
):
    # Whole blocks of tokens need no mask. Each thread has a maximum and a sum of its own for neighbouring values, which
    # come in one load: threads wait for each other once a row.
    V = V // VECTOR * VECTOR  # the same number: what the compiler knows of it decides how wide loads are
    columns = tl.arange(0, BLOCK)
    rest = vocabulary // BLOCK * BLOCK  # from here on blocks are not whole
    for number in tl.range(tl.program_id(0), M, tl.num_programs(0), num_stages=1):
        row = tl.cast(number, tl.int64)
        row_ptr = logits_ptr + row * V
        after = rest + BLOCK * HAS_REST  # from here on no column is a token
        target = tl.load(targets_ptr + row)
        if target == ignore_index:
            tl.store(losses_ptr + row, 0.0)
            after = 0
        else:
            exists = (target >= 0) & (target < vocabulary)
            # loaded before the reductions below, after which it is overwritten
            at_target = tl.load(row_ptr + target, mask=exists, other=float("nan")).to(tl.float32)
            tops = tl.full([BLOCK // VECTOR], float("-inf"), dtype=tl.float32)
            totals = tl.zeros([BLOCK // VECTOR], dtype=tl.float32)
            for first in tl.range(0, rest, BLOCK, num_stages=1, loop_unroll_factor=2):
                x = tl.load(row_ptr + first + columns).to(tl.float32)
                tops, totals = _with_values(tops, totals, x, VECTOR)
            if HAS_REST:
                tops, totals = _with_values(tops, totals, _rest(row_ptr, rest + columns, V, vocabulary), VECTOR)
            top = tl.max(tops, axis=0)
            anchor = tl.where(top == float("-inf"), 0.0, top)  # the difference of two infinities is no number
            total = tl.sum(totals * exp(tops - anchor), axis=0)
            tl.store(losses_ptr + row, top + tl.log(total) - at_target)
            if GRADIENT:
                factor = tl.load(factor_ptr)
                factor = tl.where(exists, factor, float("nan"))
                share = factor / total
                if HAS_REST:
                    places = rest + columns
                    x = _rest(row_ptr, places, V, vocabulary)
                    gradient = tl.where(places < vocabulary, exp(x - top) * share, 0.0)
                    tl.store(row_ptr + places, gradient.to(logits_ptr.dtype.element_ty), mask=places < V)
                # backwards: what was read last is nearest
                for first in tl.range(0, rest, BLOCK, num_stages=1, loop_unroll_factor=2):
                    places = rest - BLOCK - first + columns
                    x = tl.load(row_ptr + places).to(tl.float32)
                    gradient = exp(x - top) * share
                    tl.store(row_ptr + places, gradient.to(logits_ptr.dtype.element_ty))
                tl.debug_barrier()  # another thread has stored the target's column
                at_target = exp(at_target - top) * share - factor
                tl.store(row_ptr + target, at_target.to(logits_ptr.dtype.element_ty), mask=exists)
        if GRADIENT:
            nothing = tl.zeros([BLOCK], dtype=logits_ptr.dtype.element_ty)
            for first in range(after, V, BLOCK):
                tl.store(row_ptr + first + columns, nothing, mask=first + columns < V)


@triton.jit
def _with_values(tops, totals, x, VECTOR: tl.constexpr):
    """Maxima, and sums of exp(value - maximum), with VECTOR more values each."""
    x = tl.reshape(x, [x.shape[0] // VECTOR, VECTOR])
    higher = tl.maximum(tops, tl.max(x, axis=1))
    anchor = tl.where(higher == float("-inf"), 0.0, higher)
    return higher, totals * exp(tops - anchor) + tl.sum(exp(x - anchor[:, None]), axis=1)


@triton.jit
def _rest(logits_ptr, columns, V, vocabulary):
    """Logits of the last block, -inf where a column is no token."""
    aligned = (vocabulary + 15) // 16 * 16  # columns that are read, so that loads of 16 bytes remain
    x = tl.load(logits_ptr + columns, mask=(columns < V) & (columns < aligned), other=float("-inf"))
    return tl.where(columns < vocabulary, x.to(tl.float32), float("-inf"))


@triton.jit
def _multiply_kernel(x_ptr, factor_ptr, elements, BLOCK: tl.constexpr):
    factor = tl.load(factor_ptr)
    if factor != 1.0:
        step = tl.num_programs(0).to(tl.int64) * BLOCK
        for first in range(tl.program_id(0).to(tl.int64) * BLOCK, elements, step):
            places = first + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + places, mask=places < elements, other=0.0).to(tl.float32) * factor
            tl.store(x_ptr + places, x.to(x_ptr.dtype.element_ty), mask=places < elements)


def _rows_at_once(row_bytes: int) -> int:
    """Rows that a multiprocessor works on at once, one a program: a power of two, at least 2.

    As many as stay in the cache until they are read again (30 of an H100's 50 MB for 132 multiprocessors): there are no
    more programs, whatever fits. Two rows of 50,304 columns in bf16 are 201 kB, within an L1 cache of 256 KiB.
    """
    return max(2, min(MOST_ROWS, block_of(CACHED_BYTES // (132 * row_bytes) + 1) // 2))


def _launch(logits: Tensor, targets: Tensor, factor: Tensor, ignored: int, vocabulary: int, gradient: bool) -> Tensor:
    rows, columns = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    at_once = _rows_at_once(vocabulary * logits.element_size())
    block = min(AT_ONCE // at_once, block_of(vocabulary))
    vector = 16 // logits.element_size()  # columns of a load where every row is aligned for it
    if rows:
        launchable(_kernel)[(programs_over_rows(rows, 1, logits.device, at_once),)](
            logits,
            targets,
            factor,
            losses,
            rows,
            columns,
            vocabulary,
            ignored,
            GRADIENT=gradient,
            VECTOR=min(vector, block) if columns % vector == 0 else 1,
            BLOCK=block,
            HAS_REST=vocabulary % block > 0,
            num_warps=warps_of(block, logits.device),
        )
    return losses


@operator(f"{NAME}_with_gradient", mutates=("logits_MV",))
def losses_and_gradient(
    logits_MV: Tensor, targets_M: Tensor, factor: Tensor, ignore_index: int, vocabulary: int
) -> Tensor:
    """Each row's cross-entropy in fp32, 0 where it is not learned; the logits become `factor` times its gradient.

    The inputs are checked by who calls it: contiguous logits on a device with Triton, a scalar factor in fp32 there.
    A target that is no token gives not a number, as loss and gradient.
    """
    return _launch(logits_MV, targets_M, factor, ignore_index, vocabulary, True)


@operator(f"{NAME}_without_gradient")
def losses_alone(logits_MV: Tensor, targets_M: Tensor, ignore_index: int, vocabulary: int) -> Tensor:
    """The losses of losses_and_gradient; the logits stay."""
    return _launch(logits_MV, targets_M, logits_MV, ignore_index, vocabulary, False)


@operator(f"{NAME}_multiply", mutates=("x",))
def multiply(x: Tensor, factor: Tensor) -> None:
    """Multiply contiguous x by a scalar in fp32 on its device; neither read nor written where that is 1."""
    if x.numel():
        programs = programs_over_rows(triton.cdiv(x.numel(), 8192), 1, x.device)
        launchable(_multiply_kernel)[(programs,)](x, factor, x.numel(), BLOCK=8192, num_warps=16)


def require_targets(
    kernel: str, logits_shape: tuple[int, ...], targets_M: Tensor, device: torch.device, vocabulary: int, scale: float
) -> None:
    """Nothing where the targets and the numbers that go with logits [M, V] on a device are such as the kernel takes.

    Raises:
        UnsupportedInputError: they are not.
    """
    rows, columns = logits_shape
    require(columns >= 1, kernel, "columns", "1 or more", columns)
    require(targets_M.dtype == torch.int64, kernel, "dtype of targets", "int64", targets_M.dtype)
    require(targets_M.device == device, kernel, "device of targets", f"that of all, {device}", targets_M.device)
    require(targets_M.shape == (rows,), kernel, "shape of targets", f"({rows},)", tuple(targets_M.shape))
    require(1 <= vocabulary <= columns, kernel, "vocabulary", f"1 to {columns:,}", f"{vocabulary:,}")
    require(0 < scale < float("inf"), kernel, "scale", "above 0, finite", scale)


def mean_over_learned(losses_M: Tensor, targets_M: Tensor, ignore_index: int) -> Tensor:
    """Sum of the losses over the number of rows that are learned; not a number where none is, as PyTorch's."""
    return losses_M.sum() / (targets_M != ignore_index).sum()


def gradient_factor(targets_M: Tensor, ignore_index: int, scale: float) -> Tensor:
    """Factor of the gradient of one row's loss: scale / learned rows, a scalar in fp32 on the device."""
    return torch.full((), scale, device=targets_M.device) / (targets_M != ignore_index).sum()


def loss_and_gradient(
    logits_MV: Tensor,
    targets_M: Tensor,
    *,
    ignore_index: int = IGNORED,
    vocabulary: int | None = None,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy, and `scale` times its gradient: the logits' memory, where they are contiguous.

    For those who compute gradients themselves; see cross_entropy. Only where Triton runs.

    Raises:
        UnsupportedInputError: a dtype, device or shape that the kernel does not take.
    """
    vocabulary = _checked(logits_MV, targets_M, vocabulary, scale)
    require(runs_triton(logits_MV), NAME, "device of logits", "cuda, or any interpreted", logits_MV.device)
    with torch.no_grad():
        gradient_MV = logits_MV.detach().contiguous()
        factor = gradient_factor(targets_M, ignore_index, scale)
        losses = losses_and_gradient(gradient_MV, targets_M.contiguous(), factor, ignore_index, vocabulary)
        return mean_over_learned(losses, targets_M, ignore_index), gradient_MV


def _checked(logits_MV: Tensor, targets_M: Tensor, vocabulary: int | None, scale: float) -> int:
    require_float(NAME, logits=logits_MV)
    require(logits_MV.dim() == 2, NAME, "shape of logits", "[M, V]", tuple(logits_MV.shape))
    tokens = logits_MV.shape[1] if vocabulary is None else vocabulary
    require_targets(NAME, tuple(logits_MV.shape), targets_M, logits_MV.device, tokens, scale)
    return tokens


class _OverwrittenLogits(torch.autograd.Function):
    """The loss; the gradient, which lies where the logits were, is given out once: a second time autograd refuses."""

    @staticmethod
    def forward(
        ctx: Any, logits_MV: Tensor, targets_M: Tensor, ignore_index: int, vocabulary: int, scale: float
    ) -> Tensor:
        factor = gradient_factor(targets_M, ignore_index, scale)
        losses = losses_and_gradient(logits_MV, targets_M, factor, ignore_index, vocabulary)
        ctx.scale = scale
        ctx.save_for_backward(logits_MV)
        return mean_over_learned(losses, targets_M, ignore_index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradient_MV = ctx.saved_tensors[0].detach()
        multiply(gradient_MV, upstream / torch.full_like(upstream, ctx.scale))
        return gradient_MV, None, None, None, None


def cross_entropy(
    logits_MV: Tensor,
    targets_M: Tensor,
    *,
    ignore_index: int = IGNORED,
    vocabulary: int | None = None,
    scale: float = 1.0,
) -> Tensor:
    """Mean over the learned rows of log(sum exp(logits)) - logit of the target, in nats, fp32, computed in fp32.

    Where the logits need a gradient they are overwritten with it (a copy of them, where they are not contiguous):
    autograd then refuses to compute from their values what else would need them. The backward pass can be gone through
    once, and not differentiated. A target that is no token makes the loss not a number.

    The kernel on CUDA, or interpreted; elsewhere the plain reference, which overwrites nothing.

    Args:
        targets_M: tokens, int64; `ignore_index` where a row is not learned.
        vocabulary: tokens among the columns, the first ones; the others count as if they were not there. None: all.
        scale: the gradient that this loss will get in the backward pass, the loss scale for one, as far as known. If it
            gets another the gradient is multiplied once more, which reads and writes all of it.

    Raises:
        UnsupportedInputError: a dtype, device or shape that the kernel does not take, or a leaf that needs a gradient.
    """
    tokens = _checked(logits_MV, targets_M, vocabulary, scale)
    if not runs_triton(logits_MV):
        return reference(logits_MV, targets_M, ignore_index=ignore_index, vocabulary=vocabulary)
    if not (torch.is_grad_enabled() and logits_MV.requires_grad):
        losses = losses_alone(logits_MV.detach().contiguous(), targets_M.contiguous(), ignore_index, tokens)
        return mean_over_learned(losses, targets_M, ignore_index)
    overwritten = logits_MV.contiguous()
    leaf = overwritten.is_leaf or (overwritten._base is not None and overwritten._base.is_leaf)
    require(not leaf, NAME, "logits", "what was computed, to overwrite", "a leaf of autograd, or a view of one")
    apply: Any = _OverwrittenLogits.apply
    loss: Tensor = apply(overwritten, targets_M.contiguous(), ignore_index, tokens, scale)
    return loss
