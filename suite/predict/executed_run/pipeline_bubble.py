"""The waiting of a pipeline whose passes take as long as they were measured: the schedule's own share of it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.run import Workload
from suite.job.pipeline_passes import MOST_PASSES, Pass, PassKind, PipelineTimes
from suite.job.training_job import Job
from suite.metrics.figures import MEASURED_PASSES, Figure, Quantity
from suite.predict.simulation.pipeline_order import TimedPass
from suite.predict.simulation.pipeline_schedule import steady_idle_fraction, timed_passes
from suite.predict.simulation.supported_layouts import describes_ranks

BUBBLE_TOLERANCE = 0.05  # of the step, on either side
REASON = "within 5 points: the schedule with measured passes, messages of no time"
SHORTEST_PASS_SECONDS = 0.01  # on the average
SHORTEST_WITHOUT_FLUSH = 0.1  # where each message is waited for
QUIET_SHARE = 0.02  # of the processors, that others take at most


class MeasuredDurations(NamedTuple):
    """Seconds of each kind of pass through each chunk, and of what ranks with a chunk do between two steps.

    Each is the median of the ranks' medians.
    """

    seconds: dict[tuple[PassKind, int], float]
    between: dict[int, float]

    @property
    def chunks(self) -> int:
        """Number of chunks of the whole model."""
        return 1 + max(chunk for _, chunk in self.seconds)

    def of(self, done: Pass) -> float:
        """How long a pass takes."""
        return self.seconds[done.kind, done.chunk]


def measured_durations(times: Sequence[PipelineTimes]) -> MeasuredDurations:
    """Durations over all ranks of a launch; ranks with the same chunk, replicas or tensor-parallel, count alike."""
    seconds: dict[tuple[PassKind, int], list[float]] = defaultdict(list)
    between: dict[int, list[float]] = defaultdict(list)
    for of_rank in times:
        for median in of_rank.medians:
            seconds[median.kind, median.chunk].append(median.seconds)
        for chunk in {median.chunk for median in of_rank.medians}:
            between[chunk].append(of_rank.between_seconds or 0.0)
    return MeasuredDurations(
        {key: statistics.median(medians) for key, medians in seconds.items()},
        {chunk: statistics.median(medians) for chunk, medians in between.items()},
    )


def idle_share(stages: Sequence[Sequence[TimedPass]]) -> float:
    """Share of the time from the first pass to the last one in which a stage computes nothing; mean of stages."""
    busy = sum(each.end - each.start for done in stages for each in done)
    whole = max(done[-1].end for done in stages) - min(done[0].start for done in stages)
    return 1 - busy / (len(stages) * whole)


def recorded_micro_batches(workload: Workload, times: Sequence[PipelineTimes]) -> int:
    """Micro-batches of the step whose passes were recorded (batches may grow); of a whole batch if some are not."""
    most = max(len(of_rank.passes) for of_rank in times)
    if not 0 < most < MOST_PASSES or not workload.layout.flushes:
        return accumulation(workload.recipe, workload.layout)
    return 1 + max(each.micro_batch for each in times[0].passes)


class SimulatedStep(NamedTuple):
    """The passes of each stage in a step, and the share of the pipeline's time in which a stage waits."""

    stages: list[list[TimedPass]]
    idle: float


def simulated_step(workload: Workload, times: Sequence[PipelineTimes]) -> SimulatedStep | None:
    """The schedule of the recorded step, each pass as long as measured, messages of no time.

    Without flush what stages do between two steps takes as long as measured too: where one stage's update takes longer,
    the others wait for it.

    None where the schedule is not described, or has passes that no timed step had.
    """
    if not describes_ranks(workload):
        return None
    layout, durations = workload.layout, measured_durations(times)
    try:
        micro_batches = recorded_micro_batches(workload, times)
        stages = timed_passes(layout, durations, micro_batches=micro_batches)
        if layout.flushes:
            return SimulatedStep(stages, idle_share(stages))
        between = [durations.between[stage] for stage in range(layout.pipeline_stages)]
        idle = steady_idle_fraction(layout, durations, micro_batches=micro_batches, between=between)
        return SimulatedStep(stages, idle)
    except KeyError:
        return None


class LaunchSurroundings(NamedTuple):
    """Surroundings of a launch: causes besides the schedule that can make a rank wait.

    Args:
        cores: that the ranks may use.
        others_share, steal_share: of the processors, see `suite.records.record.End`.
    """

    cores: int
    others_share: float | None
    steal_share: float | None


def with_measured_bubble(
    figures: Sequence[Figure], job: Job, times: Sequence[PipelineTimes | None], surroundings: LaunchSurroundings
) -> list[Figure]:
    """The expected `figures`, and the share of time in which stages wait if each pass takes its measured time.

    Messages take none. Nothing more where a rank's passes were not measured, and without `simulated_step`. Judged
    where only the schedule makes a rank wait: see `_disturbed`. Without flush no stage shall wait, so that then the
    share by flop is not judged either elsewhere.

    Args:
        times: of every rank.
    """
    known = [each for each in times if each is not None]
    step = simulated_step(job.workload, known) if known and len(known) == len(times) else None
    if step is None:
        return list(figures)
    idle = step.idle
    lasting = [each.end - each.start for done in step.stages for each in done]
    disturbed = _disturbed(job, surroundings, pass_seconds=statistics.fmean(lasting))
    why = f"not judged: {disturbed}" if disturbed else REASON
    expected = [
        msgspec.structs.replace(figure, tolerance=None, why=why)
        if disturbed and not job.layout.flushes and figure.quantity is Quantity.BUBBLE_FRACTION
        else figure
        for figure in figures
    ]
    tolerance = BUBBLE_TOLERANCE / idle if idle and not disturbed else None
    return [*expected, Figure(Quantity.BUBBLE_FRACTION, idle, term=MEASURED_PASSES, tolerance=tolerance, why=why)]


def _disturbed(job: Job, surroundings: LaunchSurroundings, *, pass_seconds: float) -> str:
    """Other causes for which a rank waits, in words; empty where nothing counts.

    Between two passes a message and PyTorch's own work take 0.24 ms (gpt2-mini on two processes of an AMD EPYC, gloo,
    2026-11-26), which the simulation leaves out: in the shortest passes that are judged, 2.4 points. Without flush a
    stage has no more in flight than it needs, and waits for every message: 5 to 8 points in passes of 30 to 60 ms, 2 to
    3 in passes of 120 to 250 (four layers of 320 and 512 a stage, two processes of an Intel Xeon, gloo, 2026-11-26).
    """
    shortest = SHORTEST_PASS_SECONDS if job.layout.flushes else SHORTEST_WITHOUT_FLUSH
    if job.shares_devices:
        return "ranks share a GPU"
    if pass_seconds < shortest:
        return f"a pass takes {1e3 * pass_seconds:.2g} ms, in which messages count"
    if job.device == "cuda":
        return ""
    if job.layout.ranks > surroundings.cores:
        return "ranks share processors"
    others, steal = surroundings.others_share, surroundings.steal_share
    if others is None or steal is None:
        return "what else ran on the processors is not known"
    if others + steal > QUIET_SHARE:
        return f"others took {others + steal:.0%} of the processors"
    return ""
