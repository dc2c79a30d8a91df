"""Sizes of everything that a calibration times along a line: element-wise operators, host calls, messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from suite.calibration.density import Scope
from suite.calibration.grids import PASSES
from suite.job.calibration_job import WEIGHTS_OF_BLOCK
from suite.machine.operations import COLLECTIVES
from suite.machine.timing_tables import Subject

HIDDEN = ("gelu_tanh", "gelu", "relu", "fast_gelu", "geglu", "dropout", "permuted", "bias")  # of activations
# with sizes up to a tensor of all parameters
WIDE = ("add", "accumulate", "scale", "to_fp32", "from_fp32", "zeros", "vector_norm")
# add's backward pass only passes the gradient on; no graph records the others
FORWARD_ONLY = ("add", "accumulate", "permuted", "bias", "zeros", "vector_norm")
FUSED = ("chain", "dropout")  # timed compiled


class Sizes(NamedTuple):
    """Sizes on one line."""

    subject: Subject
    unit: str
    sizes: tuple[int, ...]


def _geometric(first: int, last: int, ratio: float) -> tuple[int, ...]:
    """At least two sizes from `first` to `last`, neighbours at most `ratio` apart."""
    intervals = max(1, math.ceil(math.log(last / first) / math.log(ratio)))
    return tuple(round(first * (last / first) ** (index / intervals)) for index in range(intervals + 1))


def lines(scope: Scope) -> list[Sizes]:
    """Everything except messages: element-wise operators, host calls, updates and copies to a GPU."""
    used, density, device = scope.shapes, scope.density, scope.device
    least = min(used.activations) // 4
    hidden = _geometric(least, max(used.activations) + 8, density.sparse)
    parameters = max(used.parameters) + 8
    wide = _geometric(least, parameters, density.sparse)
    timed = []
    for dtype in density.dtypes:
        for operation in (*HIDDEN, *WIDE):
            if operation == "bias" and device != "cpu":
                continue  # a GPU's kernels add it to the product
            if operation in ("to_fp32", "from_fp32") and dtype == "fp32":
                continue
            sizes = hidden if operation in HIDDEN else wide
            for variant in PASSES if operation not in FORWARD_ONLY else ("forward",):
                timed.append(Sizes(Subject(operation=operation, variant=variant, dtype=dtype), "element", sizes))
    for dtype in density.compiled:
        for operation in FUSED:
            for variant in PASSES:
                subject = Subject(operation=operation, variant=variant, dtype=dtype, compiled=True)
                timed.append(Sizes(subject, "element", (hidden[0], hidden[-1])))
    # the smallest counts are those between two operators of a step: two or three views, one call of a module; a block
    # reads twelve weights
    for operation, variants, calls in (
        ("view", PASSES, (2, 32)),
        *([("engine", PASSES[1:], (1, 4))] if device == "cpu" else []),  # it is not subtracted from a GPU's time
        ("module", PASSES[:1], (1, 32)),
        ("weight_read", PASSES, (WEIGHTS_OF_BLOCK, 48)),
        ("checkpoint", ("",), (2, 8)),
        ("sharded_unit", ("",), (1, 4)),
    ):
        for variant in variants:
            timed.append(Sizes(Subject(operation=operation, variant=variant), "call", calls))
    if density.compiled:
        for variant in PASSES:
            timed.append(Sizes(Subject(operation="region", variant=variant, compiled=True), "call", (1, 4)))
    timed.append(Sizes(Subject(operation="calls"), "call", (4, 64)))
    timed.append(Sizes(Subject(operation="adam"), "element", wide))
    timed.append(Sizes(Subject(operation="adam_tensors"), "tensor", (1, 8, 64)))
    if device == "cuda":
        for operation, variant in (("host_to_device", ""), ("host_to_device", "pageable"), ("device_to_host", "")):
            sizes = _geometric(4096, 2**29, density.sparse)
            timed.append(Sizes(Subject(operation=operation, variant=variant), "byte", sizes))
    return timed


def collectives(scope: Scope, counts: Sequence[int]) -> list[Sizes]:
    """Messages in groups of each of `counts` ranks."""
    sizes = _geometric(256, 4 * max(scope.shapes.parameters), scope.density.sparse)
    planned = []
    for count in counts:
        for operation in COLLECTIVES:
            if operation == "send" and count > 2:
                continue  # a message between two ranks, whatever the group
            adds = operation in ("all_reduce", "reduce_scatter")  # the others take the same time in every dtype
            for dtype in scope.density.dtypes if adds else ("fp32",):
                planned.append(Sizes(Subject(operation=operation, dtype=dtype, ranks=count), "byte", sizes))
    return planned
