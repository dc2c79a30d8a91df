"""Arithmetic of the kernels in `kernels/`, roughly: a place on a roofline's horizontal axis, not a rate to be proud of.

Every addition, multiplication, comparison, exponential, root and error function counts as one, read off the plain
reference; what is done once a row is left out. Other counts of an exponential differ by tens. On a log-log roofline a
wrong count moves a point along the slope of the memory roof, so its distance below that roof depends on bytes and
seconds alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple


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
    if name not in _FORMULAS:
        raise ValueError(f"kernel: allowed {', '.join(_FORMULAS)}, got {name}")
    return _FORMULAS[name](variant, sizes)


def _each(elements: int, passes: tuple[int, int]) -> KernelFlop:
    return KernelFlop(passes[0] * elements, passes[1] * elements)


def _area(sizes: Mapping[str, int]) -> int:
    return sizes["rows"] * sizes["columns"]


def _residual_layer_norm(variant: str, sizes: Mapping[str, int]) -> KernelFlop:
    more = 2 if variant == "scaled" else 1
    return _each(_area(sizes), (_LAYER_NORM[0] + more, _LAYER_NORM[1] + more))


def _parallel_layer_norms(_: str, sizes: Mapping[str, int]) -> KernelFlop:
    return _each(_area(sizes), (_LAYER_NORM[0] + 2, _LAYER_NORM[1] + 5))


def _masked_softmax(_: str, sizes: Mapping[str, int]) -> KernelFlop:
    """Of a causal mask half the scores count, and with a prefix of P positions of S the share (1 + (P / S)^2) / 2."""
    share = (1 + (sizes.get("prefix", 0) / sizes["columns"]) ** 2) / 2 if sizes.get("causal") else 1.0
    return KernelFlop(_SOFTMAX[0] * share * _area(sizes), _SOFTMAX[1] * share * _area(sizes))


def _attention(_: str, sizes: Mapping[str, int]) -> KernelFlop:
    """4 H T^2 K forward, 10 H T^2 K backward with its recomputation of scores; half of each, for a mask is causal."""
    products = 2.0 * sizes["heads"] * sizes["length"] ** 2 * sizes["head_size"]
    return KernelFlop(products, 2.5 * products)


_FORMULAS: Mapping[str, Callable[[str, Mapping[str, int]], KernelFlop]] = MappingProxyType(
    {
        "layer_norm": lambda _, sizes: _each(_area(sizes), _LAYER_NORM),
        "residual_layer_norm": _residual_layer_norm,
        "parallel_layer_norms": _parallel_layer_norms,
        "bias_activation": lambda variant, sizes: _each(_area(sizes), _ACTIVATION[variant or "gelu"]),
        "geglu": lambda _, sizes: _each(_area(sizes), (6, 14)),
        "rotary": lambda _, sizes: _each(sizes["elements"], (3, 3)),
        "masked_softmax": _masked_softmax,
        "attention": _attention,
        "cross_entropy": lambda _, sizes: KernelFlop(6 * _area(sizes), None),
        "linear_cross_entropy": lambda _, sizes: KernelFlop(6 * _area(sizes) * sizes["vocabulary"], None),
        "adamw": lambda _, sizes: KernelFlop(_ADAMW * sizes["parameters"], None),
        "gradient_norm": lambda _, sizes: KernelFlop(2 * sizes["parameters"], None),
        "sign_pack": lambda _, sizes: KernelFlop(6 * sizes["elements"], None),
        "sign_unpack": lambda _, sizes: KernelFlop(2 * sizes["elements"] * sizes["ranks"], None),
    }
)
