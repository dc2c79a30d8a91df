"""Sizes that a calibration times: grids and lines around the miniatures' shapes, and sizes that check interpolation."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple

from suite.calibration.density import Density, Scope
from suite.calibration.shapes import Shapes
from suite.job.calibration_job import WEIGHTS_OF_BLOCK
from suite.machine.operations import COLLECTIVES
from suite.machine.profile import REPEATED, UNSEEN
from suite.machine.timing_tables import Axis, Subject

PASSES = ("forward", "backward")
MOST_ROW_ELEMENTS = 2**30  # approximate limit of a tensor, 4 GB in fp32; longer ones are extrapolated by their rows
MOVES = ("copy", "triad")
ATTENTION_AXES = ("batch * heads", "sequence", "head_dim")
SEED = 6


class Grid(NamedTuple):
    """Points on axes; their product is timed.

    Args:
        excluded: sizes of the miniatures; no point of the calibration is one of them.
        steps: sizes between the points of each axis are multiples of it, where they fit.
    """

    subject: Subject
    axes: tuple[Axis, ...]
    excluded: frozenset[tuple[int, ...]]
    steps: tuple[int, ...]

    @property
    def sizes(self) -> tuple[tuple[int, ...], ...]:
        """All points; the last axis varies fastest."""
        return tuple(product(*(tuple(int(point) for point in axis.points) for axis in self.axes)))


def axis_step(name: str, density: Density) -> int:
    """The points of an axis are multiples of it."""
    return {"batch * heads": 1, "sequence": 8, "head_dim": density.head_dim_steps[0]}.get(name, density.step)


def axis_points(used: Iterable[int], *, ratio: float, step: int = 8, excluded: Iterable[int] = ()) -> tuple[int, ...]:
    """Sizes around all of `used`, without these and `excluded`: multiples of `step`, neighbours about `ratio` apart."""
    surrounded = set(used)
    low, high, taken = min(surrounded), max(surrounded), surrounded | set(excluded)
    first = max(1, (low - 1) // step * step)
    while first in taken and first > step:
        first -= step
    while first in taken and first > 1:
        first -= 1
    last = (high // step + 1) * step
    while last in taken:
        last += step
    intervals = max(1, math.ceil(math.log(last / first) / math.log(ratio)))
    points = [first]
    for index in range(1, intervals):
        point = round(first * (last / first) ** (index / intervals) / step) * step
        while point in taken or point <= points[-1]:
            point += step
        if points[-1] < point < last:
            points.append(point)
    return (*points, last)


def grids(scope: Scope, ranks: int) -> list[Grid]:
    """Every table, for `ranks` ranks at once."""
    used, density = scope.shapes, scope.density
    return [*_products(used, density), *_attentions(used, density), *_rows(used, density), *_memory(density, ranks)]


def _products(used: Shapes, density: Density) -> list[Grid]:
    """Products of linear layers, forward (NT) and backward (NN for the input, TN for the weight). The blocks' layers
    have one grid, the layers to the vocabulary another, because these are wide on one side only."""
    tables = []
    for dtype in density.dtypes:
        ratio = density.coarse if dtype == "fp32" else density.ratio
        for layers, sparser in ((used.block_layers, 1.0), (used.output_layers, 1.5)):
            tokens, outputs, inputs = (
                axis_points({layer[index] for layer in layers}, ratio=ratio * sparser, step=density.step)
                for index in range(3)
            )
            for variant, points, order in (
                ("NT", (tokens, outputs, inputs), (0, 1, 2)),
                ("NN", (tokens, inputs, outputs), (0, 2, 1)),
                ("TN", (outputs, inputs, tokens), (1, 2, 0)),
            ):
                axes = tuple(Axis(name, sizes) for name, sizes in zip("MNK", points, strict=True))
                shapes = frozenset(tuple(layer[index] for index in order) for layer in layers)
                subject = Subject(operation="product", variant=variant, dtype=dtype)
                tables.append(Grid(subject, axes, shapes, (density.step,) * 3))
    return tables


def _attentions(used: Shapes, density: Density) -> list[Grid]:
    """Batched products of unfused attention, and PyTorch's fused attention."""
    axes = tuple(
        Axis(
            name,
            axis_points(
                {sizes[index] for sizes in used.attentions}, ratio=density.coarse, step=axis_step(name, density)
            ),
            power,
        )
        for index, (name, power) in enumerate(zip(ATTENTION_AXES, (1, 2, 1), strict=True))
    )
    steps = (1, 1, density.head_dim_steps[1])
    kinds = [("batched_product", variant) for variant in ("NT", "NN", "TN")]
    kinds += [("attention", variant) for variant in PASSES]
    return [
        Grid(Subject(operation=operation, variant=variant, dtype=dtype), axes, used.attentions, steps)
        for operation, variant in kinds
        for dtype in density.dtypes
    ]


def _rows(used: Shapes, density: Density) -> list[Grid]:
    kinds = [
        (operation, used.norms, dtype)
        for operation in ("layer_norm", "rms_norm", "embedding")
        for dtype in density.dtypes
    ]
    sums = frozenset((layer.tokens, layer.outputs) for layer in used.block_layers)
    kinds += [("column_sum", sums, dtype) for dtype in density.dtypes]
    kinds += [("softmax", used.softmaxes, "fp32"), ("cross_entropy", used.losses, "fp32")]
    tables = []
    for operation, sizes, dtype in kinds:
        columns = axis_points({size for _, size in sizes}, ratio=density.coarse, step=density.step)
        most = MOST_ROW_ELEMENTS // columns[-1]
        rows = axis_points({min(size, most) for size, _ in sizes}, ratio=density.coarse, step=density.step)
        axes = (Axis("rows", rows), Axis("columns", columns))
        for variant in PASSES if operation != "column_sum" else ("forward",):
            subject = Subject(operation=operation, variant=variant, dtype=dtype)
            tables.append(Grid(subject, axes, frozenset(sizes), (density.step,) * 2))
    return tables


def _memory(density: Density, ranks: int) -> list[Grid]:
    """Copies and triads. The largest moves at least twice a rank's part of the caches."""
    largest = max(density.memory_bytes, 2 * density.caches // ranks)
    points = (*(float(density.memory_bytes // share) for share in (256, 16)), float(largest))
    axes = (Axis("byte", points),)
    return [Grid(Subject(operation=operation), axes, frozenset(), (1,)) for operation in MOVES]


def checks(tables: list[Grid], density: Density) -> list[tuple[str, Grid, tuple[tuple[int, ...], ...]]]:
    """For each table: sizes between the points, without those of miniatures, and some of the points again."""
    chosen = random.Random(SEED)
    planned = []
    for grid in tables:
        if len(grid.axes) == 1:
            continue
        count = density.unseen if len(grid.axes) == 3 else max(1, density.unseen // 2)
        seen = grid.excluded | set(grid.sizes)
        unseen: list[tuple[int, ...]] = []
        while len(unseen) < count:
            sizes = tuple(_between(axis, step, chosen) for axis, step in zip(grid.axes, grid.steps, strict=True))
            if sizes not in seen:
                unseen.append(sizes)
        planned.append((UNSEEN, grid, tuple(unseen)))
        planned.append((REPEATED, grid, tuple(chosen.sample(grid.sizes, max(1, count // 3)))))
    return planned


def _between(axis: Axis, step: int, chosen: random.Random) -> int:
    """A size in the axis's range, log-uniform, to a multiple of `step`."""
    first, last = axis.points[0], axis.points[-1]
    return step * round(math.exp(chosen.uniform(math.log(first), math.log(last))) / step)


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
