"""Which sizes of which operations a calibration times: the miniatures' range, never their own shapes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

import msgspec

from suite.calibration.shapes import Shapes
from suite.job.calibration_job import WEIGHTS_OF_BLOCK, Task
from suite.machine.operations import COLLECTIVES
from suite.machine.profile import REPEATED, UNSEEN
from suite.machine.reference_step import PRECISION, ReferenceStep, trial
from suite.machine.timing_tables import Axis, Subject

TABLE, LINE = "table", "line"
DTYPES = ("fp32", "bf16", "fp16")
PASSES = ("forward", "backward")
HIDDEN = ("gelu_tanh", "gelu", "relu", "fast_gelu", "geglu", "dropout", "permuted", "bias")  # of activations
# up to a tensor of all parameters
WIDE = ("add", "accumulate", "scale", "to_fp32", "from_fp32", "zeros", "vector_norm")
# add's backward pass computes nothing: it hands on; the others are recorded by no graph
FORWARD_ONLY = ("add", "accumulate", "permuted", "bias", "zeros", "vector_norm")
FUSED = ("chain", "dropout")  # timed compiled
MOST_ROW_ELEMENTS = 2**30  # of one tensor, about: 4 GB in fp32; longer ones are extrapolated by their rows
SQUARES = (4096, 8192)  # sides: as wide as products of large models, far beyond what miniatures multiply
SQUARE_SECONDS = 0.3  # of each in a round: what a GPU keeps up under its power limit, not what it does at first
MOVES = ("copy", "triad")
# Of each of their points in a round, by all ranks at once. In 4 repetitions, 40 ms, two ranks had 12 to 26 GB/s in a
# triad within an hour, on a memory that other guests of the host use too (2 cores of an AMD EPYC, 2026-11-23)
MEMORY_SECONDS = 0.5
HOST_SECONDS = 0.02  # of each point of the host's calls in a round: a step makes thousands of each
BURSTS = 3  # of trials in a round
SEED = 6


class Density(NamedTuple):
    """How densely sizes are timed, and for how long.

    Args:
        ratio: of neighbouring points of a product's axes; `coarse` for fp32, in which no miniature trains, and of the
            axes of all else.
        sparse: of neighbouring sizes of a line.
        unseen: sizes between the points that are timed to know the interpolation's error, for each table of products.
        point_seconds: that a point is repeated for in a round; of copies and triads by all ranks MEMORY_SECONDS.
        rounds: how often everything is timed, so that no point has all its repetitions in one phase of the machine.
        memory_bytes: moved by the largest copy and triad, unless the caches hold more: beyond every cache.
        caches: bytes that all second and later caches of the processors hold together.
        compiled: dtypes in which compiled operators are timed; each costs seconds of compilation for each of two sizes.
        step: that sizes of products and rows are multiples of: of vectors on a CPU, of tiles on a GPU.
    """

    ratio: float = 3.0
    coarse: float = 6.0
    sparse: float = 16.0
    unseen: int = 4
    point_seconds: float = 0.002
    rounds: int = 3
    memory_bytes: int = 200_000_000
    caches: int = 0
    dtypes: tuple[str, ...] = DTYPES
    compiled: tuple[str, ...] = ("bf16",)
    step: int = 8


DENSITIES = {"cpu": Density(), "cuda": Density(memory_bytes=8_000_000_000, step=64)}
# Where there is little time, for `quick` on a CPU and for the ladder's extra ranks: on a wider grid, without fp16 and
# compiled operators
QUICK_DENSITY = Density(ratio=4.0, coarse=12.0, sparse=64.0, unseen=1, rounds=2, dtypes=("fp32", "bf16"), compiled=())


class Grid(NamedTuple):
    """Points on axes, whose product is timed.

    Args:
        left_out: sizes that the miniatures have: no point of the calibration is one of them.
        step: that sizes between the points are multiples of, where they fit.
    """

    subject: Subject
    axes: tuple[Axis, ...]
    left_out: frozenset[tuple[int, ...]]
    step: int

    @property
    def sizes(self) -> tuple[tuple[int, ...], ...]:
        """All points, the last axis fastest."""
        return tuple(product(*(tuple(int(point) for point in axis.points) for axis in self.axes)))


class Sizes(NamedTuple):
    """Sizes on one line."""

    subject: Subject
    unit: str
    sizes: tuple[int, ...]


class Planned(NamedTuple):
    """A task, what its points are for (table, line, unseen, repeated), and its unit, or the axes of its table.

    Two tables may have the same subject, blocks' and heads' products: a check is of the one with its axes.
    """

    kind: str
    task: Task
    axes: tuple[Axis, ...] = ()
    unit: str = ""


def axis_points(used: Iterable[int], *, ratio: float, step: int = 8) -> tuple[int, ...]:
    """Sizes around all of `used`, none of them among them: multiples of `step`, neighbours about `ratio` apart."""
    taken = set(used)
    low, high = min(taken), max(taken)
    first = max(1, (low - 1) // step * step)
    while first in taken and first > 1:
        first -= 1
    last = (high // step + 1) * step
    intervals = max(1, math.ceil(math.log(last / first) / math.log(ratio)))
    points = [first]
    for place in range(1, intervals):
        point = round(first * (last / first) ** (place / intervals) / step) * step
        while point in taken or point <= points[-1]:
            point += step
        if points[-1] < point < last:
            points.append(point)
    return (*points, last)


def counts_at_once(ranks: int) -> tuple[int, ...]:
    """Numbers of ranks that measure at once: 1, 2, 4, ... and all."""
    return tuple(sorted({2**power for power in range(ranks.bit_length()) if 2**power <= ranks} | {ranks}))


def plan(
    used: Shapes, *, device: str, cores: int, ranks: int, density: Density, counts: Sequence[int] | None = None
) -> list[Planned]:
    """Everything that is timed on `ranks` ranks: for 1, 2, 4, ... ranks at once, then the collectives.

    Of more ranks than cores one for each core is timed too: see `suite.machine.oversubscription`.

    Args:
        used: the miniatures' shapes, whose range is covered and which are left out themselves.
        cores: over which the ranks that measure at once divide their threads, on "cpu".
        counts: the numbers of ranks at once, where not 1, 2, 4, ... and all.
    """
    if counts is None:
        counts = counts_at_once(ranks)
        if device == "cpu" and ranks > cores:
            counts = sorted({*counts, cores})
    exchanged = messages(used, device=device, cores=cores, ranks=ranks, density=density)
    return computing(used, device=device, cores=cores, counts=counts, density=density) + [
        one for one in exchanged if one.task.subject.ranks in counts
    ]


def computing(used: Shapes, *, device: str, cores: int, counts: Sequence[int], density: Density) -> list[Planned]:
    """Everything but the collectives, by so many ranks at once."""
    planned: list[Planned] = []
    ranks = max(counts)
    for count in counts:
        grids = [
            *_products(used, density),
            *_attentions(used, density),
            *_rows(used, density),
            *_memory(density, count),
        ]
        checks = _checks(grids, density)
        for grid in grids:
            long = count == ranks and grid.subject.operation in MOVES
            grid_density = density._replace(point_seconds=MEMORY_SECONDS) if long else density
            planned.append(
                Planned(TABLE, _task(grid.subject, grid.sizes, count, device, cores, grid_density), grid.axes)
            )
        for subject, unit, sizes in _lines(used, density, device):
            each = tuple((size,) for size in sizes)
            line_density = density._replace(point_seconds=HOST_SECONDS) if unit == "call" else density
            planned.append(Planned(LINE, _task(subject, each, count, device, cores, line_density), unit=unit))
        if device == "cuda" and count == ranks:
            planned.append(_squares(count, device, cores, density))
        for kind, grid, points in checks:
            planned.append(Planned(kind, _task(grid.subject, points, count, device, cores, density), grid.axes))
    return planned


def trials(*, device: str, cores: int, ranks: int, density: Density) -> list[ReferenceStep]:
    """What is trained between the tasks: by one rank and by all that have a core each, and compiled by the latter.

    Compiling it took 11 s for 2 ranks and 15 s for one with 2 threads (2 cores of an AMD EPYC, Zen 5, 2026-11-24), and
    the factors of both were alike. None on CUDA: how a step there differs from its parts was never looked at; nor where
    the dtype of trials is not timed.
    """
    if device != "cpu" or PRECISION.value not in density.dtypes:
        return []
    most = min(ranks, cores)
    kinds = [(count, False) for count in sorted({1, most})] + [(most, True)] * bool(density.compiled)
    return [trial(count, compiled=compiled, threads=max(1, cores // count)) for count, compiled in kinds]


def messages(used: Shapes, *, device: str, cores: int, ranks: int, density: Density) -> list[Planned]:
    """The collectives alone, in groups of 2, 4, ... and all ranks; on a CPU of one a core too, where that are fewer."""
    counts = {*counts_at_once(ranks), min(ranks, cores) if device == "cpu" else ranks} - {1}
    planned = []
    for subject, unit, sizes in _collectives(used, sorted(counts), density):
        each = tuple((size,) for size in sizes)
        task = _task(subject, each, subject.ranks, device, cores * subject.ranks // ranks, density)
        planned.append(Planned(LINE, task, unit=unit))
    return planned


def _task(
    subject: Subject, sizes: tuple[tuple[int, ...], ...], ranks: int, device: str, cores: int, density: Density
) -> Task:
    return Task(
        subject=msgspec.structs.replace(subject, ranks=ranks),
        threads=max(1, cores // ranks) if device == "cpu" else 1,
        sizes=sizes,
        point_seconds=density.point_seconds,
    )


def _squares(ranks: int, device: str, cores: int, density: Density) -> Planned:
    """Large square products in bf16 on all devices at once: what data sheets and known-good GPUs are compared by."""
    subject = Subject(operation="square_product", variant="NT", dtype="bf16")
    sizes = tuple((2 * side**3,) for side in SQUARES)
    task = _task(subject, sizes, ranks, device, cores, density._replace(point_seconds=SQUARE_SECONDS))
    return Planned(LINE, task, unit="flop")


def _products(used: Shapes, density: Density) -> list[Grid]:
    """Products of linear layers, forward (NT) and backward (NN for the input, TN for the weight): one grid for the
    blocks' layers, one for those to the vocabulary, which are wide on one side only."""
    grids = []
    for dtype in density.dtypes:
        ratio = density.coarse if dtype == "fp32" else density.ratio
        for layers, sparser in ((used.blocks, 1.0), (used.heads, 1.5)):
            tokens, outputs, inputs = (
                axis_points({layer[place] for layer in layers}, ratio=ratio * sparser, step=density.step)
                for place in range(3)
            )
            for variant, points, order in (
                ("NT", (tokens, outputs, inputs), (0, 1, 2)),
                ("NN", (tokens, inputs, outputs), (0, 2, 1)),
                ("TN", (outputs, inputs, tokens), (1, 2, 0)),
            ):
                axes = tuple(Axis(name, own) for name, own in zip("MNK", points, strict=True))
                own_sizes = frozenset(tuple(layer[place] for place in order) for layer in layers)
                subject = Subject(operation="product", variant=variant, dtype=dtype)
                grids.append(Grid(subject, axes, own_sizes, density.step))
    return grids


def _attentions(used: Shapes, density: Density) -> list[Grid]:
    """Batched products of unfused attention, and PyTorch's fused attention."""
    axes = tuple(
        Axis(name, axis_points({sizes[place] for sizes in used.attentions}, ratio=density.coarse, step=step), power)
        for place, (name, step, power) in enumerate([("batch * heads", 1, 1), ("sequence", 8, 2), ("head_dim", 4, 1)])
    )
    kinds = [("batched_product", variant) for variant in ("NT", "NN", "TN")]
    kinds += [("attention", variant) for variant in PASSES]
    return [
        Grid(Subject(operation=operation, variant=variant, dtype=dtype), axes, used.attentions, 1)
        for operation, variant in kinds
        for dtype in density.dtypes
    ]


def _rows(used: Shapes, density: Density) -> list[Grid]:
    kinds = [("layer_norm", used.norms, dtype) for dtype in density.dtypes]
    kinds += [("embedding", used.norms, dtype) for dtype in density.dtypes]
    sums = frozenset((layer.tokens, layer.outputs) for layer in used.blocks)
    kinds += [("column_sum", sums, dtype) for dtype in density.dtypes]
    kinds += [("softmax", used.softmaxes, "fp32"), ("cross_entropy", used.losses, "fp32")]
    grids = []
    for operation, sizes, dtype in kinds:
        columns = axis_points({size for _, size in sizes}, ratio=density.coarse, step=density.step)
        most = MOST_ROW_ELEMENTS // columns[-1]
        rows = axis_points({min(size, most) for size, _ in sizes}, ratio=density.coarse, step=density.step)
        axes = (Axis("rows", rows), Axis("columns", columns))
        for variant in PASSES if operation != "column_sum" else ("forward",):
            subject = Subject(operation=operation, variant=variant, dtype=dtype)
            grids.append(Grid(subject, axes, frozenset(sizes), density.step))
    return grids


def _memory(density: Density, ranks: int) -> list[Grid]:
    """Copies and triads; the largest moves twice a rank's part of the caches, or more."""
    largest = max(density.memory_bytes, 2 * density.caches // ranks)
    points = (*(float(density.memory_bytes // share) for share in (256, 16)), float(largest))
    axes = (Axis("byte", points),)
    return [Grid(Subject(operation=operation), axes, frozenset(), 1) for operation in MOVES]


def _geometric(first: int, last: int, ratio: float) -> tuple[int, ...]:
    """From `first` to `last`, neighbours at most `ratio` apart, at least two."""
    intervals = max(1, math.ceil(math.log(last / first) / math.log(ratio)))
    return tuple(round(first * (last / first) ** (place / intervals)) for place in range(intervals + 1))


def _lines(used: Shapes, density: Density, device: str) -> list[Sizes]:
    least = min(used.activations) // 4
    hidden = _geometric(least, max(used.activations) + 8, density.sparse)
    parameters = max(used.parameters) + 8
    wide = _geometric(least, parameters, density.sparse)
    lines = []
    for dtype in density.dtypes:
        for operation in (*HIDDEN, *WIDE):
            if operation == "bias" and device != "cpu":
                continue  # a GPU's kernels add it to the product
            if operation in ("to_fp32", "from_fp32") and dtype == "fp32":
                continue
            sizes = hidden if operation in HIDDEN else wide
            for variant in PASSES if operation not in FORWARD_ONLY else ("forward",):
                lines.append(Sizes(Subject(operation=operation, variant=variant, dtype=dtype), "element", sizes))
    for dtype in density.compiled:
        for operation in FUSED:
            for variant in PASSES:
                subject = Subject(operation=operation, variant=variant, dtype=dtype, compiled=True)
                lines.append(Sizes(subject, "element", (hidden[0], hidden[-1])))
    # the fewest in a row are what lies between two operators of a step: two views or three, one module's call; a block
    # reads twelve weights
    for operation, variants, calls in (
        ("view", PASSES, (2, 32)),
        *([("engine", PASSES[1:], (1, 4))] if device == "cpu" else []),  # nothing is taken off a GPU's own time
        ("module", PASSES[:1], (1, 32)),
        ("weight_read", PASSES, (WEIGHTS_OF_BLOCK, 48)),
        ("checkpoint", ("",), (2, 8)),
        ("sharded_unit", ("",), (1, 4)),
    ):
        for variant in variants:
            lines.append(Sizes(Subject(operation=operation, variant=variant), "call", calls))
    if density.compiled:
        for variant in PASSES:
            lines.append(Sizes(Subject(operation="region", variant=variant, compiled=True), "call", (1, 4)))
    lines.append(Sizes(Subject(operation="calls"), "call", (4, 64)))
    lines.append(Sizes(Subject(operation="adam"), "element", wide))
    lines.append(Sizes(Subject(operation="adam_tensors"), "tensor", (1, 8, 64)))
    if device == "cuda":
        for operation, variant in (("host_to_device", ""), ("host_to_device", "pageable"), ("device_to_host", "")):
            sizes = _geometric(4096, 2**29, density.sparse)
            lines.append(Sizes(Subject(operation=operation, variant=variant), "byte", sizes))
    return lines


def _collectives(used: Shapes, counts: Sequence[int], density: Density) -> list[Sizes]:
    sizes = _geometric(256, 4 * max(used.parameters), density.sparse)
    planned = []
    for count in counts:
        for operation in COLLECTIVES:
            if operation == "send" and count > 2:
                continue  # a message between two ranks, whatever the group
            adds = operation in ("all_reduce", "reduce_scatter")  # what only moves bytes does so in every dtype
            for dtype in density.dtypes if adds else ("fp32",):
                planned.append(Sizes(Subject(operation=operation, dtype=dtype, ranks=count), "byte", sizes))
    return planned


def _checks(grids: list[Grid], density: Density) -> list[tuple[str, Grid, tuple[tuple[int, ...], ...]]]:
    """For each table: sizes between the points, none that a miniature has, and some of the points once more."""
    chosen = random.Random(SEED)
    checks = []
    for grid in grids:
        if len(grid.axes) == 1:
            continue
        count = density.unseen if len(grid.axes) == 3 else max(1, density.unseen // 2)
        seen = grid.left_out | set(grid.sizes)
        unseen: list[tuple[int, ...]] = []
        while len(unseen) < count:
            sizes = tuple(_between(axis, grid.step, chosen) for axis in grid.axes)
            if sizes not in seen:
                unseen.append(sizes)
        checks.append((UNSEEN, grid, tuple(unseen)))
        checks.append((REPEATED, grid, tuple(chosen.sample(grid.sizes, max(1, count // 3)))))
    return checks


def _between(axis: Axis, step: int, chosen: random.Random) -> int:
    """A size in the axis's range, log-uniform, to a multiple of `step`."""
    first, last = axis.points[0], axis.points[-1]
    return step * round(math.exp(chosen.uniform(math.log(first), math.log(last))) / step)
