"""AdamW, or Adam, with fp32 moments over many tensors in one launch, in place, with a 16-bit copy in the same pass.

Legend: w weight, g gradient times the gradient factor, m and v first and second moment; K tensors of N elements in all.
Least bytes, w, g and c bytes an element of weight, gradient and copy: forward (2 w + g + c + 16) N, thus 28 N in fp32
without a copy. There is no backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.operator import operator, require, require_float, runs_triton
from kernels.tensor_table import CHUNK, EACH, address_in_role, require_one_memory, tensor_of_chunk, tensor_table
from kernels.tiles import warps_of

NAME = "adamw"
Tensors = Tensor | Sequence[Tensor]
Roles = dict[str, list[Tensor]]


def reference(  # noqa: PLR0913  # the terms of AdamW's step
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first_moments: Sequence[Tensor],
    second_moments: Sequence[Tensor],
    copies: Sequence[Tensor],
    gradient_factor: Tensor | None,
    *,
    step: int,
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    decays_gradient: bool = False,
) -> None:
    """One step of AdamW on every tensor in the arithmetic of the moments' dtype; copies may be none.

    With l the learning rate, t the step (1 the first):
        m := m + (1 - beta1) (g - m)
        v := beta2 v + (1 - beta2) g^2
        w := (1 - l weight_decay) w - l / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)

    Source: torch.optim.AdamW; Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2. Differs from the paper in that
    the decay is multiplied by the learning rate, as in PyTorch. Adam, with `decays_gradient`, has g + weight_decay w in
    place of g, and no other decay (torch.optim.Adam).
    """
    rate = learning_rate / (1 - beta1**step)
    root = math.sqrt(1 - beta2**step)
    kept = 1 if decays_gradient else 1 - learning_rate * weight_decay
    for place, (w, g, m, v) in enumerate(zip(weights, gradients, first_moments, second_moments, strict=True)):
        wide = g.to(m.dtype)
        if gradient_factor is not None:
            wide = wide * gradient_factor.to(m.dtype)
        if decays_gradient:
            wide = wide + weight_decay * w.to(m.dtype)
        m.add_((1 - beta1) * (wide - m))
        v.copy_(beta2 * v + (1 - beta2) * wide * wide)
        updated = kept * w.to(m.dtype) - rate * m / (v.sqrt() / root + epsilon)
        w.copy_(updated)
        if copies:
            copies[place].copy_(updated)


@triton.jit
def _update_chunk(  # noqa: PLR0913  # pointers, strides and sizes of one launch
    weight_ptr,
    gradient_ptr,
    first_ptr,
    second_ptr,
    copy_ptr,
    factor_ptr,
    place,
    inside,
    kept,
    rate,
    one_minus_beta1,
    beta2,
    one_minus_beta2,
    root_inverse,
    epsilon,
    gradient_decay,
    HAS_COPY: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    DECAYS_GRADIENT: tl.constexpr,
):
    g = tl.load(gradient_ptr + place, mask=inside).to(tl.float32)
    m = tl.load(first_ptr + place, mask=inside)
    v = tl.load(second_ptr + place, mask=inside)
    w = tl.load(weight_ptr + place, mask=inside).to(tl.float32)
    if HAS_FACTOR:
        g *= tl.load(factor_ptr)
    if DECAYS_GRADIENT:
        g += gradient_decay * w
    m += one_minus_beta1 * (g - m)
    v = beta2 * v + one_minus_beta2 * g * g
    w = kept * w - rate * (m / (tl.sqrt(v) * root_inverse + epsilon))
    tl.store(first_ptr + place, m, mask=inside)
    tl.store(second_ptr + place, v, mask=inside)
    tl.store(weight_ptr + place, w.to(weight_ptr.dtype.element_ty), mask=inside)
    if HAS_COPY:
        tl.store(copy_ptr + place, w.to(copy_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _kernel(  # noqa: PLR0913  # long: one Triton program, its pointers and strides
    weight_ptr,
    gradient_ptr,
    first_ptr,
    second_ptr,
    copy_ptr,
    factor_ptr,
    table_ptr,
    tensors,
    elements,
    kept,
    rate,
    one_minus_beta1,
    beta2,
    one_minus_beta2,
    root_inverse,
    epsilon,
    gradient_decay,
    MANY: tl.constexpr,
    ALIGNED: tl.constexpr,
    HAS_COPY: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    DECAYS_GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    chunk = tl.program_id(0).to(tl.int64)
    if MANY:
        column = tensor_of_chunk(table_ptr, tensors, chunk)
        chunk -= tl.load(table_ptr + column)
        elements = tl.load(table_ptr + tensors + column)
        weight_ptr = address_in_role(table_ptr, tensors, column, 0, weight_ptr, ALIGNED)
        gradient_ptr = address_in_role(table_ptr, tensors, column, 1, gradient_ptr, ALIGNED)
        first_ptr = address_in_role(table_ptr, tensors, column, 2, first_ptr, ALIGNED)
        second_ptr = address_in_role(table_ptr, tensors, column, 3, second_ptr, ALIGNED)
        if HAS_COPY:
            copy_ptr = address_in_role(table_ptr, tensors, column, 4, copy_ptr, ALIGNED)
    first = chunk * BLOCK
    weight_ptr += first
    gradient_ptr += first
    first_ptr += first
    second_ptr += first
    if HAS_COPY:
        copy_ptr += first
    place = tl.arange(0, BLOCK)
    # A mask that may cut anywhere forbids loads of 16 bytes: whole chunks have none.
    if first + BLOCK <= elements:
        _update_chunk(
            weight_ptr, gradient_ptr, first_ptr, second_ptr, copy_ptr, factor_ptr, place, None,
            kept, rate, one_minus_beta1, beta2, one_minus_beta2, root_inverse, epsilon, gradient_decay,
            HAS_COPY, HAS_FACTOR, DECAYS_GRADIENT,
        )  # fmt: skip
    else:
        _update_chunk(
            weight_ptr, gradient_ptr, first_ptr, second_ptr, copy_ptr, factor_ptr, place, place < elements - first,
            kept, rate, one_minus_beta1, beta2, one_minus_beta2, root_inverse, epsilon, gradient_decay,
            HAS_COPY, HAS_FACTOR, DECAYS_GRADIENT,
        )  # fmt: skip


@operator(NAME, mutates=("weights", "first_moments", "second_moments", "copies"), opaque=True)
def _update(  # noqa: PLR0913  # the terms of AdamW's step
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first_moments: Sequence[Tensor],
    second_moments: Sequence[Tensor],
    copies: Sequence[Tensor],
    gradient_factor: Tensor | None,
    step: int,
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    decays_gradient: bool,
) -> None:
    elements = sum(weight.numel() for weight in weights)
    if elements == 0:
        return
    roles = [weights, gradients, first_moments, second_moments, *([copies] if copies else [])]
    table = tensor_table(*roles) if len(weights) > 1 else None
    _kernel[(table.chunks if table else triton.cdiv(elements, CHUNK),)](
        weights[0],
        gradients[0],
        first_moments[0],
        second_moments[0],
        copies[0] if copies else weights[0],
        weights[0] if gradient_factor is None else gradient_factor,
        table.rows if table else weights[0],
        table.tensors if table else 1,
        elements,
        1.0 if decays_gradient else 1 - learning_rate * weight_decay,
        learning_rate / (1 - beta1**step),
        1 - beta1,
        beta2,
        1 - beta2,
        1 / math.sqrt(1 - beta2**step),
        epsilon,
        weight_decay,
        MANY=table is not None,
        ALIGNED=table is not None and table.aligned,
        HAS_COPY=bool(copies),
        HAS_FACTOR=gradient_factor is not None,
        DECAYS_GRADIENT=decays_gradient,
        BLOCK=CHUNK,
        num_warps=warps_of(CHUNK, weights[0].device, each=EACH),
    )


def adamw(  # noqa: PLR0913  # the terms of AdamW's step
    weights: Tensors,
    gradients: Tensors,
    first_moments: Tensors,
    second_moments: Tensors,
    *,
    step: int,
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    decays_gradient: bool = False,
    gradient_factor: Tensor | None = None,
    copies: Tensors | None = None,
) -> None:
    """Change weights and moments in place by one step of AdamW, see `reference`, and round the weights into `copies`.

    Each argument is one tensor, for instance a flat buffer, or as many tensors as the others have. The kernel on CUDA,
    or interpreted, one launch for all of them; elsewhere the plain reference. The host waits for nothing.

    Args:
        weights: what is updated: fp32 masters, or 16-bit weights without masters, widened for the update only.
        gradients: of the loss, before `gradient_factor`.
        first_moments, second_moments: fp32, zero before the first step.
        step: number of this step, 1 the first.
        decays_gradient: Adam's decay, in the gradient, in place of AdamW's.
        gradient_factor: one fp32 number on the device: what gradients are multiplied by, for instance the clipping
            coefficient over the loss scale.
        copies: of another dtype than the weights, written in the same pass.

    Raises:
        UnsupportedInputError: a dtype, device, shape, stride or setting that the kernel does not take.
    """
    roles: Roles = {
        "weights": _listed(weights),
        "gradients": _listed(gradients),
        "first_moments": _listed(first_moments),
        "second_moments": _listed(second_moments),
        "copies": [] if copies is None else _listed(copies),
    }
    settings: dict[str, Any] = {
        "step": step,
        "learning_rate": learning_rate,
        "beta1": beta1,
        "beta2": beta2,
        "epsilon": epsilon,
        "weight_decay": weight_decay,
        "decays_gradient": decays_gradient,
    }
    _check_settings(step, {"beta1": beta1, "beta2": beta2})
    if not roles["weights"]:
        _check_empty(roles)
        return
    _check(roles, gradient_factor)
    w, g, m, v, c = roles.values()
    with torch.no_grad():
        if runs_triton(w[0]):
            _update(w, [gradient.contiguous() for gradient in g], m, v, c, gradient_factor, **settings)
        else:
            reference(w, g, m, v, c, gradient_factor, **settings)


def _listed(tensors: Tensors) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _check_settings(step: int, betas: dict[str, float]) -> None:
    require(step >= 1, NAME, "step", "1 or more", step)
    for name, beta in betas.items():
        require(0 <= beta < 1, NAME, name, "0 or more and below 1", beta)


def _check_empty(roles: Roles) -> None:
    for name, tensors in roles.items():
        require(not tensors, NAME, f"number of {name}", "that of weights, 0", len(tensors))


def _check(roles: Roles, gradient_factor: Tensor | None) -> None:
    """Nothing where the kernel takes all tensors.

    Raises:
        UnsupportedInputError: it does not.
    """
    weights = roles["weights"]
    device = weights[0].device
    number = f"that of weights, {len(weights)}"
    for name, tensors in roles.items():
        if name == "copies" and not tensors:
            continue
        require(len(tensors) == len(weights), NAME, f"number of {name}", number, len(tensors))
        require_float(NAME, **{"weights": weights[0], name: tensors[0]})
        dtype = torch.float32 if name.endswith("moments") else tensors[0].dtype
        for tensor, weight in zip(tensors, weights, strict=True):
            fits = tensor.dtype == dtype and tensor.device == device and tensor.shape == weight.shape
            if fits and (name == "gradients" or tensor.is_contiguous()):
                continue
            shape = str(tuple(weight.shape))
            require(tensor.dtype == dtype, NAME, f"dtype of {name}", f"{dtype} for all", tensor.dtype)
            require(tensor.device == device, NAME, f"device of {name}", f"weights', {device}", tensor.device)
            require(tensor.shape == weight.shape, NAME, f"shape of {name}", shape, tuple(tensor.shape))
            require(False, NAME, f"strides of {name}", "contiguous", tensor.stride())
    if gradient_factor is not None:
        require_float(NAME, weights=weights[0], gradient_factor=gradient_factor)
        dtype, count = gradient_factor.dtype, gradient_factor.numel()
        require(dtype == torch.float32, NAME, "dtype of gradient_factor", "float32", dtype)
        require(count == 1, NAME, "elements of gradient_factor", "1", count)
    if not torch.compiler.is_compiling():
        written = [t for name, tensors in roles.items() if name != "gradients" for t in tensors if t.numel()]
        places = {tensor.data_ptr() for tensor in written}
        require(len(places) == len(written), NAME, "written tensors", "each in memory of its own", "one twice")
    require_one_memory(NAME, device)
