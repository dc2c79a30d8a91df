"""The operations and sizes that a calibration times: the range of the miniatures, without their shapes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from suite.calibration.density import Density
from suite.calibration.grids import MOVES, checks, grids
from suite.calibration.lines import collectives, lines
from suite.calibration.shapes import Shapes
from suite.job.calibration_job import Task
from suite.machine.profile import Profile
from suite.machine.reference_step import PRECISION, ReferenceStep, reference_step
from suite.machine.timing_tables import Axis, Subject

TABLE, LINE = "table", "line"
SQUARES = (4096, 8192)  # sides as in large models, much wider than those of miniatures
SQUARE_SECONDS = 0.3  # of each in a round: long enough to reach the rate that a GPU sustains under its power limit
# Of each point of copies and triads in a round, by all ranks at once. With 4 repetitions (40 ms) the triad of two ranks
# had 12 to 26 GB/s within an hour, because other guests of the host use the same memory (2 cores of an AMD EPYC,
# 2026-11-23)
MEMORY_SECONDS = 0.5
HOST_SECONDS = 0.02  # of each point of host calls in a round: a step makes thousands of each
REFERENCE_ROUNDS = 3  # blocks of reference steps in a round

BUDGET_SECONDS = 74.0  # of a calibration's usual 90 s: starting, fitting and storing took 14 s on 2 cores (2026-11-23)
REFERENCE_SECONDS = 18.0  # of the budget, for reference steps


class Planned(NamedTuple):
    """A task, the purpose of its points (table, line, unseen, repeated), and its unit or the axes of its table.

    Two tables may have the same subject, as products of blocks and of heads. A check belongs to the one with its axes.
    """

    kind: str
    task: Task
    axes: tuple[Axis, ...] = ()
    unit: str = ""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request: the device, and everything that is timed.

    Args:
        budget_seconds: of all rounds; `reference_seconds` of them are reserved for reference steps.
        partial: whether it measures only what one run needs; `extends` is a profile that has the rest.
    """

    device: str
    ranks: int
    results: Path
    planned: list[Planned]
    reference_steps: list[ReferenceStep] = []
    rounds: int
    budget_seconds: float = BUDGET_SECONDS
    reference_seconds: float = REFERENCE_SECONDS
    partial: bool = False
    extends: Profile | None = None


def counts_at_once(ranks: int) -> tuple[int, ...]:
    """Numbers of ranks that measure at once: 1, 2, 4, ... and all."""
    return tuple(sorted({2**power for power in range(ranks.bit_length()) if 2**power <= ranks} | {ranks}))


def plan(
    used: Shapes, *, device: str, cores: int, ranks: int, density: Density, counts: Sequence[int] | None = None
) -> list[Planned]:
    """Everything that is timed on `ranks` ranks: for 1, 2, 4, ... ranks at once, then the collectives.

    With more ranks than cores, one rank per core is timed too (see `suite.machine.timing_tables.Oversubscribed`).

    Args:
        used: the miniatures' shapes; their range is covered, and the shapes are left out.
        cores: divided among the threads of the ranks that measure at once, on "cpu".
        counts: the numbers of ranks at once; None: 1, 2, 4, ... and all.
    """
    if counts is None:
        counts = counts_at_once(ranks)
        if device == "cpu" and ranks > cores:
            counts = sorted({*counts, cores})
    exchanged = messages(used, device=device, cores=cores, ranks=ranks, density=density)
    return computing(used, device=device, cores=cores, counts=counts, density=density) + [
        entry for entry in exchanged if entry.task.subject.ranks in counts
    ]


def computing(used: Shapes, *, device: str, cores: int, counts: Sequence[int], density: Density) -> list[Planned]:
    """Everything except collectives, for each of `counts` ranks at once."""
    planned: list[Planned] = []
    ranks = max(counts)
    for count in counts:
        tables = grids(used, density, count)
        for grid in tables:
            long = count == ranks and grid.subject.operation in MOVES
            grid_density = density._replace(point_seconds=MEMORY_SECONDS) if long else density
            planned.append(
                Planned(TABLE, task(grid.subject, grid.sizes, count, device, cores, grid_density), grid.axes)
            )
        planned += computing_lines(used, device=device, cores=cores, ranks=count, density=density)
        if device == "cuda" and count == ranks:
            planned.append(squares(count, device, cores, density))
        for kind, grid, points in checks(tables, density):
            planned.append(Planned(kind, task(grid.subject, points, count, device, cores, density), grid.axes))
    return planned


def computing_lines(used: Shapes, *, device: str, cores: int, ranks: int, density: Density) -> list[Planned]:
    """The part of `computing` that is timed along a line, without large square products."""
    planned = []
    for subject, unit, sizes in lines(used, density, device):
        each = tuple((size,) for size in sizes)
        line_density = density._replace(point_seconds=HOST_SECONDS) if unit == "call" else density
        planned.append(Planned(LINE, task(subject, each, ranks, device, cores, line_density), unit=unit))
    return planned


def reference_steps(*, device: str, cores: int, ranks: int, density: Density) -> list[ReferenceStep]:
    """The steps that are trained between the tasks: by one rank, by one rank per core, and compiled by the latter.

    Compiling it took 11 s for 2 ranks and 15 s for one with 2 threads (2 cores of an AMD EPYC, Zen 5, 2026-11-24), and
    the correction factors of both were alike. There are none on CUDA, where the difference of a step from its operators
    was never studied. There are none where the dtype of reference steps is not timed.
    """
    if device != "cpu" or PRECISION.value not in density.dtypes:
        return []
    most = min(ranks, cores)
    kinds = [(count, False) for count in sorted({1, most})] + [(most, True)] * bool(density.compiled)
    return [reference_step(count, compiled=compiled, threads=max(1, cores // count)) for count, compiled in kinds]


def messages(used: Shapes, *, device: str, cores: int, ranks: int, density: Density) -> list[Planned]:
    """The collectives alone, in groups of 2, 4, ... and all ranks; on a CPU of one a core too, where that are fewer."""
    counts = {*counts_at_once(ranks), min(ranks, cores) if device == "cpu" else ranks} - {1}
    planned = []
    for subject, unit, sizes in collectives(used, sorted(counts), density):
        each = tuple((size,) for size in sizes)
        timed = task(subject, each, subject.ranks, device, cores * subject.ranks // ranks, density)
        planned.append(Planned(LINE, timed, unit=unit))
    return planned


def task(
    subject: Subject, sizes: tuple[tuple[int, ...], ...], ranks: int, device: str, cores: int, density: Density
) -> Task:
    """Timed by `ranks` ranks at once, which divide the cores."""
    return Task(
        subject=msgspec.structs.replace(subject, ranks=ranks),
        threads=max(1, cores // ranks) if device == "cpu" else 1,
        sizes=sizes,
        point_seconds=density.point_seconds,
    )


def squares(ranks: int, device: str, cores: int, density: Density) -> Planned:
    """Large square products in bf16 on all devices at once: what data sheets and known-good GPUs are compared by."""
    subject = Subject(operation="square_product", variant="NT", dtype="bf16")
    sizes = tuple((2 * side**3,) for side in SQUARES)
    timed = task(subject, sizes, ranks, device, cores, density._replace(point_seconds=SQUARE_SECONDS))
    return Planned(LINE, timed, unit="flop")
