"""Least bytes and arithmetic of the kernels in `kernels/`, and of parts of GPT-2's step, by their names.

Bytes: inputs read, outputs written, once each. Weights and biases of rows, and what is kept or added up a row or a
program, are left out: under 1 % of the rest from a few hundred rows and columns on. Sizes are numbers of elements,
`element_bytes` those of one element.

Arithmetic, roughly: the horizontal axis of a roofline. Every addition, multiplication, comparison, exponential, root
and error function counts as one, read off the plain reference; what is done once a row is left out. Other counts of an
exponential differ by tens. A wrong count moves a point along the slope of the memory roof: its distance below that
roof depends on bytes and seconds alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.memory import FP32
from suite.predict.analytic.one_bit_compression import BITS_PER_BYTE


class KernelCost(NamedTuple):
    """Bytes that one call moves at least, or its arithmetic.

    Args:
        backward: None where there is no backward pass, or where the forward pass writes the gradients.
    """

    forward: float
    backward: float | None


def kernel_bytes(name: str, **sizes: int) -> KernelCost:
    """Least bytes of one call of a kernel or a part of a step, forward and backward; sizes are those of its formula.

    Raises:
        ValueError: no such name.
    """
    return _formula({**FORMULAS, **STEP_FORMULAS}, name)(**sizes)


def kernel_flop(name: str, variant: str = "", **sizes: int) -> KernelCost:
    """Arithmetic of one call of a kernel or a part of a step; sizes are those of `kernel_bytes`.

    Raises:
        ValueError: no such name.
    """
    return _formula(FLOP_FORMULAS, name)(variant, sizes)


def _formula(formulas: Mapping[str, Callable[..., KernelCost]], name: str) -> Callable[..., KernelCost]:
    if name not in formulas:
        raise ValueError(f"kernel: allowed {', '.join(formulas)}, got {name}")
    return formulas[name]


def _each(elements: float, passes: tuple[float, float]) -> KernelCost:
    return KernelCost(passes[0] * elements, passes[1] * elements)


def _tensors(forward: int, backward: int) -> Callable[..., KernelCost]:
    """So many tensors of M rows and N columns forward, and so many backward."""

    def formula(*, rows: int, columns: int, element_bytes: int) -> KernelCost:
        return _each(rows * columns * element_bytes, (forward, backward))

    return formula


def _residual_layer_norm(*, rows: int, columns: int, element_bytes: int, kept: int = 0, scaled: int = 0) -> KernelCost:
    """3 M N b: x, f, y; backward 3 M N b: x + f, dy, their gradient.

    M N b more for each of: the sum and its gradient, where it is `kept`; backward the second gradient, where x is
    `scaled` in the sum and its gradient is not that of f.
    """
    return _each(rows * columns * element_bytes, (3 + kept, 3 + kept + scaled))


def _rotary(*, elements: int, element_bytes: int) -> KernelCost:
    """2 E b: queries and keys of E elements, and both turned; backward the same of their gradients.

    All dimensions of the heads count, those that do not turn too: the outputs are new tensors, to which they are
    copied. Differs from the often quoted 2 r E b, with r the share of the head that turns: that is in place.
    """
    return _each(elements * element_bytes, (2, 2))


def _masked_softmax(*, rows: int, columns: int, element_bytes: int, causal: int = 0, prefix: int = 0) -> KernelCost:
    """2 M S b: scores, weights, M rows of all sequences and heads; backward 3 M S b: weights, dy, dx.

    A causal mask halves what is read, not what is written: 1.5 M S b and 2 M S b. Differs from the often quoted half of
    all: the product that follows reads the zeros. With a prefix of P positions that all attend to, the share that is
    read is (1 + (P / S)^2) / 2.
    """
    size = rows * columns * element_bytes
    read = rows * (columns**2 + prefix**2) * element_bytes // (2 * columns) if causal else size
    return KernelCost(read + size, 2 * read + size)


def _attention(*, heads: int, length: int, head_size: int, element_bytes: int) -> KernelCost:
    """4 H T K b: queries, keys, values, output; backward 7 H T K b: the first three, dy, and their gradients.

    H heads of all sequences, T positions, K the head size: of a fused attention, which keeps no scores. From a few
    hundred positions on its 4 H T^2 K flop (half with a causal mask) take longer than these bytes.
    """
    return _each(heads * length * head_size * element_bytes, (4, 7))


def _cross_entropy(*, rows: int, columns: int, element_bytes: int) -> KernelCost:
    """2 M V b: logits, and in their place their gradient."""
    return KernelCost(2 * rows * columns * element_bytes, None)


def _linear_cross_entropy(*, rows: int, columns: int, vocabulary: int, element_bytes: int) -> KernelCost:
    """2 (M + V) K b: hidden states of K columns and the table of V rows, and the gradients of both."""
    return KernelCost(2 * (rows + vocabulary) * columns * element_bytes, None)


def _adamw(*, parameters: int, gradient_bytes: int = FP32, weight_bytes: int = FP32, copy_bytes: int = 0) -> KernelCost:
    """(2 w + g + c + 16) N: weight and both fp32 moments read and written, gradient read, copy written.

    28 N in fp32 without a copy, 30 N with one in 16 bits.
    """
    return KernelCost((2 * weight_bytes + gradient_bytes + copy_bytes + 4 * FP32) * parameters, None)


def _gradient_norm(*, parameters: int, gradient_bytes: int) -> KernelCost:
    """N b: every gradient once."""
    return KernelCost(parameters * gradient_bytes, None)


def _linear_gelu(*, rows: int, columns: int, width: int, element_bytes: int) -> KernelCost:
    """(M K + N K + 2 M N) b: x, weight, what GELU is of, and GELU. Its gradient, through the layer after it, the same.

    M rows, K columns, N width: backward dy [M, K], the weight [K, N], what GELU is of, and the gradient of that.
    """
    return KernelCost((rows * columns + width * columns + 2 * rows * width) * element_bytes, None)


def _linear_gradients(*, rows: int, columns: int, width: int, element_bytes: int) -> KernelCost:
    """(M N + M K + N K) b: dy [M, N], x [M, K], the weight's gradient."""
    return KernelCost((rows * width + rows * columns + width * columns) * element_bytes, None)


def _between_blocks(*, rows: int, columns: int, element_bytes: int) -> KernelCost:
    """4 M N b: both terms of a sum, the sum, its norm."""
    return KernelCost(4 * rows * columns * element_bytes, None)


def _clipped_update(*, parameters: int, copy_bytes: int) -> KernelCost:
    """(28 + c + 4) N: AdamW of fp32 gradients, and their norm, which is to be known before."""
    update = _adamw(parameters=parameters, copy_bytes=copy_bytes).forward
    return KernelCost(update + _gradient_norm(parameters=parameters, gradient_bytes=FP32).forward, None)


def _sign_pack(*, elements: int, element_bytes: int) -> KernelCost:
    """(b + 4) N + (b + 8) N + N / 8, thus 20.125 N in fp32.

    (b + 4) N    value and error, for the scale
    (b + 8) N    value and error, and the new error
    N / 8        signs, rounded up to a byte
    """
    return KernelCost((2 * element_bytes + 3 * FP32) * elements + ceil_division(elements, BITS_PER_BYTE), None)


def _sign_unpack(*, elements: int, ranks: int) -> KernelCost:
    """p N / 8 + 4 N: the signs of p ranks, each rounded up to a byte, and their mean in fp32."""
    return KernelCost(ranks * ceil_division(elements, BITS_PER_BYTE) + FP32 * elements, None)


FORMULAS: Mapping[str, Callable[..., KernelCost]] = {
    "layer_norm": _tensors(2, 3),  # x, y; backward x, dy, dx
    "residual_layer_norm": _residual_layer_norm,
    "rms_norm": _tensors(2, 3),  # as of a LayerNorm
    "residual_rms_norm": _tensors(4, 4),  # x, f, sum, y; backward sum, its gradient and dy, the gradient of both
    "parallel_layer_norms": _tensors(3, 4),  # x, y1, y2; backward x, dy1, dy2, dx
    "bias_activation": _tensors(2, 3),  # x, y; backward x, dy, dx; the bias's gradient is added up on the way
    "geglu": _tensors(3, 5),  # both halves of x, y; backward the same two, dy, their gradients; N columns of y
    "swiglu": _tensors(3, 5),  # as of geglu
    "rotary": _rotary,
    "masked_softmax": _masked_softmax,
    "cross_entropy": _cross_entropy,
    "linear_cross_entropy": _linear_cross_entropy,
    "adamw": _adamw,
    "gradient_norm": _gradient_norm,
    "sign_pack": _sign_pack,
    "sign_unpack": _sign_unpack,
}

# of parts of a step, which no kernel in `kernels/` computes by itself
STEP_FORMULAS: Mapping[str, Callable[..., KernelCost]] = {
    "attention": _attention,
    "linear_gelu": _linear_gelu,
    "linear_gelu_backward": _linear_gelu,
    "linear_gradients": _linear_gradients,
    "between_blocks": _between_blocks,
    "clipped_update": _clipped_update,
}


# of an element: forward, backward
_LAYER_NORM = (7, 13)  # mean 1, centred 1, square 2, scaled 1, weight and bias 2; backward two sums 3, dx 5, dw 3, db 2
_RMS_NORM = (4, 9)  # square 2, scaled 1, weight 1; backward a sum 2, dx 5, dw 2
# with the bias
_ACTIVATION = {"gelu": (6, 12), "gelutanh": (9, 16), "fastgelu": (5, 10), "relu": (2, 2), "relusquared": (3, 4)}
_SOFTMAX = (7, 5)  # scale, mask, maximum, difference, exp, sum, quotient; backward product, sum, difference, product 2
_ADAMW = 14  # two moments 3 each, root and correction 4, decay 2, update 2


def _area(sizes: Mapping[str, int]) -> int:
    return sizes["rows"] * sizes["columns"]


def _linear_flop(_: str, sizes: Mapping[str, int]) -> KernelCost:
    """2 M K N; activations and sums over rows, a few M N, are left out."""
    return KernelCost(2.0 * _area(sizes) * sizes["width"], None)


def _residual_layer_norm_flop(variant: str, sizes: Mapping[str, int]) -> KernelCost:
    more = 2 if variant == "scaled" else 1
    return _each(_area(sizes), (_LAYER_NORM[0] + more, _LAYER_NORM[1] + more))


def _masked_softmax_flop(_: str, sizes: Mapping[str, int]) -> KernelCost:
    """Flop of a masked softmax: a causal mask leaves half the scores, a prefix of P of S (1 + (P / S)^2) / 2."""
    share = (1 + (sizes.get("prefix", 0) / sizes["columns"]) ** 2) / 2 if sizes.get("causal") else 1.0
    return KernelCost(_SOFTMAX[0] * share * _area(sizes), _SOFTMAX[1] * share * _area(sizes))


def _attention_flop(_: str, sizes: Mapping[str, int]) -> KernelCost:
    """4 H T^2 K forward, 10 H T^2 K backward with its recomputation of scores; half of each, for a mask is causal."""
    return _each(2.0 * sizes["heads"] * sizes["length"] ** 2 * sizes["head_size"], (1, 2.5))


FLOP_FORMULAS: Mapping[str, Callable[[str, Mapping[str, int]], KernelCost]] = {
    "layer_norm": lambda _, sizes: _each(_area(sizes), _LAYER_NORM),
    "residual_layer_norm": _residual_layer_norm_flop,
    "rms_norm": lambda _, sizes: _each(_area(sizes), _RMS_NORM),
    "residual_rms_norm": lambda _, sizes: _each(_area(sizes), (_RMS_NORM[0] + 1, _RMS_NORM[1] + 1)),
    "parallel_layer_norms": lambda _, sizes: _each(_area(sizes), (_LAYER_NORM[0] + 2, _LAYER_NORM[1] + 5)),
    "bias_activation": lambda variant, sizes: _each(_area(sizes), _ACTIVATION[variant or "gelu"]),
    "geglu": lambda _, sizes: _each(_area(sizes), (6, 14)),
    # exponential, sum, quotient, two products; backward those and the slope 4, dy gated, two gradients
    "swiglu": lambda _, sizes: _each(_area(sizes), (5, 11)),
    "rotary": lambda _, sizes: _each(sizes["elements"], (3, 3)),
    "masked_softmax": _masked_softmax_flop,
    "attention": _attention_flop,
    "cross_entropy": lambda _, sizes: KernelCost(6 * _area(sizes), None),
    "linear_cross_entropy": lambda _, sizes: KernelCost(6 * _area(sizes) * sizes["vocabulary"], None),
    "adamw": lambda _, sizes: KernelCost(_ADAMW * sizes["parameters"], None),
    "gradient_norm": lambda _, sizes: KernelCost(2 * sizes["parameters"], None),
    "sign_pack": lambda _, sizes: KernelCost(6 * sizes["elements"], None),
    "sign_unpack": lambda _, sizes: KernelCost(2 * sizes["elements"] * sizes["ranks"], None),
    **dict.fromkeys(("linear_gelu", "linear_gelu_backward", "linear_gradients"), _linear_flop),
    "between_blocks": lambda _, sizes: KernelCost((_LAYER_NORM[0] + 1) * _area(sizes), None),
    # a product and a sum for the norm, a product for clipping
    "clipped_update": lambda _, sizes: KernelCost((_ADAMW + 3) * sizes["parameters"], None),
}
