"""Kernels of rows, as one table: what each computes, from how many tensors and vectors, and its plain reference."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

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
from tests.kernels.agreement import DEVICE, Function, normal

EPSILON = 1e-5
DEEP = math.sqrt(2 * 10)  # DeepNorm's alpha of ten layers


class RowKernel(NamedTuple):
    """A kernel and its plain reference, functions of some tensors of rows and of some vectors as long as a row.

    Args:
        outputs: how many it has.
        gated: whether outputs have half of the columns.
        spread: deviation of the rows: 3 shows the flat ends of activations too.
        rounds_sum: whether a sum of the tensors is rounded, and an output: the inputs are then such that it is exact.
        roundings: in fp32 to a result, half of them. To a norm's: the sum, mean, difference, mean square, root,
            quotient, product, that with weight and bias. To an activation's largest gradients: x + bias, e's exponent,
            e, 1 + e, r, the slope, its sum, that with dy. A GPU takes them in another order than torch.
        weights: places of the weights of LayerNorms among the inputs, whose gradient of one column is 0.
        alpha: factor of the first tensor.
    """

    kernel: Function
    plain: Function
    tensors: int = 1
    vectors: int = 1
    outputs: int = 1
    gated: bool = False
    spread: float = 1.0
    rounds_sum: bool = False
    roundings: int = 4
    weights: tuple[int, ...] = ()
    alpha: float = 1.0

    def inputs(self, *shape: int, dtype: torch.dtype) -> list[Tensor]:
        """Tensors of `shape`, then vectors, the same numbers for every dtype."""
        if self.rounds_sum:  # eighths below 4, sums of 7 bits
            draws = [torch.randint(-31, 32, shape, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
            rows = [x.to(DEVICE, dtype) / 8 for x in draws]
        else:
            rows = [(self.spread * normal(*shape, dtype=torch.float32, seed=n)).to(dtype) for n in range(self.tensors)]
        return [*rows, *(normal(shape[-1], dtype=dtype, seed=2 + n) for n in range(self.vectors))]

    def upstream(self, *shape: int, dtype: torch.dtype) -> list[Tensor]:
        """Gradients of the outputs."""
        columns = shape[-1] // 2 if self.gated else shape[-1]
        return [normal(*shape[:-1], columns, dtype=dtype, seed=7 + n) for n in range(self.outputs)]

    def cancelling(self, inputs: list[Tensor], upstream: list[Tensor]) -> float:
        """The larger of two equal numbers whose difference is LayerNorm's gradient of rows of one number: it is 0."""
        if inputs[0].shape[-1] > 1:
            return 0.0
        pairs = zip(upstream, self.weights, strict=False)
        sizes = [float((dy.double() * inputs[place].double()).abs().max()) for dy, place in pairs]
        return self.alpha * sum(sizes) / EPSILON**0.5


def _residual(alpha: float, *, keeps: bool) -> RowKernel:
    def kernel(x: Tensor, f: Tensor, weight: Tensor, bias: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        return residual_layer_norm.residual_layer_norm(x, f, weight, bias, EPSILON, alpha=alpha, keep_sum=keeps)

    def plain(x: Tensor, f: Tensor, weight: Tensor, bias: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        both = residual_layer_norm.reference(x, f, weight, bias, EPSILON, alpha)
        return both if keeps else both[0]

    return RowKernel(
        kernel, plain, tensors=2, vectors=2, outputs=1 + keeps, rounds_sum=keeps, weights=(2,), alpha=alpha
    )


def _activation(name: bias_activation.Activation) -> RowKernel:
    return RowKernel(
        lambda x, bias: bias_activation.bias_activation(x, bias, name),
        lambda x, bias: bias_activation.reference(x, bias, name),
        spread=3.0,
    )


NORMS = {
    "layer_norm": RowKernel(
        lambda x, weight, bias: layer_norm.layer_norm(x, weight, bias, EPSILON),
        lambda x, weight, bias: layer_norm.reference(x, weight, bias, EPSILON),
        vectors=2,
        weights=(1,),
    ),
    "layer_norm without bias": RowKernel(
        lambda x, weight: layer_norm.layer_norm(x, weight, None, EPSILON),
        lambda x, weight: layer_norm.reference(x, weight, None, EPSILON),
        weights=(1,),
    ),
    "rms_norm": RowKernel(
        lambda x, weight: rms_norm.rms_norm(x, weight, EPSILON),
        lambda x, weight: rms_norm.reference(x, weight, EPSILON),
    ),
    "residual_layer_norm": _residual(1.0, keeps=False),
    "residual_layer_norm, scaled": _residual(DEEP, keeps=False),
    "residual_layer_norm, sum kept": _residual(1.0, keeps=True),
    "residual_layer_norm, scaled sum kept": _residual(2.0, keeps=True),
    "residual_layer_norm without bias": RowKernel(
        lambda x, f, weight: residual_layer_norm.residual_layer_norm(x, f, weight, None, EPSILON),
        lambda x, f, weight: residual_layer_norm.reference(x, f, weight, None, EPSILON, 1.0)[0],
        tensors=2,
        weights=(2,),
    ),
    "residual_rms_norm": RowKernel(
        lambda x, f, weight: residual_rms_norm.residual_rms_norm(x, f, weight, EPSILON),
        lambda x, f, weight: residual_rms_norm.reference(x, f, weight, EPSILON),
        tensors=2,
        outputs=2,
        rounds_sum=True,
    ),
    "parallel_layer_norms": RowKernel(
        lambda *inputs: parallel_layer_norms.parallel_layer_norms(*inputs, EPSILON),
        lambda *inputs: parallel_layer_norms.reference(*inputs, EPSILON),
        vectors=4,
        outputs=2,
        weights=(1, 3),
    ),
    "parallel_layer_norms without biases": RowKernel(
        lambda x, one, two: parallel_layer_norms.parallel_layer_norms(x, one, None, two, None, EPSILON),
        lambda x, one, two: parallel_layer_norms.reference(x, one, None, two, None, EPSILON),
        vectors=2,
        outputs=2,
        weights=(1, 2),
    ),
}
ACTIVATIONS = {
    **{name: _activation(name) for name in ("gelu", "gelu_tanh", "fast_gelu", "relu", "relu_squared")},
    "gelu_tanh without bias": RowKernel(
        lambda x: bias_activation.bias_activation(x, None, "gelu_tanh"),
        lambda x: bias_activation.reference(x, None, "gelu_tanh"),
        vectors=0,
        spread=3.0,
    ),
    "relu without bias": RowKernel(
        lambda x: bias_activation.bias_activation(x, None, "relu"),
        lambda x: bias_activation.reference(x, None, "relu"),
        vectors=0,
        spread=3.0,
    ),
    "geglu": RowKernel(geglu.geglu, geglu.reference, gated=True, spread=3.0),
    "geglu by tanh": RowKernel(
        partial(geglu.geglu, tanh=True), partial(geglu.reference, tanh=True), gated=True, spread=3.0
    ),
    "swiglu": RowKernel(swiglu.swiglu, swiglu.reference, gated=True, spread=3.0),
    "swiglu without bias": RowKernel(
        lambda x: swiglu.swiglu(x, None), lambda x: swiglu.reference(x, None), vectors=0, gated=True, spread=3.0
    ),
}
KERNELS = NORMS | ACTIVATIONS
