"""The operations and sizes that a calibration times: the range of the miniatures, without their shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from suite.calibration.density import Scope
from suite.calibration.grids import MOVES, Grid, LineSizes, checks, collectives, grids, lines
from suite.job.calibration_job import Task
from suite.machine.profile import Profile
from suite.machine.reference_step import PRECISION, ReferenceStep, reference_step
from suite.machine.timing_tables import Axis, Subject

TABLE, LINE = "table", "line"
SQUARES = (4096, 8192)  # sides as in large models, much wider than those of miniatures
SQUARE_SECONDS = 0.3  # of each in a round: long enough to reach the rate that a GPU sustains under its power limit
MEMORY_SECONDS = 0.5  # of each point of copies and triads in a round, by all ranks at once: other guests use the memory
HOST_SECONDS = 0.02  # of each point of host calls in a round: a step makes thousands of each
REFERENCE_ROUNDS = 3  # blocks of reference steps in a round

BUDGET_SECONDS = 74.0  # of a calibration's usual 90 s; starting, fitting and storing take the rest
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
        moments: in the first round, at which ranks are compared; besides the budget.
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
    moments: int = 0
    partial: bool = False
    extends: Profile | None = None


def counts_at_once(ranks: int) -> tuple[int, ...]:
    """Numbers of ranks that measure at once: 1, 2, 4, ... and all."""
    return tuple(sorted({2**power for power in range(ranks.bit_length()) if 2**power <= ranks} | {ranks}))


def plan(scope: Scope, counts: Sequence[int] | None = None) -> list[Planned]:
    """Everything that is timed, for each of `counts` ranks at once; by default 1, 2, 4, ... and all, then collectives.

    With more ranks than cores, one rank per core is timed too (see `suite.machine.timing_tables.Oversubscribed`).
    """
    if counts is None:
        counts = counts_at_once(scope.ranks)
        if scope.device == "cpu" and scope.ranks > scope.cores:
            counts = sorted({*counts, scope.cores})
    return computing(scope, counts) + [entry for entry in messages(scope) if entry.task.subject.ranks in counts]


def computing(scope: Scope, counts: Sequence[int]) -> list[Planned]:
    """Everything except collectives, for each of `counts` ranks at once."""
    planned: list[Planned] = []
    for ranks in counts:
        tables, last = grids(scope, ranks), ranks == max(counts)
        planned += planned_tables(scope, tables, ranks, long_moves=last)
        planned += computing_lines(scope, ranks)
        if scope.device == "cuda" and last:
            planned.append(squares(scope, ranks))
        planned += planned_checks(scope, tables, ranks)
    return planned


def planned_tables(scope: Scope, tables: Iterable[Grid], ranks: int, *, long_moves: bool = False) -> Iterator[Planned]:
    """The points of grids, timed by `ranks` ranks at once.

    Args:
        long_moves: whether copies and triads are timed for `MEMORY_SECONDS`.
    """
    for grid in tables:
        long = long_moves and grid.subject.operation in MOVES
        seconds = MEMORY_SECONDS if long else scope.density.point_seconds
        yield Planned(TABLE, _task(scope, grid.subject, grid.sizes, ranks, seconds, share=ranks), grid.axes)


def planned_checks(scope: Scope, tables: list[Grid], ranks: int) -> Iterator[Planned]:
    """Further points of the grids, which measure the error of the interpolation."""
    for kind, grid, points in checks(tables, scope.density):
        task = _task(scope, grid.subject, points, ranks, scope.density.point_seconds, share=ranks)
        yield Planned(kind, task, grid.axes)


def computing_lines(scope: Scope, ranks: int) -> list[Planned]:
    """The part of `computing` that is timed along a line, without large square products."""
    return [_planned_line(scope, line, ranks, share=ranks) for line in lines(scope)]


def messages(scope: Scope) -> list[Planned]:
    """The collectives alone, in groups of 2, 4, ... and all ranks; on a CPU of one a core too, where that are fewer."""
    most = min(scope.ranks, scope.cores) if scope.device == "cpu" else scope.ranks
    groups = sorted({*counts_at_once(scope.ranks), most} - {1})
    return [_planned_line(scope, line, line.subject.ranks, share=scope.ranks) for line in collectives(scope, groups)]


def _planned_line(scope: Scope, line: LineSizes, ranks: int, *, share: int) -> Planned:
    seconds = HOST_SECONDS if line.unit == "call" else scope.density.point_seconds
    sizes = tuple((size,) for size in line.sizes)
    return Planned(LINE, _task(scope, line.subject, sizes, ranks, seconds, share=share), unit=line.unit)


def squares(scope: Scope, ranks: int) -> Planned:
    """Large square products in bf16 on all devices at once: what data sheets and known-good GPUs are compared by."""
    subject = Subject(operation="square_product", variant="NT", dtype="bf16")
    sizes = tuple((2 * side**3,) for side in SQUARES)
    return Planned(LINE, _task(scope, subject, sizes, ranks, SQUARE_SECONDS, share=ranks), unit="flop")


def _task(
    scope: Scope, subject: Subject, sizes: tuple[tuple[int, ...], ...], ranks: int, seconds: float, *, share: int
) -> Task:
    """Timed by `ranks` ranks at once, for so many seconds a point; `share` ranks divide the cores."""
    return Task(
        subject=msgspec.structs.replace(subject, ranks=ranks),
        threads=max(1, scope.cores // share) if scope.device == "cpu" else 1,
        sizes=sizes,
        point_seconds=seconds,
    )


def reference_steps(scope: Scope) -> list[ReferenceStep]:
    """The steps that are trained between the tasks: by one rank, by one rank per core, and compiled by the latter.

    The correction factors of both, compiled, were alike. There are none on CUDA, where the difference of a step from
    its operators was never studied. There are none where the dtype of reference steps is not timed.
    """
    if scope.device != "cpu" or PRECISION.value not in scope.density.dtypes:
        return []
    most = min(scope.ranks, scope.cores)
    kinds = [(count, False) for count in sorted({1, most})] + [(most, True)] * bool(scope.density.compiled)
    return [reference_step(count, compiled=compiled, threads=max(1, scope.cores // count)) for count, compiled in kinds]
