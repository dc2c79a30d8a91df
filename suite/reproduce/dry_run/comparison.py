"""A dry run: every class of ranks is executed without memory, and compared with what arithmetic expects of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.run import Workload
from suite.job.dry_run_job import CountedRank, Moment, NotCounted, StepCounts
from suite.job.options import StepOptions
from suite.job.training_job import Job
from suite.machine.half_precision import Kernels
from suite.machine.scratch import scratch_directory
from suite.metrics.comparison import Row, Verdict, compare, overall
from suite.metrics.figures import Figure, Quantity
from suite.predict.analytic.parameters import parameter_count
from suite.predict.executed_run.counts import figures_at
from suite.predict.executed_run.figures import MEMORY_TOLERANCE, PEAK_REASON, activation_figure, peak_figure
from suite.predict.simulation.state import rank_position
from suite.reproduce.dry_run.depth_line import depth_line
from suite.reproduce.dry_run.plan import DryPlan
from suite.reproduce.dry_run.rank_classes import RankClass, rank_classes
from suite.reproduce.dry_run.stage_line import stage_lines
from suite.reproduce.dry_run.whole_steps import NotCountedError, WholeSteps
from suite.reproduce.measured_figures import counted_figures_of_rank

OPTIONS = StepOptions(kernels=Kernels(), compiled=False)
BYTES_OF_TOKEN = 4


class CountedClass(msgspec.Struct, frozen=True, kw_only=True):
    """A class of ranks, and what the first of them counts in a step.

    Args:
        executed: numbers of micro-batches of the steps that it executed; none where a line says what it counts.
        step: of all micro-batches.
    """

    of: RankClass
    seconds: float
    executed: tuple[int, ...]
    step: StepCounts


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a layout, and their comparison with the prediction.

    Args:
        micro_batches: of a whole step.
        by_depth: whether one kind of ranks was executed with all layers, and the others follow from few.
        changes: what is executed in another way than recorded, in words.
        failure: why not every class was counted; empty where each was.
        traceback: of that.
    """

    name: str
    workload: Workload
    classes: list[RankClass]
    micro_batches: int
    counted: list[CountedClass]
    rows: list[Row]
    by_depth: bool = False
    changes: tuple[str, ...] = ()
    failure: str = ""
    traceback: str = ""

    @property
    def verdict(self) -> Verdict:
        """Verdict of all rows; fail where not every class was counted."""
        return Verdict.FAIL if self.failure else overall(self.rows)

    @property
    def fullest(self) -> CountedClass:
        """The class with the highest peak."""
        return max(self.counted, key=lambda each: each.step.counts.peak_bytes)

    @property
    def executed(self) -> list[int]:
        """The numbers of micro-batches of the steps that were executed."""
        return sorted({number for each in self.counted for number in each.executed})


def dry_run(
    plan: DryPlan,
    on_counted: Callable[[CountedRank], None],
    *,
    every_rank: bool = False,
    ranks: Sequence[int] = (),
    every_micro_batch: bool = False,
) -> DryRun:
    """Execute the layout's ranks, one of each class, and compare them with the prediction.

    Args:
        every_rank: execute the others too.
        ranks: execute these alone.
        every_micro_batch: execute a whole step, rather than two from which it follows.
    """
    workload = plan.workload
    classes = rank_classes(workload)
    if every_rank or ranks:
        stages = {rank: rank_position(workload.layout, rank).stage for rank in ranks or range(workload.layout.ranks)}
        classes = [RankClass(rank, stage, 1, rank) for rank, stage in stages.items()]
    follows = not (every_rank or ranks or every_micro_batch)
    lines = stage_lines(classes) if follows else []
    depth = depth_line(workload, classes) if follows else None
    later = {each.rank for line in lines for each in line.others}
    later |= {each.rank for each in depth.others} if depth else set()
    failed: NotCounted | None = None
    by_depth = False
    with scratch_directory() as scratch:
        whole = WholeSteps(dry_run_job(plan, scratch), workload, on_counted, every_micro_batch=every_micro_batch)
        try:
            whole.execute([each for each in classes if each.rank not in later], depth)
            for line in lines:
                whole.follow_stages(line)
            by_depth = depth is not None and whole.follow_depths(depth)
        except NotCountedError as error:
            failed = error.failed
    counted = (
        [] if failed else [_counted(each, whole.answers.get(each.rank), whole.steps[each.rank]) for each in classes]
    )
    return DryRun(
        name=plan.name,
        workload=workload,
        classes=classes,
        micro_batches=accumulation(workload.recipe, workload.layout),
        counted=counted,
        rows=[] if failed else compared(workload, counted, whole_job=not ranks),
        by_depth=by_depth,
        changes=plan.changes,
        failure=f"rank {failed.rank}: {failed.message}" if failed else "",
        traceback=failed.traceback if failed else "",
    )


def _counted(each: RankClass, answer: CountedRank | None, step: StepCounts) -> CountedClass:
    if answer is None:
        return CountedClass(of=each, seconds=0.0, executed=(), step=step)
    numbers = tuple(one.micro_batches for one in answer.steps)
    return CountedClass(of=each, seconds=answer.seconds, executed=numbers, step=step)


def dry_run_job(plan: DryPlan, scratch: str) -> Job:
    """The job that a launch would run, on tokens of a file that takes no room: 0 of every sample."""
    architecture, recipe, layout = plan.workload
    tokens = 2 * architecture.sequence + 1
    file = Path(scratch) / "tokens"
    file.touch()
    os.truncate(file, BYTES_OF_TOKEN * tokens)
    return Job(
        name=plan.name,
        architecture=architecture,
        recipe=recipe,
        layout=layout,
        device="cpu",
        compiled=False,
        seed=1,
        steps=1,
        tokens_file=str(file),
        tokens=tokens,
        directory=scratch,
        threads=1,
        collective_timeout_seconds=1.0,
    )


def compared(workload: Workload, counted: Sequence[CountedClass], *, whole_job: bool) -> list[Row]:
    """Rows of each counted rank: the expected value beside the counted one; parameters are the whole model's."""
    expected, found = [], []
    if whole_job:
        expected.append(Figure(Quantity.PARAMETERS, parameter_count(workload.architecture)))
        found.append(Figure(Quantity.PARAMETERS, _all_parameters(workload, counted)))
    for each in counted:
        rank, stage = each.of.rank, each.of.stage if workload.layout.pipeline_stages > 1 else None
        expected += [msgspec.structs.replace(f, rank=rank, stage=stage) for f in _expected(workload, rank)]
        figures = counted_figures_of_rank(rank, each.step.counts)
        found += [msgspec.structs.replace(figure, stage=stage) for figure in figures]
    return compare(expected, found, left_name="predicted", right_name="counted", judge=True)


def _expected(workload: Workload, rank: int) -> list[Figure]:
    position = rank_position(workload.layout, rank)
    return [
        *(f for f in figures_at(workload, position, OPTIONS) if f.quantity is not Quantity.SENT_BYTES),
        activation_figure(workload, position, OPTIONS),
        peak_figure(workload, position, OPTIONS, tolerance=MEMORY_TOLERANCE, why=PEAK_REASON),
    ]


def _all_parameters(workload: Workload, counted: Sequence[CountedClass]) -> int:
    """Parameters of the model: the sum of what each class has of its stage's."""
    ranks = workload.layout.ranks // workload.layout.pipeline_stages
    return round(sum(Fraction(each.of.ranks, ranks) * each.step.stage_parameters for each in counted))


def peak_parts(step: StepCounts) -> Moment:
    """Parts of the peak, the largest first."""
    parts = sorted(step.at_peak.bytes.items(), key=lambda part: -part[1])
    return Moment(step.at_peak.phase, {name: size for name, size in parts if size > 0})
