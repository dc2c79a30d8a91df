"""Element-wise operators, normalisation, softmax, sums, loss, optimizer step and copies to be timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from reference_runs.run import Activation
from suite.execute.calibrate.matmul import DTYPES, Inputs
from suite.execute.calibrate.stopwatch import Following
from suite.execute.measure.clock import Work
from suite.execute.model.torch_operations import ACTIVATIONS
from suite.machine.timing_tables import Subject

AFTER_OPERANDS = 2  # the gradient's place among the inputs: an operator has two operands at most
TINY = 64  # elements of a tensor whose arithmetic takes no time beside the call
BIAS = 128  # elements of a bias
HEAD = (8, 16)  # heads and head size of a tensor that is permuted


def _dropout(x: Tensor) -> Tensor:
    return functional.dropout(x, 0.1)


def _chain(x: Tensor) -> Tensor:
    """Four operators that a compiler may fuse: 10 reads and writes of x eagerly, 2 when fused."""
    return functional.gelu(x * 0.5 + 1.0, approximate="tanh") + x


def _geglu(x: Tensor) -> Tensor:
    gate, gated = x.unflatten(-1, (-1, 2)).unbind(-1)
    activated: Tensor = ACTIVATIONS[Activation.GEGLU](gate) * gated
    return activated


# of one tensor; docs/calibration.md has the bytes that each moves
ONE_TENSOR: dict[str, Callable[[Tensor], Tensor]] = {
    "scale": lambda x: x * 0.5,
    "gelu_tanh": ACTIVATIONS[Activation.GELU_TANH],
    "gelu": ACTIVATIONS[Activation.GELU],
    "relu": ACTIVATIONS[Activation.RELU],
    "fast_gelu": ACTIVATIONS[Activation.FAST_GELU],
    "geglu": _geglu,
    "dropout": _dropout,
    "to_fp32": lambda x: x.float(),
    "chain": _chain,
}


def elementwise(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Work:
    """An operator on `sizes[0]` elements, recorded by autograd; backward: autograd's pass through it alone."""
    (elements,) = sizes
    dtype = DTYPES[subject.dtype]
    if subject.operation == "geglu":
        elements *= 2
    x = inputs.normal(elements, dtype=dtype).detach().requires_grad_()
    if subject.operation == "add":
        y = inputs.normal(elements, dtype=dtype, place=1).detach().requires_grad_()
        return _passes(lambda: x + y, (x, y), subject, inputs)
    if subject.operation == "from_fp32":
        wide = inputs.normal(elements, dtype=torch.float32).detach().requires_grad_()
        return _passes(lambda: wide.to(dtype), (wide,), subject, inputs)
    operator: Callable[[Tensor], Tensor] = ONE_TENSOR[subject.operation]
    if subject.compiled:
        # for each size, as a block is compiled for its own
        operator = torch.compile(operator, dynamic=False)
    return _passes(lambda: operator(x), (x,), subject, inputs)


def without_autograd(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Work:
    """What no graph records: zeros, permuted copies, biases, gradients added to others, sums over rows, and norms.

    permuted: [2, T, 8, 16] to [2, 8, T, 16], which is how heads lie for a batched product.
    bias: written to every row of a new matrix [T, 128], as addmm does before it adds the product.
    accumulate: a gradient added in place to the sum of earlier ones.
    """
    dtype = DTYPES[subject.dtype]
    if subject.operation == "column_sum":
        x_MN = inputs.normal(*sizes, dtype=dtype)
        return Following(lambda: x_MN.sum(dim=0), x_MN)
    (elements,) = sizes
    x = inputs.normal(elements, dtype=dtype)
    if subject.operation == "zeros":
        return lambda: torch.zeros_like(x)
    if subject.operation == "permuted":
        heads, head_dim = HEAD
        length = max(1, elements // (2 * heads * head_dim))
        x_BTHK = inputs.normal(2, length, heads, head_dim, dtype=dtype)
        return Following(lambda: x_BTHK.transpose(1, 2).contiguous(), x_BTHK)
    if subject.operation == "accumulate":
        sums = torch.zeros_like(x)
        return Following(lambda: sums.add_(x), x)
    if subject.operation == "bias":
        bias = inputs.normal(BIAS, dtype=dtype)
        return lambda: bias.new_empty(max(1, elements // BIAS), BIAS).copy_(bias)
    return lambda: torch.linalg.vector_norm(x, dtype=torch.float32)


def rows(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Work:
    """An operator on rows of some columns: layer norm, softmax, cross-entropy, or rows read from a table."""
    count, columns = sizes
    dtype = DTYPES[subject.dtype]
    x = inputs.normal(count, columns, dtype=dtype).detach().requires_grad_()
    if subject.operation == "layer_norm":
        norm = nn.LayerNorm(columns, device=inputs.device, dtype=dtype)
        return _passes(lambda: norm(x), (x, *norm.parameters()), subject, inputs)
    if subject.operation == "softmax":
        return _passes(lambda: torch.softmax(x, dim=-1), (x,), subject, inputs)
    if subject.operation == "cross_entropy":
        targets = torch.randint(columns, (count,), device=inputs.device)
        return _passes(lambda: functional.cross_entropy(x, targets), (x,), subject, inputs)
    places = torch.randint(count, (count,), device=inputs.device)
    return _passes(lambda: functional.embedding(places, x), (x,), subject, inputs)


def _passes(forward: Callable[[], Tensor], leaves: tuple[Tensor, ...], subject: Subject, inputs: Inputs) -> Work:
    """The pass; what the one before it wrote is the first leaf, or the gradient. Of a table's rows none was."""
    if subject.variant == "forward":
        return forward if subject.operation == "embedding" else Following(forward, leaves[0])
    out = forward()
    if not out.dim():
        gradient = torch.ones_like(out)
        return lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True)
    gradient = inputs.normal(*out.shape, dtype=out.dtype, place=AFTER_OPERANDS)
    return Following(lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True), gradient)


def memory(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Work:
    """Copy, or triad a = b + 2 c, of fp32 tensors that move `sizes[0]` bytes in all."""
    (moved,) = sizes
    streams = 2 if subject.operation == "copy" else 3
    parts = [inputs.normal(moved // (4 * streams), dtype=torch.float32, place=place) for place in range(streams - 1)]
    out = torch.empty_like(parts[0])
    if subject.operation == "copy":
        return lambda: out.copy_(parts[0])
    return lambda: torch.add(parts[0], parts[1], alpha=2.0, out=out)


def transfer(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Work:
    """A copy of `sizes[0]` bytes between host memory, pinned or (variant) pageable, and the device."""
    host = torch.randn(sizes[0] // 4)
    if subject.variant != "pageable":
        host = host.pin_memory()
    device = torch.empty(sizes[0] // 4, device=inputs.device)
    if subject.operation == "host_to_device":
        return lambda: device.copy_(host, non_blocking=True)
    return lambda: host.copy_(device, non_blocking=True)


def adam(subject: Subject, sizes: tuple[int, ...], inputs: Inputs) -> Work:
    """A step of PyTorch's fused AdamW on fp32: adam of one tensor of `sizes[0]` elements; adam_tensors of so many."""
    elements = [sizes[0]] if subject.operation == "adam" else [TINY] * sizes[0]
    parameters = [nn.Parameter(inputs.normal(count, dtype=torch.float32).clone()) for count in elements]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    rule: Any = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    return lambda: rule.step()
