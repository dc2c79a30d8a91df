"""Both LayerNorms of a parallel residual at the hidden sizes of the runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.kernels.case import Case, Draw, dtypes
from benchmarks.kernels.sizes import hidden_sizes, rows
from kernels.parallel_layer_norms import parallel_layer_norms, reference

EPSILON = 1e-5


def _eager(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor) -> tuple[Tensor, Tensor]:
    first = functional.layer_norm(x, weight1.shape, weight1, bias1, EPSILON)
    return first, functional.layer_norm(x, weight2.shape, weight2, bias2, EPSILON)


def _inputs(columns: int, dtype: torch.dtype, draw: Draw) -> tuple[Any, ...]:
    x = draw.normal(rows(draw.device), columns, dtype=dtype)
    return x, *(draw.normal(columns, dtype=dtype) for _ in range(4))


def cases(device: torch.device) -> Iterator[Case]:
    """The hidden sizes in each dtype, forward and backward."""
    for dtype, torchs in dtypes(device).items():
        for columns in hidden_sizes(device):
            yield Case(
                kernel="parallel_layer_norms",
                dtype=dtype,
                sizes={"rows": rows(device), "columns": columns, "element_bytes": torchs.itemsize},
                over="columns",
                inputs=partial(_inputs, columns, torchs),
                ours=partial(parallel_layer_norms, eps=EPSILON),
                plain=partial(reference, eps=EPSILON),
                eager=_eager,
                differentiated=5,
            )
