"""Linear layers whose GELU, its gradient, and the gradients of biases are in the epilogues of cuBLASLt's GEMMs.

Legend: M rows (tokens), K columns of an input, N of an output, F of the expansion; b bytes an element.
Bytes moved beside the factors and results of the matrix multiplications, forward and backward:
                                    operators apart     here
    GELU, tanh's approximation      2 M F b             0: before [M, F] and the activation are both results
    its gradient                    3 M F b             M F b: before is read where the product is written
    gradient of a bias              M N b               0: summed from the factor of the weight's gradient
Kept for the backward pass is what PyTorch's operators keep: a layer's input, `before`, the activation.

Differs from operators apart by one rounding: GELU sees the sum before it is rounded, as does its gradient's factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear
from torch.utils.flop_counter import register_flop_formula

from kernels.cublaslt import Epilogue, Gemm, library, library_ways, multiply
from kernels.operator import FLOATS, NAMESPACE, host_operator, require

GELU, GELU_GRADIENT, GRADIENTS = "linear_gelu", "linear_gelu_backward", "linear_gradients"
APPROXIMATE = "tanh"


def reference(x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    """GELU, by tanh's approximation, of x times the transposed weight plus the bias."""
    return gelu(linear(x_MK, weight_NK, bias_N), approximate=APPROXIMATE)


def _rows(x: Tensor) -> Tensor:
    """x [..., K] as [M, K] whose rows' elements lie one after the other."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 and rows.stride(0) >= rows.shape[1] else rows.contiguous()


def _gelu_product(x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, out_MN: Tensor, before_MN: Tensor) -> Gemm:
    def plain() -> None:
        if bias_N is None:
            torch.mm(x_MK, weight_NK.t(), out=before_MN)
        else:
            torch.addmm(bias_N, x_MK, weight_NK.t(), out=before_MN)
        torch.ops.aten.gelu.out(before_MN, approximate=APPROXIMATE, out=out_MN)

    epilogue = Epilogue.GELU_AUX if bias_N is None else Epilogue.GELU_AUX_BIAS
    return Gemm(x_MK, weight_NK, out_MN, (False, True), epilogue, bias_N, before_MN, plain)


def _gelu_gradient_product(dy_MN: Tensor, weight_NF: Tensor, before_MF: Tensor, out_MF: Tensor) -> Gemm:
    def plain() -> None:
        torch.mm(dy_MN, weight_NF, out=out_MF)
        torch.ops.aten.gelu_backward.grad_input(out_MF, before_MF, approximate=APPROXIMATE, grad_input=out_MF)

    return Gemm(dy_MN, weight_NF, out_MF, (False, False), Epilogue.DGELU, None, before_MF, plain)


def _gradients_product(dy_MN: Tensor, x_MK: Tensor, out_NK: Tensor, bias_N: Tensor | None) -> Gemm:
    def plain() -> None:
        torch.mm(dy_MN.t(), x_MK, out=out_NK)
        if bias_N is not None:
            torch.sum(dy_MN, 0, out=bias_N)

    epilogue = Epilogue.NONE if bias_N is None else Epilogue.BGRADB
    return Gemm(dy_MN, x_MK, out_NK, (True, False), epilogue, bias_N, None, plain)


def _compute(product: Gemm, *, tuned: bool) -> None:
    """By the library on CUDA; by PyTorch elsewhere, and where something is empty."""
    if product.out.is_cuda and all(each.numel() for each in product.tensors) and not why_not(product.out.device):
        multiply(product, tuned=tuned)
    else:
        product.plain()


def _linear_gelu_shapes(x_MK: Tensor, weight_NK: Tensor, _bias: Tensor | None, _tuned: bool) -> tuple[Tensor, Tensor]:
    shape = (x_MK.shape[0], weight_NK.shape[0])
    return x_MK.new_empty(shape), x_MK.new_empty(shape)


def _linear_gelu_backward_shape(_dy: Tensor, _weight: Tensor, before_MF: Tensor, _tuned: bool) -> Tensor:
    return torch.empty_like(before_MF)


def _linear_gradients_shapes(dy_MN: Tensor, x_MK: Tensor, with_bias: bool, _tuned: bool) -> tuple[Tensor, Tensor]:
    columns = dy_MN.shape[1]
    return x_MK.new_empty(columns, x_MK.shape[1]), x_MK.new_empty(columns if with_bias else 0)


@host_operator(GELU, fake=_linear_gelu_shapes)
def _linear_gelu(x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, tuned: bool) -> tuple[Tensor, Tensor]:
    """The activation, and what it is of."""
    before_MN = x_MK.new_empty(x_MK.shape[0], weight_NK.shape[0])
    out_MN = torch.empty_like(before_MN)
    _compute(_gelu_product(x_MK, weight_NK, bias_N, out_MN, before_MN), tuned=tuned)
    return out_MN, before_MN


@host_operator(GELU_GRADIENT, fake=_linear_gelu_backward_shape)
def _linear_gelu_backward(dy_MN: Tensor, weight_NF: Tensor, before_MF: Tensor, tuned: bool) -> Tensor:
    """Gradient of `before`, where the layer after the activation has the weight."""
    out_MF = torch.empty_like(before_MF)
    _compute(_gelu_gradient_product(dy_MN, weight_NF, before_MF, out_MF), tuned=tuned)
    return out_MF


@host_operator(GRADIENTS, fake=_linear_gradients_shapes)
def _linear_gradients(dy_MN: Tensor, x_MK: Tensor, with_bias: bool, tuned: bool) -> tuple[Tensor, Tensor]:
    """Gradients of the weight [N, K] and the bias [N], which is empty without one."""
    columns = dy_MN.shape[1]
    out_NK, bias_N = x_MK.new_empty(columns, x_MK.shape[1]), x_MK.new_empty(columns if with_bias else 0)
    _compute(_gradients_product(dy_MN, x_MK, out_NK, bias_N if with_bias else None), tuned=tuned)
    return out_NK, bias_N


_OPERATORS = getattr(torch.ops, NAMESPACE)
Sizes = tuple[int, ...]


@register_flop_formula(getattr(_OPERATORS, GELU))
def _linear_gelu_flop(x_MK: Sizes, weight_NK: Sizes, *_others: Any, **_more: Any) -> int:
    """2 M K N, as PyTorch counts its own products."""
    return 2 * math.prod(x_MK) * weight_NK[0]


@register_flop_formula(getattr(_OPERATORS, GELU_GRADIENT))
def _linear_gelu_backward_flop(dy_MN: Sizes, weight_NF: Sizes, *_others: Any, **_more: Any) -> int:
    return 2 * math.prod(dy_MN) * weight_NF[1]


@register_flop_formula(getattr(_OPERATORS, GRADIENTS))
def _linear_gradients_flop(dy_MN: Sizes, x_MK: Sizes, *_others: Any, **_more: Any) -> int:
    return 2 * math.prod(dy_MN) * x_MK[1]


class _FusedLinear(torch.autograd.Function):
    """x times the transposed weight plus the bias, whose two gradients are one GEMM where they are `fused`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_NK: Tensor, bias_N: Tensor | None, fused: bool, tuned: bool) -> Tensor:
        ctx.save_for_backward(x, weight_NK)
        ctx.ways = (bias_N is not None, fused, tuned)
        return linear(x, weight_NK, bias_N)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_NK = ctx.saved_tensors
        return (*_gradients_of_linear(gradients[0], x, weight_NK, ctx.needs_input_grad[0], *ctx.ways), None, None)


def _gradients_of_linear(
    dy: Tensor, x: Tensor, weight_NK: Tensor, of_input: bool, has_bias: bool, fused: bool, tuned: bool
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Gradients of input, weight and bias, in PyTorch's order."""
    dy_MN = _rows(dy)
    dx = torch.mm(dy_MN, weight_NK).view(x.shape) if of_input else None
    of_weight, of_bias = _linear_gradients(dy_MN, _rows(x), has_bias and fused, tuned)
    if not has_bias:
        return dx, of_weight, None
    return dx, of_weight, of_bias if fused else dy_MN.sum(0)


class _BeforeGelu(torch.autograd.Function):
    """Output of a linear layer, and its GELU, through which no gradient comes: `_AfterGelu` has that."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_NK: Tensor, bias_N: Tensor | None, tuned: bool) -> tuple[Tensor, Tensor]:
        out_MN, before_MN = _linear_gelu(_rows(x), weight_NK, bias_N, tuned)
        ctx.save_for_backward(x, weight_NK)
        ctx.ways = (bias_N is not None, True, tuned)
        ctx.mark_non_differentiable(out_MN)
        ctx.set_materialize_grads(False)  # of the activation they would be zeros
        return before_MN, out_MN

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_NK = ctx.saved_tensors
        return (*_gradients_of_linear(gradients[0], x, weight_NK, ctx.needs_input_grad[0], *ctx.ways), None)


class _AfterGelu(torch.autograd.Function):
    """A linear layer of a GELU that was computed, as a function of what it is of."""

    @staticmethod
    def forward(
        ctx: Any, before_MF: Tensor, active_MF: Tensor, weight_NF: Tensor, bias_N: Tensor | None, tuned: bool
    ) -> Tensor:
        ctx.save_for_backward(before_MF, active_MF, weight_NF)
        ctx.has_bias, ctx.tuned = bias_N is not None, tuned
        return linear(active_MF, weight_NF, bias_N)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        before_MF, active_MF, weight_NF = ctx.saved_tensors
        dy_MN = _rows(gradients[0])
        of_before = _linear_gelu_backward(dy_MN, weight_NF, before_MF, ctx.tuned)
        of_weight, of_bias = _linear_gradients(dy_MN, active_MF, ctx.has_bias, ctx.tuned)
        return of_before, None, of_weight, of_bias if ctx.has_bias else None, None


def fused_linear(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None, *, fused: bool, tuned: bool) -> Tensor:
    """x [..., K] times the transposed weight plus the bias; their gradients by cuBLASLt.

    Args:
        fused: whether the gradient of the bias is summed by the GEMM of the weight's.
        tuned: whether that GEMM is by the fastest of the library's algorithms, timed when its shapes come first.

    Raises:
        UnsupportedInputError: a dtype that the kernel does not take.
    """
    require(x.dtype in FLOATS, GRADIENTS, "dtype of x", "float32, bfloat16, float16", x.dtype)
    apply: Any = _FusedLinear.apply
    y: Tensor = apply(x, weight_NK, bias_N, fused, tuned)
    return y


def gelu_feed_forward(
    x: Tensor, expansion: tuple[Tensor, Tensor | None], contraction: tuple[Tensor, Tensor | None], *, tuned: bool
) -> Tensor:
    """contraction(GELU(expansion(x))) of x [..., K], by tanh's approximation.

    Args:
        expansion, contraction: weight, [F, K] and [N, F], and bias.
        tuned: whether GEMMs are by the fastest of the library's algorithms, timed when their shapes come first.

    Raises:
        UnsupportedInputError: a dtype that the kernel does not take.
    """
    require(x.dtype in FLOATS, GELU, "dtype of x", "float32, bfloat16, float16", x.dtype)
    before: Any = _BeforeGelu.apply
    after: Any = _AfterGelu.apply
    before_MF, active_MF = before(x, *expansion, tuned)
    y_MN: Tensor = after(before_MF, active_MF, *contraction, tuned)
    return y_MN.view(*x.shape[:-1], contraction[0].shape[0])


# Of the self-check: rows, columns and width, small and unequal, in multiples of the 8 elements that 16 bytes have
CHECKED = (136, 72, 200)


@cache
def why_not(device: torch.device) -> str:
    """Why the operators compute by PyTorch's own on `device`, in words; empty: by cuBLASLt.

    At the first call the library multiplies small matrices, whose results are compared with PyTorch's.
    """
    if device.type != "cuda":
        return "no CUDA device"
    try:
        library()
        wrong = [name for name, holds in _agreements(device).items() if not holds]
    except (OSError, AttributeError, RuntimeError) as error:  # CublasLtError, and errors of CUDA
        return f"cuBLASLt: {next(iter(str(error).splitlines()), type(error).__name__)}"
    return f"cuBLASLt: wrong results of {', '.join(wrong)}" if wrong else ""


def _agreements(device: torch.device) -> dict[str, bool]:
    """Whether each epilogue gives in bf16 and fp16, but for rounding, what PyTorch computes of the same in fp32."""
    found = {dtype: _agreements_in(dtype, device) for dtype in (torch.bfloat16, torch.float16)}
    return {
        f"{name} in {str(dtype).removeprefix('torch.')}": holds
        for dtype, of_dtype in found.items()
        for name, holds in of_dtype.items()
    }


def _agreements_in(dtype: torch.dtype, device: torch.device) -> dict[str, bool]:
    """Whether each epilogue agrees with PyTorch.

    Of factors below 1/2 and K products of them in a sum, each result may be off by
        u |result| + K^2 2^-26          its rounding, u = 2^-8 in bf16, 2^-11 in fp16; sums in fp32, whose products
                                        add up to K / 4 at most
        2^-11 |before|                  GELU: a GPU's tanh is off by 2^-11, and multiplied by x / 2
        2^-8 |gradient|                 its gradient: the same, times x and other factors, 6 at most where |x| < 3
    """
    rows, columns, width = CHECKED
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> Tensor:
        return (torch.rand(*shape, generator=generator) - 0.5).to(device=device, dtype=dtype)

    x, weight, bias = drawn(rows, columns), drawn(width, columns), drawn(width)
    dy, second = drawn(rows, columns), drawn(columns, width)

    def close(got: Tensor, right: Tensor, depth: int, more: Tensor | float = 0.0) -> bool:
        bound = torch.finfo(dtype).eps / 2 * right.abs() + depth**2 * 2.0**-26 + more
        return not bool(((got.float() - right).abs() > bound).any())

    def computed(make: Callable[..., Gemm], *given: Tensor | None, shapes: tuple[tuple[int, ...], ...]) -> list[Tensor]:
        """Results of the library in `dtype`, then PyTorch's in fp32."""
        results = [x.new_empty(shape) for shape in shapes]
        right = [x.new_empty(shape, dtype=torch.float32) for shape in shapes]
        product = make(*given, *results)
        library_ways(product)[0](product)
        make(*(None if each is None else each.float() for each in given), *right).plain()
        return [*results, *right]

    shape = (rows, width)
    active, before, active_32, before_32 = computed(_gelu_product, x, weight, bias, shapes=(shape, shape))
    bare, product, bare_32, product_32 = computed(_gelu_product, x, weight, None, shapes=(shape, shape))
    gradient, gradient_32 = computed(_gelu_gradient_product, dy, second, before, shapes=(shape,))
    sums, bias_sums, sums_32, bias_32 = computed(_gradients_product, dy, x, shapes=((columns, columns), (columns,)))
    from_second = (dy.float() @ second.float()).abs()
    return {
        Epilogue.GELU_AUX.name: close(product, product_32, columns)
        and close(bare, bare_32, columns, 2.0**-11 * product_32.abs()),
        Epilogue.GELU_AUX_BIAS.name: close(before, before_32, columns)
        and close(active, active_32, columns, 2.0**-11 * before_32.abs()),
        Epilogue.DGELU.name: close(gradient, gradient_32, columns, 2.0**-8 * from_second),
        Epilogue.BGRADB.name: close(sums, sums_32, rows) and close(bias_sums, bias_32, rows),
    }
