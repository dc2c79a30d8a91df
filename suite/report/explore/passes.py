"""The first passes of a pipeline, for the page to draw: each as long as its flop."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.layout import Layout
from reference_runs.run import Workload
from suite.predict.analytic.pipeline_schedule import NO_FLUSH, least_micro_batches
from suite.predict.simulation.pipeline_order import TimedPass
from suite.predict.simulation.pipeline_schedule import Durations, flop_durations, timed_passes
from suite.predict.simulation.supported_layouts import describes_ranks
from suite.report.explore.view import View

MOST_ROUNDS = 2  # of a pipeline's stages, in micro-batches that are drawn
MOST_PASSES = 2000  # from which on one round is drawn
MOST_DRAWN_STAGES = 64
PARTS = 100_000  # of the time that is drawn, in which a pass's begin and length are counted


class DrawnPasses(NamedTuple):
    """Passes of every stage, as columns.

    Args:
        micro_batches: that are drawn, of `of` that a step has.
        stages, kinds, chunks, numbers: of each pass: stage, letter of `PassKind`, chunk on that stage, micro-batch.
        starts, lengths: in parts of `PARTS`.
    """

    micro_batches: int
    of: int
    lanes: int
    stages: list[int]
    kinds: str
    chunks: list[int]
    numbers: list[int]
    starts: list[int]
    lengths: list[int]


def drawn_passes(view: View) -> DrawnPasses | None:
    """The passes of a pipeline's first micro-batches; None without pipeline, or where the schedule is not described."""
    predicted = view.predicted
    if predicted is None or predicted.run is None or predicted.layout is None:
        return None
    layout, run = predicted.layout, predicted.run
    workload = Workload(run.architecture, run.recipe, layout)
    if (
        not 1 < layout.pipeline_stages <= MOST_DRAWN_STAGES
        or layout.schedule in NO_FLUSH
        or not describes_ranks(workload)
    ):
        return None
    whole = accumulation(run.recipe, layout)
    passes_a_round = 2 * layout.pipeline_stages**2 * layout.virtual_stages
    rounds = MOST_ROUNDS if passes_a_round * MOST_ROUNDS <= MOST_PASSES else 1
    shown = max(rounds * layout.pipeline_stages, least_micro_batches(layout))
    micro_batches = min(whole, shown)
    durations = flop_durations(workload)
    known = (tuple(durations.forward), tuple(durations.backward), tuple(durations.weight))
    return _drawn(msgspec.structs.replace(layout, **_ALIKE), known, micro_batches)._replace(of=whole)


_ALIKE: dict[str, Any] = {  # what the order of passes, and their flop for a sample, do not depend on
    "data_parallel": 1,
    "tensor_parallel": 1,
    "context_parallel": 1,
    "expert_parallel": 1,
    "micro_batch": 1,
    "zero_stage": 0,
    "reduce_scatter": False,
    "sequence_parallel": False,
    "fused_attention": False,
    "reshard_after_forward": True,
    "shard_ranks": None,
    "accumulation": None,
}


@lru_cache(128)
def _drawn(
    layout: Layout, durations: tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]], micro_batches: int
) -> DrawnPasses:
    lasting = Durations(*(list(each) for each in durations))
    timed = timed_passes(layout, lasting, micro_batches=micro_batches)
    every: list[tuple[int, TimedPass]] = [(stage, each) for stage, lane in enumerate(timed) for each in lane]
    part = PARTS / max(each.end for _, each in every)
    return DrawnPasses(
        micro_batches,
        micro_batches,
        len(timed),
        [stage for stage, _ in every],
        "".join(each.done.kind.value for _, each in every),
        [each.done.chunk // len(timed) for _, each in every],
        [each.done.micro_batch for _, each in every],
        [round(part * each.start) for _, each in every],
        [round(part * each.end) - round(part * each.start) for _, each in every],
    )
