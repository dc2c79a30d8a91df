"""The contents of a schedule's picture: passes by stage or rank, predicted above and measured below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reference_runs.catalog import accumulation
from reference_runs.layout import Layout
from reference_runs.placement import coordinates
from reference_runs.run import Workload
from suite.job.pipeline_passes import MOST_PASSES, Pass, PassKind, PipelineTimes
from suite.metrics.figures import Figure, Quantity
from suite.predict.executed_run.pipeline_bubble import SimulatedStep, idle_share, recorded_micro_batches, simulated_step
from suite.predict.simulation.pipeline_order import TimedPass
from suite.predict.simulation.pipeline_schedule import flop_durations, idle_fraction, timed_passes
from suite.predict.simulation.supported_layouts import describes_ranks

NAMES = {
    PassKind.FORWARD: "forward",
    PassKind.BACKWARD: "backward",
    PassKind.INPUT: "gradients of inputs",
    PassKind.WEIGHT: "gradients of weights",
}
OF_FLOP = "predicted, passes as long as their flop"
MILLISECONDS = "ms since the step's first pass"
MOST_LANES = 16  # of measured ranks; of more, one of each stage is shown
MOST_DRAWN = 4000  # passes of all lanes: the first ones


class Lane(NamedTuple):
    """The passes of one stage or rank, one after the other."""

    name: str
    passes: list[TimedPass]


class Panel(NamedTuple):
    """Lanes over one axis of time.

    Args:
        side: predicted or measured.
        title: in words, with the share of time in which a stage waits.
        stages: of the pipeline; chunk k is chunk k // stages of its rank, from 0.
        axis: words on the time.
        has_unit: whether the time's numbers say something.
    """

    side: str
    title: str
    stages: int
    lanes: list[Lane]
    axis: str
    has_unit: bool

    @property
    def end(self) -> float:
        """When the last pass that is shown ends."""
        return max(each.end for lane in self.lanes for each in lane.passes)

    @property
    def numbers(self) -> int:
        """Passes of all lanes."""
        return sum(len(lane.passes) for lane in self.lanes)


def predicted_panel(workload: Workload, name: str, *, micro_batches: int | None = None) -> Panel:
    """The panel of a prediction: every stage, each pass as long as its flop.

    Args:
        name: that the title begins with.
        micro_batches: of the step; None: of a whole batch.
    """
    layout, durations = workload.layout, flop_durations(workload)
    micro_batches = micro_batches or accumulation(workload.recipe, layout)
    idle = idle_fraction(layout, durations, micro_batches=micro_batches)
    stages = timed_passes(layout, durations, micro_batches=micro_batches)
    places = [coordinates(layout, rank) for rank in range(len(stages))] if layout.stage_replicas else []
    names = [f"rank {rank}, stage {place['pp']}" for rank, place in enumerate(places)]
    lanes = [Lane(name, done) for name, done in zip(names or _stage_names(layout), stages, strict=True)]
    title = f"{name}: a stage waits {idle:.1%} of the time"
    axis = f"{micro_batches} micro-batches; a pass is as long as its flop, messages take no time"
    return Panel("predicted", title, layout.pipeline_stages, _drawn(lanes), axis, has_unit=False)


def _stage_names(layout: Layout) -> list[str]:
    return [f"stage {stage}" for stage in range(layout.pipeline_stages)]


def launch_panels(
    workload: Workload, times: Sequence[PipelineTimes | None], figures: Sequence[Figure] = ()
) -> list[Panel]:
    """Panels of a launch: the prediction, and below it the step of the median pipeline time, in milliseconds.

    The prediction's passes are as long as their flop, and together as long as the measured ones. It is alone, in
    shares of its time, where passes were not measured, and left out where the schedule cannot be simulated. Nothing
    without pipeline.

    Args:
        times: of every rank.
        figures: that were measured.
    """
    layout = workload.layout
    if layout.pipeline_stages == 1:
        return []
    known = [each for each in times if each is not None]
    if not known or len(known) < len(times):
        panel = predicted_panel(workload, OF_FLOP) if describes_ranks(workload) else None
        return [_scaled(panel, 100 / panel.end, "% of the pipeline's time")] if panel else []
    simulated = simulated_step(workload, known)
    measured = _measured_panel(workload, known, figures, simulated)
    return [_in_milliseconds(workload, known, simulated), measured] if simulated else [measured]


def _scaled(panel: Panel, factor: float, axis: str) -> Panel:
    lanes = [
        Lane(lane.name, [TimedPass(each, factor * start, factor * end) for each, start, end in lane.passes])
        for lane in panel.lanes
    ]
    return panel._replace(lanes=lanes, axis=axis, has_unit=True)


def _in_milliseconds(workload: Workload, times: Sequence[PipelineTimes], simulated: SimulatedStep) -> Panel:
    """The prediction whose passes take together as long as the measured ones, which are `simulated`."""
    by_flop, measured = flop_durations(workload), [each for done in simulated.stages for each in done]
    milliseconds = 1e3 * sum(each.end - each.start for each in measured)
    name = f"{OF_FLOP}, together as long as the measured ones"
    panel = predicted_panel(workload, name, micro_batches=recorded_micro_batches(workload, times))
    return _scaled(panel, milliseconds / sum(by_flop.of(each.done) for each in measured), MILLISECONDS)


def _measured_panel(
    workload: Workload, times: Sequence[PipelineTimes], figures: Sequence[Figure], simulated: SimulatedStep | None
) -> Panel:
    layout = workload.layout
    places = [coordinates(layout, rank) for rank in range(layout.ranks)]
    shown = sorted(range(layout.ranks), key=lambda rank: (places[rank]["pp"], rank))
    if layout.ranks > MOST_LANES:
        shown = [rank for rank in shown if not any(place for axis, place in places[rank].items() if axis != "pp")]
    lanes = []
    for rank in shown:
        stage = "" if layout.ranks == layout.pipeline_stages else f", stage {places[rank]['pp']}"
        passes = [
            TimedPass(Pass(each.kind, each.chunk, each.micro_batch), each.start_us / 1e3, each.end_us / 1e3)
            for each in times[rank].passes
        ]
        lanes.append(Lane(f"rank {rank}{stage}", passes))
    words = [f"measured, step {times[0].step}"]
    if layout.flushes and all(len(lane.passes) < MOST_PASSES for lane in lanes):
        words[0] += f": a stage waits {idle_share([lane.passes for lane in lanes]):.1%} of the time"
    waits = {figure.term: figure.value for figure in figures if figure.quantity is Quantity.BUBBLE_FRACTION}
    if None in waits:
        what = "median" if layout.flushes else "a stage waits, median"
        words.append(f"{what} of the timed steps, {waits[None]:.1%}")
    if simulated:
        words.append(f"the schedule with the median passes, {simulated.idle:.1%}")
    return Panel("measured", "; ".join(words), layout.pipeline_stages, _drawn(lanes), MILLISECONDS, has_unit=True)


def _drawn(lanes: list[Lane]) -> list[Lane]:
    return [lane._replace(passes=lane.passes[: MOST_DRAWN // len(lanes)]) for lane in lanes]
