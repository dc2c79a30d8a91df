"""Sizes of everything that a calibration times along a line: element-wise operators, host calls, messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from suite.calibration.density import Scope
from suite.calibration.grids import PASSES
from suite.job.calibration_job import WEIGHTS_OF_BLOCK
from suite.machine.operations import COLLECTIVES
from suite.machine.timing_tables import Subject

# of activations
ACTIVATIONS = ("gelu_tanh", "gelu", "relu", "fast_gelu", "geglu", "geglu_tanh", "swiglu")
HIDDEN = (*ACTIVATIONS, "dropout", "permuted", "bias")
# with sizes up to a tensor of all parameters
WIDE = ("add", "accumulate", "scale", "to_fp32", "from_fp32", "zeros", "vector_norm")
# add's backward pass only passes the gradient on; no graph records the others
FORWARD_ONLY = ("add", "accumulate", "permuted", "bias", "zeros", "vector_norm")
FUSED = ("chain", "dropout")  # timed compiled


class LineSizes(NamedTuple):
    """Sizes on one line."""

    subject: Subject
    unit: str
    sizes: tuple[int, ...]


def _geometric(first: int, last: int, ratio: float) -> tuple[int, ...]:
    """At least two sizes from `first` to `last`, neighbours at most `ratio` apart."""
    intervals = max(1, math.ceil(math.log(last / first) / math.log(ratio)))
    return tuple(round(first * (last / first) ** (index / intervals)) for index in range(intervals + 1))


def lines(scope: Scope) -> list[LineSizes]:
    """Everything except messages: element-wise operators, host calls, updates and copies to a GPU."""
    used, density, device = scope.shapes, scope.density, scope.device
    least = min(used.activations) // 4
    hidden = _geometric(least, max(used.activations) + 8, density.sparse)
    parameters = max(used.parameters) + 8
    wide = _geometric(least, parameters, density.sparse)
    timed: list[LineSizes] = []

    def add(unit: str, operation: str, variants: Sequence[str], sizes: tuple[int, ...], **of_subject: Any) -> None:
        for variant in variants:
            timed.append(LineSizes(Subject(operation=operation, variant=variant, **of_subject), unit, sizes))

    for dtype in density.dtypes:
        for operation in (*HIDDEN, *WIDE):
            if operation == "bias" and device != "cpu":
                continue  # a GPU's kernels add it to the product
            if operation in ("to_fp32", "from_fp32") and dtype == "fp32":
                continue
            sizes, variants = hidden if operation in HIDDEN else wide, PASSES[: 1 if operation in FORWARD_ONLY else 2]
            add("element", operation, variants, sizes, dtype=dtype)
    for dtype in density.compiled:
        for operation in FUSED:
            add("element", operation, PASSES, (hidden[0], hidden[-1]), dtype=dtype, compiled=True)
    # the smallest counts are those between two operators of a step: two or three views, one call of a module; a block
    # reads twelve weights
    add("call", "view", PASSES, (2, 32))
    if device == "cpu":  # it is not subtracted from a GPU's time
        add("call", "engine", PASSES[1:], (1, 4))
    add("call", "module", PASSES[:1], (1, 32))
    add("call", "weight_read", PASSES, (WEIGHTS_OF_BLOCK, 48))
    add("call", "checkpoint", [""], (2, 8))
    add("call", "sharded_unit", [""], (1, 4))
    if density.compiled:
        add("call", "region", PASSES, (1, 4), compiled=True)
    add("call", "calls", [""], (4, 64))
    add("element", "adam", [""], wide)
    add("tensor", "adam_tensors", [""], (1, 8, 64))
    if device == "cuda":
        sizes = _geometric(4096, 2**29, density.sparse)
        add("byte", "host_to_device", ["", "pageable"], sizes)
        add("byte", "device_to_host", [""], sizes)
    return timed


def collectives(scope: Scope, counts: Sequence[int]) -> list[LineSizes]:
    """Messages in groups of each of `counts` ranks."""
    sizes = _geometric(256, 4 * max(scope.shapes.parameters), scope.density.sparse)
    planned = []
    for count in counts:
        for operation in COLLECTIVES:
            if operation == "send" and count > 2:
                continue  # a message between two ranks, whatever the group
            adds = operation in ("all_reduce", "reduce_scatter")  # the others take the same time in every dtype
            for dtype in scope.density.dtypes if adds else ("fp32",):
                planned.append(LineSizes(Subject(operation=operation, dtype=dtype, ranks=count), "byte", sizes))
    return planned
