"""Matrix products and attention to be timed: random inputs, and the call."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from suite.execute.calibrate.stopwatch import Following
from suite.execute.measure.clock import Work
from suite.machine.timing_tables import Subject

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Inputs:
    """Random numbers, drawn once for each dtype: tensors are views of them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._drawn: dict[torch.dtype, Tensor] = {}

    def normal(self, *shape: int, dtype: torch.dtype, place: int = 0) -> Tensor:
        """Standard normal numbers of that shape, the `place`-th such tensor: those of two places do not overlap."""
        elements = 1
        for size in shape:
            elements *= size
        needed = (place + 1) * elements
        drawn = self._drawn.get(dtype)
        if drawn is None or drawn.numel() < needed:
            drawn = torch.randn(needed, device=self.device).to(dtype)
            self._drawn[dtype] = drawn
        return drawn[place * elements : needed].view(shape)


def product(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Work:
    """The product of M x K by K x N (sizes M, N, K): as a linear layer stores its weight, and its backward pass.

    NT: the second factor is stored N x K (forward); NN: as K x N (the input's gradient); TN: the first one is stored
    K x M (the weight's gradient).
    """
    m, n, k = sizes
    dtype = DTYPES[subject.dtype]
    a = inputs.normal(*((k, m) if subject.variant == "TN" else (m, k)), dtype=dtype)
    a_MK = a.t() if subject.variant == "TN" else a
    b = inputs.normal(n * k + m * k, dtype=dtype)[m * k :]  # behind the first factor
    b_KN = b.view(n, k).t() if subject.variant == "NT" else b.view(k, n)
    return Following(lambda: torch.mm(a_MK, b_KN), a)


def square_product(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Work:
    """The product of two N x N matrices that takes `sizes[0]` flop, 2 N^3: what a device reaches at its best."""
    side = round((sizes[0] / 2) ** (1 / 3))
    return product(subject, (side, side, side), inputs)


def batched_product(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Work:
    """The products of unfused attention, sizes batch times heads, sequence T, head size K.

    NT: scores, T x K by K x T; NN: context and the queries' gradient, T x T by T x K; TN: the gradients of keys and
    values, T x T transposed by T x K.
    """
    batch, length, head_dim = sizes
    dtype = DTYPES[subject.dtype]
    if subject.variant == "NT":
        a = inputs.normal(batch, length, head_dim, dtype=dtype)
        b = inputs.normal(batch, length, head_dim, dtype=dtype, place=1).transpose(1, 2)
        return Following(lambda: torch.bmm(a, b), a)
    scores = inputs.normal(batch, length, length, dtype=dtype)
    square = scores.transpose(1, 2) if subject.variant == "TN" else scores
    behind = inputs.normal(batch * length * (length + head_dim), dtype=dtype)[batch * length * length :]
    values = behind.view(batch, length, head_dim)
    return Following(lambda: torch.bmm(square, values), scores)


def attention(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Work:
    """Causal scaled_dot_product_attention, sizes batch times heads, sequence, head size."""
    heads, length, head_dim = sizes
    dtype = DTYPES[subject.dtype]
    q, k, v = (
        inputs.normal(1, heads, length, head_dim, dtype=dtype, place=place).detach().requires_grad_()
        for place in range(3)
    )
    if subject.variant == "forward":
        written = inputs.normal(3, heads, length, head_dim, dtype=dtype)  # all three: one projection's result
        return Following(lambda: scaled_dot_product_attention(q, k, v, is_causal=True), written)
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    gradient = inputs.normal(1, heads, length, head_dim, dtype=dtype, place=3)
    return Following(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True), gradient)
