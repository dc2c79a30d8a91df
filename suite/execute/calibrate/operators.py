"""Operators with random operands, ready to be timed: products, element-wise operators, norms, loss, Adam, copies."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from reference_runs.run import Activation
from suite.execute.calibrate.stopwatch import WarmOperandCall
from suite.execute.measure.clock import Call
from suite.execute.model.torch_operations import ACTIVATIONS
from suite.machine.timing_tables import Subject

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
AFTER_OPERANDS = 2  # index of the gradient among the inputs: an operator has at most two operands
TINY = 64  # elements of a tensor whose arithmetic takes no time compared with the call
NORMS: dict[str, type[nn.Module]] = {"layer_norm": nn.LayerNorm, "rms_norm": nn.RMSNorm}
BIAS = 128  # elements of a bias
HEAD = (8, 16)  # heads and head size of a tensor that is permuted


class Inputs:
    """Random numbers, drawn once for each dtype. Tensors are views of them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._drawn: dict[torch.dtype, Tensor] = {}

    def normal(self, *shape: int, dtype: torch.dtype, index: int = 0) -> Tensor:
        """Standard normal numbers of that shape. Tensors of one shape with different indices do not overlap."""
        elements = math.prod(shape)
        needed = (index + 1) * elements
        drawn = self._drawn.get(dtype)
        if drawn is None or drawn.numel() < needed:
            drawn = self._drawn[dtype] = torch.randn(needed, device=self.device).to(dtype)
        return drawn[index * elements : needed].view(shape)


def product(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Call:
    """M x K by K x N, sizes (M, N, K): a product of a linear layer.

    NT: the second factor is stored N x K (forward). NN: as K x N (the input's gradient). TN: the first factor is stored
    K x M (the weight's gradient).
    """
    m, n, k = sizes
    dtype = DTYPES[subject.dtype]
    a = inputs.normal(*((k, m) if subject.variant == "TN" else (m, k)), dtype=dtype)
    a_MK = a.t() if subject.variant == "TN" else a
    b = inputs.normal(n * k + m * k, dtype=dtype)[m * k :]  # after the first factor
    b_KN = b.view(n, k).t() if subject.variant == "NT" else b.view(k, n)
    return WarmOperandCall(lambda: torch.mm(a_MK, b_KN), a)


def square_product(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Call:
    """N x N by N x N of `sizes[0]` = 2 N^3 flop: the highest rate that a device reaches."""
    side = round((sizes[0] / 2) ** (1 / 3))
    return product(subject, (side, side, side), inputs)


def batched_product(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Call:
    """The products of unfused attention, sizes batch times heads, sequence T, head size K.

    NT: scores, T x K by K x T. NN: context and the queries' gradient, T x T by T x K. TN: the gradients of keys and
    values, T x T transposed by T x K.
    """
    batch, length, head_dim = sizes
    dtype = DTYPES[subject.dtype]
    if subject.variant == "NT":
        a = inputs.normal(batch, length, head_dim, dtype=dtype)
        b = inputs.normal(batch, length, head_dim, dtype=dtype, index=1).transpose(1, 2)
        return WarmOperandCall(lambda: torch.bmm(a, b), a)
    scores = inputs.normal(batch, length, length, dtype=dtype)
    square = scores.transpose(1, 2) if subject.variant == "TN" else scores
    after_scores = inputs.normal(batch * length * (length + head_dim), dtype=dtype)[batch * length * length :]
    values = after_scores.view(batch, length, head_dim)
    return WarmOperandCall(lambda: torch.bmm(square, values), scores)


def attention(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Call:
    """Causal scaled_dot_product_attention, sizes batch times heads, sequence, head size."""
    heads, length, head_dim = sizes
    dtype, shape = DTYPES[subject.dtype], (1, heads, length, head_dim)
    q, k, v = (inputs.normal(*shape, dtype=dtype, index=index).detach().requires_grad_() for index in range(3))
    if subject.variant == "forward":
        projected = inputs.normal(3, heads, length, head_dim, dtype=dtype)  # one projection writes all three
        return WarmOperandCall(lambda: scaled_dot_product_attention(q, k, v, is_causal=True), projected)
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    gradient = inputs.normal(*shape, dtype=dtype, index=3)
    return WarmOperandCall(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True), gradient)


def _chain(x: Tensor) -> Tensor:
    """Four operators that a compiler may fuse: 10 reads and writes of x eagerly, 2 when fused."""
    return functional.gelu(x * 0.5 + 1.0, approximate="tanh") + x


def _gated(activation: Activation, x: Tensor) -> Tensor:
    gate, gated = x.unflatten(-1, (-1, 2)).unbind(-1)
    activated: Tensor = ACTIVATIONS[activation](gate) * gated
    return activated


GATED: dict[str, Callable[[Tensor], Tensor]] = {
    "geglu": partial(_gated, Activation.GEGLU),
    "geglu_tanh": partial(_gated, Activation.GEGLU_TANH),
    "swiglu": partial(_gated, Activation.SWIGLU),
}


# of one tensor; docs/calibration.md has the bytes that each moves
ONE_TENSOR: dict[str, Callable[[Tensor], Tensor]] = {
    "scale": lambda x: x * 0.5,
    "gelu_tanh": ACTIVATIONS[Activation.GELU_TANH],
    "gelu": ACTIVATIONS[Activation.GELU],
    "relu": ACTIVATIONS[Activation.RELU],
    "fast_gelu": ACTIVATIONS[Activation.FAST_GELU],
    **GATED,
    "dropout": lambda x: functional.dropout(x, 0.1),
    "to_fp32": lambda x: x.float(),
    "chain": _chain,
}


def elementwise(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Call:
    """An operator on `sizes[0]` elements, recorded by autograd; backward: its backward pass alone."""
    elements = 2 * sizes[0] if subject.operation in GATED else sizes[0]
    dtype = DTYPES[subject.dtype]
    x = inputs.normal(elements, dtype=dtype).detach().requires_grad_()
    if subject.operation == "add":
        y = inputs.normal(elements, dtype=dtype, index=1).detach().requires_grad_()
        return _forward_or_backward(lambda: x + y, (x, y), subject, inputs)
    if subject.operation == "from_fp32":
        wide = inputs.normal(elements, dtype=torch.float32).detach().requires_grad_()
        return _forward_or_backward(lambda: wide.to(dtype), (wide,), subject, inputs)
    operator: Callable[[Tensor], Tensor] = ONE_TENSOR[subject.operation]
    if subject.compiled:
        operator = torch.compile(operator, dynamic=False)  # for each size, as a block is compiled for its own
    return _forward_or_backward(lambda: operator(x), (x,), subject, inputs)


def without_autograd(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Call:
    """Operators that autograd does not record: zeros, permuted copies, biases, accumulation, sums over rows, norms.

    permuted: [2, T, 8, 16] to [2, 8, T, 16], which is how heads lie for a batched product.
    bias: written to every row of a new matrix [T, 128], as addmm does before it adds the product.
    accumulate: a gradient added in place to the sum of earlier ones.
    """
    dtype = DTYPES[subject.dtype]
    if subject.operation == "column_sum":
        x_MN = inputs.normal(*sizes, dtype=dtype)
        return WarmOperandCall(lambda: x_MN.sum(dim=0), x_MN)
    (elements,) = sizes
    x = inputs.normal(elements, dtype=dtype)
    if subject.operation == "zeros":
        return lambda: torch.zeros_like(x)
    if subject.operation == "permuted":
        heads, head_dim = HEAD
        x_BTHK = inputs.normal(2, max(1, elements // (2 * heads * head_dim)), heads, head_dim, dtype=dtype)
        return WarmOperandCall(lambda: x_BTHK.transpose(1, 2).contiguous(), x_BTHK)
    if subject.operation == "accumulate":
        sums = torch.zeros_like(x)
        return WarmOperandCall(lambda: sums.add_(x), x)
    if subject.operation == "bias":
        bias = inputs.normal(BIAS, dtype=dtype)
        return lambda: bias.new_empty(max(1, elements // BIAS), BIAS).copy_(bias)
    return lambda: torch.linalg.vector_norm(x, dtype=torch.float32)


def rows(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Call:
    """An operator on a matrix, sizes rows, columns: a norm, softmax, cross-entropy, or an embedding's reads."""
    count, columns = sizes
    dtype = DTYPES[subject.dtype]
    x = inputs.normal(count, columns, dtype=dtype).detach().requires_grad_()
    if subject.operation in NORMS:
        norm = NORMS[subject.operation](columns, device=inputs.device, dtype=dtype)
        return _forward_or_backward(lambda: norm(x), (x, *norm.parameters()), subject, inputs)
    if subject.operation == "softmax":
        return _forward_or_backward(lambda: torch.softmax(x, dim=-1), (x,), subject, inputs)
    if subject.operation == "cross_entropy":
        targets = torch.randint(columns, (count,), device=inputs.device)
        return _forward_or_backward(lambda: functional.cross_entropy(x, targets), (x,), subject, inputs)
    tokens = torch.randint(count, (count,), device=inputs.device)
    return _forward_or_backward(lambda: functional.embedding(tokens, x), (x,), subject, inputs)


def _forward_or_backward(
    forward: Callable[[], Tensor], leaves: tuple[Tensor, ...], subject: Subject, inputs: Inputs
) -> Call:
    """The pass that `subject.variant` names. Its warm operand is the first leaf, or the gradient of the output.

    The rows of an embedding are not warm, nor is the gradient of a loss, a single element.
    """
    if subject.variant == "forward":
        return forward if subject.operation == "embedding" else WarmOperandCall(forward, leaves[0])
    out = forward()
    if not out.dim():
        one = torch.ones_like(out)
        return lambda: torch.autograd.grad(out, leaves, one, retain_graph=True)
    gradient = inputs.normal(*out.shape, dtype=out.dtype, index=AFTER_OPERANDS)
    return WarmOperandCall(lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True), gradient)


def memory(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Call:
    """Copy, or triad a = b + 2 c, of fp32 tensors that move `sizes[0]` bytes in all."""
    copies = subject.operation == "copy"
    elements = sizes[0] // (4 * (2 if copies else 3))
    b = inputs.normal(elements, dtype=torch.float32)
    out = torch.empty_like(b)
    if copies:
        return lambda: out.copy_(b)
    c = inputs.normal(elements, dtype=torch.float32, index=1)
    return lambda: torch.add(b, c, alpha=2.0, out=out)


def transfer(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Call:
    """A copy of `sizes[0]` bytes between host memory, pinned or (variant) pageable, and the device."""
    host = torch.randn(sizes[0] // 4)
    if subject.variant != "pageable":
        host = host.pin_memory()
    device = torch.empty(sizes[0] // 4, device=inputs.device)
    if subject.operation == "host_to_device":
        return lambda: device.copy_(host, non_blocking=True)
    return lambda: host.copy_(device, non_blocking=True)


def adam(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Call:
    """A step of PyTorch's fused fp32 AdamW. adam: one tensor of `sizes[0]` elements; adam_tensors: so many tensors."""
    elements = [sizes[0]] if subject.operation == "adam" else [TINY] * sizes[0]
    parameters = [nn.Parameter(inputs.normal(count, dtype=torch.float32).clone()) for count in elements]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer: Any = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    return lambda: optimizer.step()
