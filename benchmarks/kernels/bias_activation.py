"""Bias and activation at four times the hidden sizes of the runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Draw, dtypes
from benchmarks.kernels.sizes import hidden_sizes, rows
from kernels.bias_activation import Activation, bias_activation, reference
from reference_runs.run import Activation as Recorded
from suite.execute.model.torch_operations import ACTIVATIONS

WIDER = 4
RECORDED: dict[Activation, Recorded] = {
    "gelu": Recorded.GELU,
    "gelu_tanh": Recorded.GELU_TANH,
    "fast_gelu": Recorded.FAST_GELU,
    "relu": Recorded.RELU,
}


def _eager(x: Tensor, bias: Tensor, activation: Activation) -> Tensor:
    return ACTIVATIONS[RECORDED[activation]](x + bias)


def _inputs(columns: int, dtype: torch.dtype, draw: Draw) -> tuple[Any, ...]:
    return draw.normal(rows(draw.device), columns, dtype=dtype), draw.normal(columns, dtype=dtype)


def cases(device: torch.device) -> Iterator[Case]:
    """Each activation in each dtype, forward and backward; on a CPU at the least size alone."""
    for activation in RECORDED:
        for dtype, torchs in dtypes(device).items():
            for hidden in hidden_sizes(device) if device.type == "cuda" else hidden_sizes(device)[:1]:
                yield Case(
                    kernel="bias_activation",
                    variant=activation.replace("_", ""),
                    dtype=dtype,
                    sizes={"rows": rows(device), "columns": WIDER * hidden, "element_bytes": torchs.itemsize},
                    over="columns",
                    inputs=partial(_inputs, WIDER * hidden, torchs),
                    ours=partial(bias_activation, activation=activation),
                    plain=partial(reference, activation=activation),
                    eager=partial(_eager, activation=activation),
                    differentiated=2,
                )
