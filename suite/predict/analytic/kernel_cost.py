"""Least bytes and arithmetic of the kernels in `kernels/`, by their names, and of attention.

Bytes: inputs read, outputs written, once each.

Weights and biases of rows, and what is kept or added up a row or a program, are left out: under 1 % of the rest from a
few hundred rows and columns on. Sizes are numbers of elements, `element_bytes` those of one element.

Arithmetic, roughly: a place on a roofline's horizontal axis. Every addition, multiplication, comparison, exponential,
root and error function counts as one, read off the plain reference; what is done once a row is left out. Other counts
of an exponential differ by tens. On a log-log roofline a wrong count moves a point along the slope of the memory roof,
so its distance below that roof depends on bytes and seconds alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.memory import FP32
from suite.predict.analytic.one_bit_compression import BITS_PER_BYTE


class KernelBytes(NamedTuple):
    """Bytes that one call moves at least.

    Args:
        backward: None where there is no backward pass, or where the forward pass writes the gradients.
    """

    forward: int
    backward: int | None


def kernel_bytes(name: str, **sizes: int) -> KernelBytes:
    """Least bytes of one call of the kernel `name`, forward and backward; sizes are those of its formula below.

    Raises:
        ValueError: no such kernel.
    """
    if name not in FORMULAS:
        raise ValueError(f"kernel: allowed {', '.join(FORMULAS)}, got {name}")
    return FORMULAS[name](**sizes)


def _layer_norm(*, rows: int, columns: int, element_bytes: int) -> KernelBytes:
    """2 M N b: x, y; backward 3 M N b: x, dy, dx."""
    size = rows * columns * element_bytes
    return KernelBytes(2 * size, 3 * size)


def _residual_layer_norm(*, rows: int, columns: int, element_bytes: int, kept: int = 0, scaled: int = 0) -> KernelBytes:
    """3 M N b: x, f, y; backward 3 M N b: x + f, dy, their gradient.

    M N b more for each of: the sum and its gradient, where it is `kept`; backward the second gradient, where x is
    `scaled` in the sum and its gradient is not that of f.
    """
    size = rows * columns * element_bytes
    return KernelBytes((3 + kept) * size, (3 + kept + scaled) * size)


def _parallel_layer_norms(*, rows: int, columns: int, element_bytes: int) -> KernelBytes:
    """3 M N b: x, y1, y2; backward 4 M N b: x, dy1, dy2, dx."""
    size = rows * columns * element_bytes
    return KernelBytes(3 * size, 4 * size)


def _bias_activation(*, rows: int, columns: int, element_bytes: int) -> KernelBytes:
    """2 M N b: x, y; backward 3 M N b: x, dy, dx; the bias's gradient is added up on the way."""
    size = rows * columns * element_bytes
    return KernelBytes(2 * size, 3 * size)


def _geglu(*, rows: int, columns: int, element_bytes: int) -> KernelBytes:
    """3 M H b: both halves of the input, y; backward 5 M H b: the same two, dy, their gradients; H columns of y."""
    size = rows * columns * element_bytes
    return KernelBytes(3 * size, 5 * size)


def _rotary(*, elements: int, element_bytes: int) -> KernelBytes:
    """2 E b: queries and keys of E elements, and both turned; backward the same of their gradients.

    All dimensions of the heads count, those that do not turn too: the outputs are new tensors, to which they are
    copied. Differs from the often quoted 2 r E b, with r the share of the head that turns: that is in place.
    """
    return KernelBytes(2 * elements * element_bytes, 2 * elements * element_bytes)


def _masked_softmax(*, rows: int, columns: int, element_bytes: int, causal: int = 0, prefix: int = 0) -> KernelBytes:
    """2 M S b: scores, weights, M rows of all sequences and heads; backward 3 M S b: weights, dy, dx.

    A causal mask halves what is read, not what is written: 1.5 M S b and 2 M S b. Differs from the often quoted half of
    all: the product that follows reads the zeros. With a prefix of P positions that all attend to, the share that is
    read is (1 + (P / S)^2) / 2.
    """
    size = rows * columns * element_bytes
    read = rows * (columns**2 + prefix**2) * element_bytes // (2 * columns) if causal else size
    return KernelBytes(read + size, 2 * read + size)


def _attention(*, heads: int, length: int, head_size: int, element_bytes: int) -> KernelBytes:
    """4 H T K b: queries, keys, values, output; backward 7 H T K b: the first three, dy, and their gradients.

    H heads of all sequences, T positions, K the head size: of a fused attention, which keeps no scores. From a few
    hundred positions on its 4 H T^2 K flop (half with a causal mask) take longer than these bytes.
    """
    size = heads * length * head_size * element_bytes
    return KernelBytes(4 * size, 7 * size)


def _cross_entropy(*, rows: int, columns: int, element_bytes: int) -> KernelBytes:
    """2 M V b: logits, and in their place their gradient."""
    return KernelBytes(2 * rows * columns * element_bytes, None)


def _linear_cross_entropy(*, rows: int, columns: int, vocabulary: int, element_bytes: int) -> KernelBytes:
    """2 (M + V) K b: hidden states of K columns and the table of V rows, and the gradients of both."""
    return KernelBytes(2 * (rows + vocabulary) * columns * element_bytes, None)


def _adamw(
    *, parameters: int, gradient_bytes: int = FP32, weight_bytes: int = FP32, copy_bytes: int = 0
) -> KernelBytes:
    """(2 w + g + c + 16) N: weight and both fp32 moments read and written, gradient read, copy written.

    28 N in fp32 without a copy, 30 N with one in 16 bits.
    """
    return KernelBytes((2 * weight_bytes + gradient_bytes + copy_bytes + 4 * FP32) * parameters, None)


def _gradient_norm(*, parameters: int, gradient_bytes: int) -> KernelBytes:
    """N b: every gradient once."""
    return KernelBytes(parameters * gradient_bytes, None)


def _sign_pack(*, elements: int, element_bytes: int) -> KernelBytes:
    """(b + 4) N + (b + 8) N + N / 8, thus 20.125 N in fp32.

    (b + 4) N    value and error, for the scale
    (b + 8) N    value and error, and the new error
    N / 8        signs, rounded up to a byte
    """
    return KernelBytes((2 * element_bytes + 3 * FP32) * elements + ceil_division(elements, BITS_PER_BYTE), None)


def _sign_unpack(*, elements: int, ranks: int) -> KernelBytes:
    """p N / 8 + 4 N: the signs of p ranks, each rounded up to a byte, and their mean in fp32."""
    return KernelBytes(ranks * ceil_division(elements, BITS_PER_BYTE) + FP32 * elements, None)


FORMULAS: Mapping[str, Callable[..., KernelBytes]] = MappingProxyType(
    {
        formula.__name__.removeprefix("_"): formula
        for formula in (
            _layer_norm,
            _residual_layer_norm,
            _parallel_layer_norms,
            _bias_activation,
            _geglu,
            _rotary,
            _masked_softmax,
            _attention,
            _cross_entropy,
            _linear_cross_entropy,
            _adamw,
            _gradient_norm,
            _sign_pack,
            _sign_unpack,
        )
    }
)


class KernelFlop(NamedTuple):
    """Arithmetic of one call; `backward` is None where there is no backward pass."""

    forward: float
    backward: float | None


# of an element: forward, backward
_LAYER_NORM = (7, 13)  # mean 1, centred 1, square 2, scaled 1, weight and bias 2; backward two sums 3, dx 5, dw 3, db 2
_ACTIVATION = {"gelu": (6, 12), "gelutanh": (9, 16), "fastgelu": (5, 10), "relu": (2, 2)}  # with the bias
_SOFTMAX = (7, 5)  # scale, mask, maximum, difference, exp, sum, quotient; backward product, sum, difference, product 2
_ADAMW = 14  # two moments 3 each, root and correction 4, decay 2, update 2


def kernel_flop(name: str, variant: str = "", **sizes: int) -> KernelFlop:
    """Arithmetic of one call of the kernel `name`; sizes are those of `kernel_bytes`.

    Raises:
        ValueError: no such kernel.
    """
    if name not in FLOP_FORMULAS:
        raise ValueError(f"kernel: allowed {', '.join(FLOP_FORMULAS)}, got {name}")
    return FLOP_FORMULAS[name](variant, sizes)


def _each(elements: int, passes: tuple[int, int]) -> KernelFlop:
    return KernelFlop(passes[0] * elements, passes[1] * elements)


def _area(sizes: Mapping[str, int]) -> int:
    return sizes["rows"] * sizes["columns"]


def _residual_layer_norm_flop(variant: str, sizes: Mapping[str, int]) -> KernelFlop:
    more = 2 if variant == "scaled" else 1
    return _each(_area(sizes), (_LAYER_NORM[0] + more, _LAYER_NORM[1] + more))


def _parallel_layer_norms_flop(_: str, sizes: Mapping[str, int]) -> KernelFlop:
    return _each(_area(sizes), (_LAYER_NORM[0] + 2, _LAYER_NORM[1] + 5))


def _masked_softmax_flop(_: str, sizes: Mapping[str, int]) -> KernelFlop:
    """Of a causal mask half the scores count, and with a prefix of P positions of S the share (1 + (P / S)^2) / 2."""
    share = (1 + (sizes.get("prefix", 0) / sizes["columns"]) ** 2) / 2 if sizes.get("causal") else 1.0
    return KernelFlop(_SOFTMAX[0] * share * _area(sizes), _SOFTMAX[1] * share * _area(sizes))


def _attention_flop(_: str, sizes: Mapping[str, int]) -> KernelFlop:
    """4 H T^2 K forward, 10 H T^2 K backward with its recomputation of scores; half of each, for a mask is causal."""
    products = 2.0 * sizes["heads"] * sizes["length"] ** 2 * sizes["head_size"]
    return KernelFlop(products, 2.5 * products)


FLOP_FORMULAS: Mapping[str, Callable[[str, Mapping[str, int]], KernelFlop]] = MappingProxyType(
    {
        "layer_norm": lambda _, sizes: _each(_area(sizes), _LAYER_NORM),
        "residual_layer_norm": _residual_layer_norm_flop,
        "parallel_layer_norms": _parallel_layer_norms_flop,
        "bias_activation": lambda variant, sizes: _each(_area(sizes), _ACTIVATION[variant or "gelu"]),
        "geglu": lambda _, sizes: _each(_area(sizes), (6, 14)),
        "rotary": lambda _, sizes: _each(sizes["elements"], (3, 3)),
        "masked_softmax": _masked_softmax_flop,
        "attention": _attention_flop,
        "cross_entropy": lambda _, sizes: KernelFlop(6 * _area(sizes), None),
        "linear_cross_entropy": lambda _, sizes: KernelFlop(6 * _area(sizes) * sizes["vocabulary"], None),
        "adamw": lambda _, sizes: KernelFlop(_ADAMW * sizes["parameters"], None),
        "gradient_norm": lambda _, sizes: KernelFlop(2 * sizes["parameters"], None),
        "sign_pack": lambda _, sizes: KernelFlop(6 * sizes["elements"], None),
        "sign_unpack": lambda _, sizes: KernelFlop(2 * sizes["elements"] * sizes["ranks"], None),
    }
)
