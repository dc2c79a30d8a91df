"""Kernels over the rows of activations: LayerNorms, RMSNorms, bias and activation, gated activations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.kernels.case import RUNS, Case, Draw, Function, dtypes
from kernels import (
    bias_activation,
    geglu,
    layer_norm,
    parallel_layer_norms,
    residual_layer_norm,
    residual_rms_norm,
    rms_norm,
    swiglu,
)
from reference_runs.catalog import reference_run
from reference_runs.run import Activation
from suite.execute.model.torch_operations import ACTIVATIONS

ROWS = {"cuda": 16_384, "cpu": 64}  # tokens of a micro-batch: inputs and outputs larger than a cache of 50 MB at 1,600
MOST_ELEMENTS = 2**28  # of a tensor, 1 GiB in fp32
EPSILON = 1e-5
ALPHA = 11.8  # of DeepNorm in GLM-130B: sqrt(2 * 70)
TIMED_ACTIVATIONS: dict[bias_activation.Activation, Activation] = {
    "gelu": Activation.GELU,
    "gelu_tanh": Activation.GELU_TANH,
    "fast_gelu": Activation.FAST_GELU,
    "relu": Activation.RELU,
    "relu_squared": Activation.RELU_SQUARED,
}


def _hidden_sizes(device: torch.device) -> list[int]:
    """Hidden sizes of the runs, each once, sorted; on a CPU the least, one between and the largest."""
    every = sorted({reference_run(name).architecture.hidden for name in RUNS})
    return every if device.type == "cuda" else [every[0], every[len(every) // 2], every[-1]]


def _norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias, EPSILON)


def _liger_norm() -> Function:
    from liger_kernel.ops import LigerLayerNormFunction

    return lambda x, weight, bias: LigerLayerNormFunction.apply(x, weight, bias, EPSILON)


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, EPSILON)


def _liger_rms_norm() -> Function:
    from liger_kernel.ops import LigerRMSNormFunction

    # no offset of the weight; all of it in fp32, rounded once; the gradient not written into that of the output
    return lambda x, weight: LigerRMSNormFunction.apply(x, weight, EPSILON, 0.0, "gemma", False)


def _rms_norm_of_sum(x: Tensor, f: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + f
    return _rms_norm(total, weight), total


def _norm_keeping_sum(x: Tensor, f: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    total = x + f
    return _norm(total, weight, bias), total


def _scaled_norm_reference(x: Tensor, f: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return residual_layer_norm.reference(x, f, weight, bias, EPSILON, ALPHA)[0]


def _scaled_norm(x: Tensor, f: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return _norm(ALPHA * x + f, weight, bias)


def _two_norms(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor) -> tuple[Tensor, Tensor]:
    return _norm(x, weight1, bias1), _norm(x, weight2, bias2)


def _biased_activation(x: Tensor, bias: Tensor, activation: Activation) -> Tensor:
    return ACTIVATIONS[activation](x + bias)


def _gated(x: Tensor, bias: Tensor, activation: Activation) -> Tensor:
    gate, gated = (x + bias).unflatten(-1, (-1, 2)).unbind(-1)
    out: Tensor = ACTIVATIONS[activation](gate) * gated
    return out


def _inputs(rows: int, matrices: int, vectors: int, dtype: torch.dtype, columns: int, draw: Draw) -> tuple[Any, ...]:
    shapes = [(rows, columns)] * matrices + [(columns,)] * vectors
    return tuple(draw.normal(*shape, dtype=dtype) for shape in shapes)


def _over_rows(
    device: torch.device,
    *,
    vectors: int,
    matrices: int = 1,
    width: Callable[[int], int] = int,
    expansion: int = 1,
    only_least_on_cpu: bool = False,
    **functions: Any,
) -> Iterator[Case]:
    """Cases of one kernel in each dtype at the hidden sizes of the runs, forward and backward.

    Args:
        vectors: inputs [columns], after the `matrices` [rows, columns]; all have gradients.
        width: columns by hidden size; inputs have `expansion` times as many.
        functions: fields of `Case`.
    """
    sizes = _hidden_sizes(device)
    variant = functions.get("variant", "")
    flags = {variant: 1} if variant in ("kept", "scaled") else {}
    for dtype, torchs in dtypes(device).items():
        for columns in map(width, sizes[:1] if only_least_on_cpu and device.type == "cpu" else sizes):
            rows = min(ROWS[device.type], MOST_ELEMENTS // (expansion * columns))
            yield Case(
                dtype=dtype,
                sizes={"rows": rows, "columns": columns, "element_bytes": torchs.itemsize} | flags,
                over="columns",
                inputs=partial(_inputs, rows, matrices, vectors, torchs, expansion * columns),
                differentiated=matrices + vectors,
                **functions,
            )


def _norms(device: torch.device) -> Iterator[Case]:
    yield from _over_rows(
        device,
        kernel="layer_norm",
        vectors=2,
        ours=partial(layer_norm.layer_norm, eps=EPSILON),
        plain=partial(layer_norm.reference, eps=EPSILON),
        eager=_norm,
        liger=_liger_norm,
    )
    residual = partial(_over_rows, device, kernel="residual_layer_norm", matrices=2, vectors=2)
    yield from residual(
        variant="kept",
        ours=partial(residual_layer_norm.residual_layer_norm, eps=EPSILON, keep_sum=True),
        plain=partial(residual_layer_norm.reference, eps=EPSILON, alpha=1.0),
        eager=_norm_keeping_sum,
    )
    yield from residual(
        variant="scaled",
        ours=partial(residual_layer_norm.residual_layer_norm, eps=EPSILON, alpha=ALPHA),
        plain=_scaled_norm_reference,
        eager=_scaled_norm,
    )
    yield from _over_rows(
        device,
        kernel="parallel_layer_norms",
        vectors=4,
        ours=partial(parallel_layer_norms.parallel_layer_norms, eps=EPSILON),
        plain=partial(parallel_layer_norms.reference, eps=EPSILON),
        eager=_two_norms,
    )
    yield from _over_rows(
        device,
        kernel="rms_norm",
        vectors=1,
        ours=partial(rms_norm.rms_norm, eps=EPSILON),
        plain=partial(rms_norm.reference, eps=EPSILON),
        eager=_rms_norm,
        liger=_liger_rms_norm,
    )
    yield from _over_rows(
        device,
        kernel="residual_rms_norm",
        matrices=2,
        vectors=1,
        ours=partial(residual_rms_norm.residual_rms_norm, eps=EPSILON),
        plain=partial(residual_rms_norm.reference, eps=EPSILON),
        eager=_rms_norm_of_sum,
    )


def cases(device: torch.device) -> Iterator[Case]:
    """Each kernel; bias and activation four times as wide as the hidden size, gated ones 8/3 times."""
    yield from _norms(device)
    for activation, of_run in TIMED_ACTIVATIONS.items():
        yield from _over_rows(
            device,
            kernel="bias_activation",
            variant=activation.replace("_", ""),
            vectors=1,
            width=lambda hidden: 4 * hidden,
            only_least_on_cpu=True,
            ours=partial(bias_activation.bias_activation, activation=activation),
            plain=partial(bias_activation.reference, activation=activation),
            eager=partial(_biased_activation, activation=of_run),
        )
    gated = partial(_over_rows, device, vectors=1, width=lambda hidden: 8 * hidden // 3 // 8 * 8, expansion=2)
    yield from gated(
        kernel="geglu", ours=geglu.geglu, plain=geglu.reference, eager=partial(_gated, activation=Activation.GEGLU)
    )
    yield from gated(
        kernel="swiglu", ours=swiglu.swiglu, plain=swiglu.reference, eager=partial(_gated, activation=Activation.SWIGLU)
    )
