"""LayerNorm at the hidden sizes of the runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.kernels.case import Case, Draw, Function, dtypes
from benchmarks.kernels.sizes import hidden_sizes, rows
from kernels.layer_norm import layer_norm, reference

EPSILON = 1e-5


def _eager(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias, EPSILON)


def _liger() -> Function:
    from liger_kernel.ops import LigerLayerNormFunction

    return lambda x, weight, bias: LigerLayerNormFunction.apply(x, weight, bias, EPSILON)


def _inputs(columns: int, dtype: torch.dtype, draw: Draw) -> tuple[Any, ...]:
    x = draw.normal(rows(draw.device), columns, dtype=dtype)
    return x, draw.normal(columns, dtype=dtype), draw.normal(columns, dtype=dtype)


def cases(device: torch.device) -> Iterator[Case]:
    """The hidden sizes in each dtype, forward and backward."""
    for dtype, torchs in dtypes(device).items():
        for columns in hidden_sizes(device):
            yield Case(
                kernel="layer_norm",
                dtype=dtype,
                sizes={"rows": rows(device), "columns": columns, "element_bytes": torchs.itemsize},
                over="columns",
                inputs=partial(_inputs, columns, torchs),
                ours=partial(layer_norm, eps=EPSILON),
                plain=partial(reference, eps=EPSILON),
                eager=_eager,
                liger=_liger,
                differentiated=3,
            )
