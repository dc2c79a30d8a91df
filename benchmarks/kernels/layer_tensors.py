"""Kernels over the tensors of one layer: AdamW, the gradients' norm, and 1-bit compression of momentum.

AdamW and the norm also take one flat buffer of as many elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import adamw as torchs

from benchmarks.kernels.case import RUNS, Case, Draw, dtypes
from kernels import adamw, gradient_norm, sign_pack
from reference_runs.catalog import reference_run
from suite.predict.analytic.parameters import layer_tensors

Tensors = list[Tensor]
MOST_PARAMETERS = 500_000_000  # of a layer: with masters, moments, copies and rotation 16 GB
STEP = 10_000  # from here on the bias corrections are 1, whatever the step
SETTINGS: dict[str, Any] = {"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1}
RANKS = 8  # whose packed momentum is averaged


def _layers(device: torch.device) -> list[list[int]]:
    """Elements of every parameter tensor of one layer, of each run whose layer is not too large.

    On a CPU of the smallest run alone: the attention's projection with its bias, and all of the attention.
    """
    every = [[tensor.elements for tensor in layer_tensors(reference_run(name).architecture)] for name in RUNS]
    if device.type == "cuda":
        return [layer for layer in every if sum(layer) <= MOST_PARAMETERS]
    smallest = min(every, key=sum)
    attention = smallest[: len(smallest) // 2]
    return [attention[-2:], attention]


def _buffers(device: torch.device) -> Iterator[tuple[str, list[int]]]:
    """Tensors of each of `_layers`, and one flat buffer of them; on a CPU the tensors of the last one alone."""
    every = _layers(device)
    for layer in every:
        if device.type == "cuda" or layer is every[-1]:
            yield "tensors", layer
        yield "flat", [sum(layer)]


def tensors_of_layers(run: str, device: torch.device) -> list[int]:
    """Elements of the parameter tensors of as many of a run's layers as fit; on a CPU three of one layer."""
    architecture = reference_run(run).architecture
    layer = [tensor.elements for tensor in layer_tensors(architecture)]
    if device.type == "cpu":
        return layer[:3]
    return layer * min(architecture.layers, MOST_PARAMETERS // sum(layer))


def our_adamw(w: Tensors, g: Tensors, m: Tensors, v: Tensors, copies: Tensors, factor: Tensor) -> None:
    """AdamW's step by the kernel, with the gradients times the factor."""
    adamw.adamw(w, g, m, v, step=STEP, gradient_factor=factor, copies=copies or None, **SETTINGS)


def _plain_adamw(w: Tensors, g: Tensors, m: Tensors, v: Tensors, copies: Tensors, factor: Tensor) -> None:
    adamw.reference(w, g, m, v, copies, factor, step=STEP, **SETTINGS)


def eager_adamw(w: Tensors, g: Tensors, m: Tensors, v: Tensors, copies: Tensors, factor: Tensor | None) -> None:
    """PyTorch's fused AdamW, which divides by its factor and overwrites the gradients, and a pass for the copies."""
    names = {"learning_rate": "lr", "epsilon": "eps"}
    settings: dict[str, Any] = {names.get(name, name): value for name, value in SETTINGS.items()}
    steps = _steps(len(w), w[0].device)
    torchs.adamw(w, g, m, v, [], steps, fused=True, grad_scale=factor, amsgrad=False, maximize=False, **settings)
    if copies:
        torch._foreach_copy_(copies, w)


@cache
def _steps(count: int, device: torch.device) -> Tensors:
    """PyTorch's counters of steps, which it increases."""
    return [torch.full((), STEP - 1.0, device=device) for _ in range(count)]


def _adamw_inputs(elements: list[int], dtype: torch.dtype, draw: Draw) -> tuple[Any, ...]:
    w, g, m = ([draw.normal(size, dtype=torch.float32) for size in elements] for _ in range(3))
    v = [draw.normal(size, dtype=torch.float32).square() for size in elements]
    copies = [torch.empty(size, dtype=dtype, device=draw.device) for size in elements]
    factor = torch.ones((), device=draw.device)  # 1, as one that is divided by again and again ends in denormals
    return w, g, m, v, [] if dtype == torch.float32 else copies, factor


def _eager_norm(gradients: list[Tensor]) -> Tensor:
    """As torch.nn.utils.get_total_norm, which has no fp32 sums of 16-bit gradients."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2, torch.float32)))
    return norm


def _gradients(elements: list[int], dtype: torch.dtype, draw: Draw) -> tuple[Any, ...]:
    return ([draw.normal(size, dtype=dtype) for size in elements],)


def _packed(elements: int, draw: Draw) -> tuple[Any, ...]:
    return tuple(draw.normal(elements, dtype=torch.float32) for _ in range(2))


def _sent(elements: int, draw: Draw) -> tuple[Any, ...]:
    packed = draw.integers(256, RANKS, -(-elements // 8), dtype=torch.uint8)
    return packed, draw.normal(RANKS, dtype=torch.float32).abs()


def cases(device: torch.device) -> Iterator[Case]:
    """AdamW on fp32 masters without a copy and with one in 16 bits; norms in fp32 and bf16; momentum in fp32."""
    timed = [(*named, *buffer) for named in dtypes(device, "fp32", "bf16").items() for buffer in _buffers(device)]
    for dtype, element, variant, elements in timed:
        yield Case(
            kernel="adamw",
            variant=variant,
            dtype=dtype,
            sizes={"parameters": sum(elements), "copy_bytes": 0 if dtype == "fp32" else element.itemsize},
            over="parameters",
            inputs=partial(_adamw_inputs, elements, element),
            ours=our_adamw,
            plain=_plain_adamw,
            eager=eager_adamw,
            compilable=_plain_adamw,
        )
    for dtype, element, variant, elements in timed:
        yield Case(
            kernel="gradient_norm",
            variant=variant,
            dtype=dtype,
            sizes={"parameters": sum(elements), "gradient_bytes": element.itemsize},
            over="parameters",
            inputs=partial(_gradients, elements, element),
            ours=gradient_norm.gradient_norm,
            plain=gradient_norm.reference,
            eager=_eager_norm,
            compilable=gradient_norm.reference,
        )
    yield from _sign_pack_cases(device)


def _sign_pack_cases(device: torch.device) -> Iterator[Case]:
    """Compression with error feedback, and the mean of what eight ranks sent; PyTorch has neither operation."""
    for index, elements in enumerate(map(sum, _layers(device))):
        yield Case(
            kernel="sign_pack",
            dtype="fp32",
            sizes={"elements": elements, "element_bytes": 4},
            over="elements",
            inputs=partial(_packed, elements),
            ours=sign_pack.sign_pack,
            plain=sign_pack.reference,
            eager=sign_pack.reference,
        )
        if device.type == "cpu" and index > 0:
            continue  # the plain reference takes seconds
        unpack = partial(sign_pack.reference_unpack, elements=elements)
        yield Case(
            kernel="sign_pack",
            formula="sign_unpack",
            variant="unpack",
            dtype="fp32",
            sizes={"elements": elements, "ranks": RANKS},
            over="elements",
            inputs=partial(_sent, elements),
            ours=partial(sign_pack.sign_unpack, elements=elements),
            plain=unpack,
            eager=unpack,
        )
