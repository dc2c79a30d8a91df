"""GLM's gated activation at its width for the hidden sizes of the runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.kernels.case import Case, Draw, dtypes
from benchmarks.kernels.sizes import hidden_sizes, rows
from kernels.geglu import geglu, reference


def _eager(x: Tensor, bias: Tensor) -> Tensor:
    gate, gated = (x + bias).unflatten(-1, (-1, 2)).unbind(-1)
    out: Tensor = functional.gelu(gate) * gated
    return out


def _inputs(columns: int, dtype: torch.dtype, draw: Draw) -> tuple[Any, ...]:
    return draw.normal(rows(draw.device), 2 * columns, dtype=dtype), draw.normal(2 * columns, dtype=dtype)


def cases(device: torch.device) -> Iterator[Case]:
    """8/3 of the hidden sizes in each dtype, forward and backward."""
    for dtype, torchs in dtypes(device).items():
        for hidden in hidden_sizes(device):
            columns = 8 * hidden // 3 // 8 * 8
            yield Case(
                kernel="geglu",
                dtype=dtype,
                sizes={"rows": rows(device), "columns": columns, "element_bytes": torchs.itemsize},
                over="columns",
                inputs=partial(_inputs, columns, torchs),
                ours=geglu,
                plain=reference,
                eager=_eager,
                differentiated=2,
            )
