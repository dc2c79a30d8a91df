"""The measurements that the prediction of one step needs, and a quick calibration that takes only these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import msgspec

from suite.calibration.density import DENSITIES, Density, Scope
from suite.calibration.grids import Grid, axis_points, axis_step, grids
from suite.calibration.plan import (
    Calibration,
    Planned,
    computing_lines,
    messages,
    planned_checks,
    planned_tables,
    reference_steps,
    squares,
)
from suite.job.options import StepOptions
from suite.machine.devices import usable_cores
from suite.machine.half_precision import kernels_for
from suite.machine.operations import COLLECTIVES
from suite.machine.profile import Profile
from suite.machine.reference_step import ReferenceStep
from suite.machine.timing_tables import Line, MeasuredTimes, Subject, Table
from suite.machine.timings import Timing
from suite.predict.simulation.step_time import step_seconds

BUDGET_SECONDS = 12.0  # of the usual seconds; starting, fitting and storing take the rest
REFERENCE_SECONDS = 5.0  # of the budget, for reference steps

PointSizes = tuple[float, ...]


def usual_seconds(*, compiled: bool) -> float:
    """Seconds from start to end, as printed to a waiting user. Compiling the reference step takes 11 to 15 s."""
    return 40.0 if compiled else 25.0


class Needs(NamedTuple):
    """The parts of a profile that a prediction uses.

    Args:
        sizes: for each subject whose seconds are used.
        lines: subjects whose latency and bandwidth are used.
        reference_steps: they correct the sum of the operators' seconds.
    """

    device: str
    ranks: int
    sizes: Mapping[Subject, frozenset[PointSizes]]
    lines: frozenset[Subject]
    reference_steps: tuple[ReferenceStep, ...]


class _Recorder:
    """A profile in which everything takes one second, and which records what a prediction reads."""

    def __init__(self) -> None:
        self.sizes: dict[Subject, set[PointSizes]] = {}
        self.lines: set[Subject] = set()

    def seconds(self, subject: Subject, *sizes: float) -> float:
        self.sizes.setdefault(subject, set()).add(sizes)
        return 1.0

    def line(self, subject: Subject) -> Line:
        self.lines.add(subject)
        second = Timing(1.0, 1.0, 1.0, 1.0, 1, 0)
        return Line(
            subject=subject,
            unit="",
            sizes=(1.0,),
            timings=(second,),
            fixed_seconds=1.0,
            seconds_per_unit=1.0,
            residual=0.0,
            worst=0.0,
        )


def needs_of(predict: Callable[[MeasuredTimes], object], *, device: str, ranks: int, compiled: bool) -> Needs:
    """The parts of a profile that `predict` and its step correction read.

    Raises:
        InputError: as `predict`.
    """
    recorder, scope = _Recorder(), Scope(device, ranks, usable_cores(), DENSITIES[device])
    predict(recorder)
    steps = tuple(
        step
        for step in reference_steps(scope)
        if recorder.sizes and (step.layout.ranks, step.compiled) == (min(ranks, scope.cores), compiled)
    )
    for step in steps:
        kernels = kernels_for(step.recipe.precision, device)
        step_seconds(recorder, step.workload, StepOptions(kernels=kernels, compiled=step.compiled))
    sizes = {subject: frozenset(needed) for subject, needed in recorder.sizes.items()}
    return Needs(device, ranks, sizes, frozenset(recorder.lines), steps)


def lacking(needs: Needs, profile: Profile | None) -> Calibration | None:
    """The calibration that measures what `profile` lacks of `needs`; None if it has everything.

    It leaves out what no calibration measures; the prediction then raises an error that names it.
    """
    if not needs.sizes:
        return None
    scope = Scope(needs.device, needs.ranks, usable_cores(), DENSITIES[needs.device]._replace(unseen=1))
    planned = [*_missing_lines(needs, profile, scope), *_missing_tables(needs, profile, scope)]
    timed = [step.step for step in profile.reference_steps] if profile else []
    steps = [step for step in needs.reference_steps if step not in timed]
    if not planned and not steps:
        return None
    return Calibration(
        device=needs.device,
        ranks=needs.ranks,
        results=Path(),
        planned=planned,
        reference_steps=steps,
        rounds=scope.density.rounds,
        budget_seconds=BUDGET_SECONDS,
        reference_seconds=REFERENCE_SECONDS,
        partial=True,
        extends=profile,
    )


def _missing_lines(needs: Needs, profile: Profile | None, scope: Scope) -> list[Planned]:
    """The needed lines of a whole calibration, up to the largest needed size."""
    whole = computing_lines(scope, scope.ranks) + messages(scope)
    if scope.device == "cuda":
        whole.append(squares(scope, scope.ranks))
    measured = {line.subject: line.sizes[-1] for line in profile.lines} if profile else {}
    planned: dict[Subject, Planned] = {}
    for entry in whole:
        subject = entry.task.subject
        asked = [other for other in needs.sizes.keys() | needs.lines if _answers(subject, other)]
        # a GPU's achievable rate is read from large square products
        if not asked and subject.operation != "square_product":
            continue
        sizes = entry.task.sizes
        if not needs.lines.intersection(asked):
            largest = max((size for other in asked for (size,) in needs.sizes[other]), default=sizes[-1][0])
            sizes = sizes[: max(2, 1 + sum(size < largest for (size,) in sizes))]
        if measured.get(subject, 0) < sizes[-1][0]:
            planned[subject] = entry._replace(task=msgspec.structs.replace(entry.task, sizes=sizes))
    return list(planned.values())


def _answers(measured: Subject, asked: Subject) -> bool:
    """Whether one measured subject serves for another one; messages of a larger group serve for a smaller one."""
    if measured.operation in COLLECTIVES and measured.ranks >= asked.ranks:
        asked = msgspec.structs.replace(asked, ranks=measured.ranks)
    return measured == asked


def _missing_tables(needs: Needs, profile: Profile | None, scope: Scope) -> list[Planned]:
    """Grids around the needed sizes that no table of the profile contains, with their checks."""
    whole: dict[Subject, list[Grid]] = {}
    for grid in grids(scope, needs.ranks):
        whole.setdefault(msgspec.structs.replace(grid.subject, ranks=needs.ranks), []).append(grid)
    bracketing: list[Grid] = []
    for subject, asked in needs.sizes.items():
        candidates = whole.get(subject, [])
        inside = {_clipped(sizes, candidates) for sizes in asked} if candidates else set()
        measured = [table for table in (profile.tables if profile else []) if table.subject == subject]
        missing = {sizes for sizes in inside if all(table.distance(sizes) for table in measured)}
        bracketing += _bracketing(missing, candidates, scope.density)
    return [*planned_tables(scope, bracketing, needs.ranks), *planned_checks(scope, bracketing, needs.ranks)]


def _clipped(sizes: PointSizes, candidates: Iterable[Grid]) -> tuple[int, ...]:
    """Sizes limited to the whole calibration's nearest grid, because a prediction extrapolates beyond it anyway."""
    tables = [Table(subject=grid.subject, axes=grid.axes, timings=()) for grid in candidates]
    axes = min(tables, key=lambda table: table.distance(sizes)).axes
    return tuple(round(min(max(size, axis.points[0]), axis.points[-1])) for axis, size in zip(axes, sizes, strict=True))


def _bracketing(missing: Iterable[tuple[int, ...]], candidates: list[Grid], density: Density) -> list[Grid]:
    """Grids whose points surround the sizes. Several sizes share a grid if it has no more points than separate ones."""

    def surrounding(several: frozenset[tuple[int, ...]]) -> Grid:
        like = candidates[0]
        ratio = density.ratio if (like.subject.operation, like.subject.dtype) == ("product", "bf16") else density.coarse
        excluded = frozenset().union(*(grid.excluded for grid in candidates))
        axes = tuple(
            msgspec.structs.replace(
                axis,
                points=axis_points(
                    {sizes[index] for sizes in several},
                    ratio=ratio,
                    step=axis_step(axis.name, density),
                    excluded={sizes[index] for sizes in excluded},
                ),
            )
            for index, axis in enumerate(like.axes)
        )
        return like._replace(axes=axes, excluded=excluded)

    clusters = {group: surrounding(group) for group in (frozenset({sizes}) for sizes in missing)}
    while len(clusters) > 1:
        joint = {pair: surrounding(pair[0] | pair[1]) for pair in combinations(sorted(clusters, key=sorted), 2)}
        saved = {
            pair: len(clusters[pair[0]].sizes) + len(clusters[pair[1]].sizes) - len(grid.sizes)
            for pair, grid in joint.items()
        }
        best = max(saved, key=lambda pair: saved[pair])
        if saved[best] < 0:
            break
        for group in best:
            del clusters[group]
        clusters[best[0] | best[1]] = joint[best]
    return list(clusters.values())
