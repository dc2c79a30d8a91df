"""The whole step of every kind of ranks: executed, or on a line through steps that were."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reference_runs.catalog import accumulation
from reference_runs.run import Workload
from suite.job.dry_run_job import AskedRank, AskedStep, CountedRank, NotCounted, StepCounts
from suite.job.training_job import Job
from suite.machine.devices import usable_cores
from suite.reproduce.dry_run.depth_line import FEW, DepthLine, in_layers, same_counts
from suite.reproduce.dry_run.rank_classes import RankClass, executed_steps, of_whole_step
from suite.reproduce.dry_run.stage_line import StageLine, others_on_line
from suite.reproduce.dry_run.workers import answers


class NotCountedError(Exception):
    """A rank was not counted."""

    def __init__(self, failed: NotCounted) -> None:
        super().__init__(failed.message)
        self.failed = failed


class WholeSteps:
    """Executes ranks, and has what they count in a whole step.

    Args:
        every_micro_batch: execute a whole step, rather than shorter ones from which it follows.

    Attributes:
        answers: rank -> what it counted in the steps that it executed with all layers.
        steps: rank -> its whole step.
    """

    def __init__(
        self, job: Job, workload: Workload, on_counted: Callable[[CountedRank], None], *, every_micro_batch: bool
    ) -> None:
        self.answers: dict[int, CountedRank] = {}
        self.steps: dict[int, StepCounts] = {}
        self._job, self._workload, self._on_counted = job, workload, on_counted
        self._every_micro_batch = every_micro_batch
        self._whole = accumulation(workload.recipe, workload.layout)
        self._of_few: dict[tuple[int, int], CountedRank] = {}

    def execute(self, classes: Sequence[RankClass], depth: DepthLine | None = None) -> None:
        """Execute these with all layers, and those of a depth line with few of them.

        Raises:
            NotCountedError: one could not be executed.
        """
        asked = [self._asked(each) for each in classes]
        of_line = (depth.proof, *depth.others) if depth else ()
        asked += [self._asked(each, layers) for each in of_line for layers in FEW]
        for answer in answers(self._job, asked, workers=usable_cores()):
            if not isinstance(answer, CountedRank):
                raise NotCountedError(answer)
            self._on_counted(answer)
            if answer.layers is None:
                self.answers[answer.rank] = answer
            else:
                self._of_few[answer.rank, answer.layers] = answer
        for each in classes:
            own, alike = self.answers[each.rank], self.answers[each.alike]
            self.steps[each.rank] = of_whole_step(own.steps, self._whole, alike=alike.steps)

    def _asked(self, each: RankClass, layers: int | None = None) -> AskedRank:
        steps = (AskedStep(self._whole),) if self._every_micro_batch else executed_steps(self._workload, each)
        return AskedRank(each.rank, steps, each.lends, layers)

    def follow_stages(self, line: StageLine) -> None:
        """The other stages of a line; executed where three of them are on none."""
        if (found := others_on_line(line, self.steps)) is not None:
            self.steps |= found
        else:
            self.execute(line.others)

    def follow_depths(self, depth: DepthLine) -> bool:
        """The other kinds of ranks of a line; executed, and False, where the one with all layers is not on its own."""
        if not same_counts(self._in_all_layers(depth.proof), self.steps[depth.proof.rank]):
            self.execute(depth.others)
            return False
        self.steps |= {each.rank: self._in_all_layers(each) for each in depth.others}
        return True

    def _in_all_layers(self, each: RankClass) -> StepCounts:
        few, more = (
            of_whole_step(
                self._of_few[each.rank, layers].steps, self._whole, alike=self._of_few[each.alike, layers].steps
            )
            for layers in FEW
        )
        return in_layers(few, more, self._workload.architecture.layers)
