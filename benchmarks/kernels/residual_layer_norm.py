"""Residual add and LayerNorm, with the sum kept, and DeepNorm's without."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.kernels.case import Case, Draw, dtypes
from benchmarks.kernels.sizes import hidden_sizes, rows
from kernels.residual_layer_norm import reference, residual_layer_norm

EPSILON = 1e-5
ALPHA = 11.8  # GLM-130B: sqrt(2 * 70)


def _kept(x: Tensor, f: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return residual_layer_norm(x, f, weight, bias, EPSILON, keep_sum=True)


def _kept_plainly(x: Tensor, f: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return reference(x, f, weight, bias, EPSILON, 1.0)


def _kept_eagerly(x: Tensor, f: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    total = x + f
    return functional.layer_norm(total, weight.shape, weight, bias, EPSILON), total


def _scaled(x: Tensor, f: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return residual_layer_norm(x, f, weight, bias, EPSILON, alpha=ALPHA)


def _scaled_plainly(x: Tensor, f: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return reference(x, f, weight, bias, EPSILON, ALPHA)[0]


def _scaled_eagerly(x: Tensor, f: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(ALPHA * x + f, weight.shape, weight, bias, EPSILON)


VARIANTS = {"kept": (_kept, _kept_plainly, _kept_eagerly), "scaled": (_scaled, _scaled_plainly, _scaled_eagerly)}


def _inputs(columns: int, dtype: torch.dtype, draw: Draw) -> tuple[Any, ...]:
    x, f = (draw.normal(rows(draw.device), columns, dtype=dtype) for _ in range(2))
    return x, f, draw.normal(columns, dtype=dtype), draw.normal(columns, dtype=dtype)


def cases(device: torch.device) -> Iterator[Case]:
    """Both variants at the hidden sizes in each dtype, forward and backward."""
    for variant, (ours, plain, eager) in VARIANTS.items():
        for dtype, torchs in dtypes(device).items():
            for columns in hidden_sizes(device):
                sizes = {"rows": rows(device), "columns": columns, "element_bytes": torchs.itemsize}
                yield Case(
                    kernel="residual_layer_norm",
                    variant=variant,
                    dtype=dtype,
                    sizes=sizes | {variant: 1},
                    over="columns",
                    inputs=partial(_inputs, columns, torchs),
                    ours=ours,
                    plain=plain,
                    eager=eager,
                    differentiated=4,
                )
