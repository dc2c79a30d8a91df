"""The exponential, the distribution of standard normal numbers, and activations, in few of a GPU's instructions.

GELU(tanh), FastGELU and SiLU are x sigmoid(w) with w = 2 sqrt(2 / pi) (x + 0.044715 x^3), for (1 + tanh(v)) / 2 =
sigmoid(2 v), w = 1.702 x, and w = x. With e = exp(-|w|) and r = 1 / (1 + e) neither the sigmoid (r where w >= 0, else
e r) nor its slope e r^2 overflows or cancels.
Sources: Hendrycks and Gimpel 2016, arXiv 1606.08415 (GELU, both approximations, SiLU).
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1 / math.log(2))
_ROOT = tl.constexpr(math.sqrt(0.5))
_DENSITY = tl.constexpr(1 / math.sqrt(2 * math.pi))  # of the standard normal distribution at 0
# activations
GELU = tl.constexpr(0)
GELU_TANH = tl.constexpr(1)
FAST_GELU = tl.constexpr(2)
RELU = tl.constexpr(3)
RELU_SQUARED = tl.constexpr(4)
SILU = tl.constexpr(5)
_CUBE = tl.constexpr(0.044715)
_TANH = tl.constexpr(2 * math.sqrt(2 / math.pi))
_FAST = tl.constexpr(1.702)
# |x| from which sigmoid(w) is 0 or 1 in fp32 and its slope 0, many times over: kept from overflow in x^3
_FAR = tl.constexpr(100.0)
# Phi(-|x|) exp(x^2 / 2) = C1 t + C2 t^2 + ... + C6 t^6 with t = 1 / (1 + P |x|), the form of Abramowitz and Stegun
# 7.1.26. Coefficients: least largest relative error on 0 <= |x| <= 14 (linear program, P in steps of 0.01), 4.6e-6.
_P = tl.constexpr(0.31)
_C1 = tl.constexpr(0.123860681)
_C2 = tl.constexpr(0.120441406)
_C3 = tl.constexpr(0.133429593)
_C4 = tl.constexpr(0.0157445723)
_C5 = tl.constexpr(0.180450817)
_C6 = tl.constexpr(-0.0739293895)


@triton.jit
def exp(x):
    """exp(x) as 2 ** (x log2(e)): two instructions; Triton's own has five, for results below 2 ** -126 (sm_90)."""
    return tl.exp2(x * LOG2_E)


@triton.jit
def normal_distribution(x, EXACT: tl.constexpr):
    """The distribution function of standard normal numbers at x, and their density, in fp32.

    Exact, the function is (1 + erf(x / sqrt(2))) / 2. Otherwise it is off by at most 5e-6 of itself, below zero too:
    a fiftieth of what rounding to fp16 does, in a third of the instructions.
    """
    # constants stand on the right: interpreted, a constexpr on the left takes a tensor in and becomes none
    fall = exp(x * x * -0.5)
    if EXACT:
        part = tl.erf(x * _ROOT) * 0.5 + 0.5
    else:
        t = 1.0 / (tl.abs(x) * _P + 1.0)
        tail = (((((t * _C6 + _C5) * t + _C4) * t + _C3) * t + _C2) * t + _C1) * t * fall
        part = tl.where(x >= 0.0, 1.0 - tail, tail)
    return part, fall * _DENSITY


@triton.jit
def fraction(u, ACTIVATION: tl.constexpr, EXACT: tl.constexpr):
    """Factor by which an activation, GELU of any kind or SILU, multiplies u, and the slope of that."""
    # constants stand on the right: interpreted, a constexpr on the left takes a tensor in and becomes none
    if ACTIVATION == GELU:
        part, slope = normal_distribution(u, EXACT)
    else:
        if ACTIVATION == SILU:
            e = exp(-tl.abs(u))
            inner_slope = 1.0
        else:
            size = tl.minimum(tl.abs(u), _FAR)
            if ACTIVATION == GELU_TANH:
                square = size * size
                e = tl.exp2(size * (square * _CUBE + 1.0) * (-_TANH * LOG2_E))
                inner_slope = (square * (3.0 * _CUBE) + 1.0) * _TANH
            else:
                e = tl.exp2(size * (-_FAST * LOG2_E))
                inner_slope = _FAST
        r = 1.0 / (e + 1.0)
        part = tl.where(u >= 0.0, r, e * r)
        slope = e * r * r * inner_slope
    return part, slope
