"""GeGLU of an interleaved expansion, y = gelu(gate) * gated with its bias in one pass, forward and backward.

Legend: M rows, F units.
Least bytes, b an element: forward 3 M F b; backward 5 M F b and the partial sums of the bias' gradient.
Source: Shazeer 2020, arXiv 2002.05202 (GEGLU).
"""

from __future__ import annotations

from torch import Tensor

from kernels import bias_activation
from kernels.gated_activation import gated, require_pairs
from kernels.operator import runs_triton

NAME = "geglu"


def reference(x: Tensor, bias: Tensor | None, *, tanh: bool = False) -> Tensor:
    """gelu(gate) * gated in the arithmetic of x's dtype, the last dim of x + bias being [F, 2], gate and gated."""
    gate, other = (x if bias is None else x + bias).unflatten(-1, (-1, 2)).unbind(-1)
    y: Tensor = bias_activation.reference(gate, None, "gelu_tanh" if tanh else "gelu") * other
    return y


def geglu(x: Tensor, bias: Tensor | None, *, tanh: bool = False) -> Tensor:
    """gelu(gate) * gated [..., F] of the expansion x [..., 2 F], whose last dim is [F, 2], plus its bias [2 F].

    Computed in fp32 and rounded once. The kernel on CUDA, or interpreted; elsewhere the plain reference.

    Args:
        tanh: whether gelu is its approximation by tanh (Gemma), in place of the exact one.

    Raises:
        UnsupportedInputError: a dtype, device or shape that the kernel does not take.
    """
    require_pairs(NAME, x, bias)
    if not runs_triton(x):
        return reference(x, bias, tanh=tanh)
    return gated(x, bias, "gelu_tanh" if tanh else "gelu")
