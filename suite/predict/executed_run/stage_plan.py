"""How layers should be dealt to pipeline stages, by what passes were measured to take."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from reference_runs.placement import chunk_layers
from reference_runs.run import Workload
from suite.job.pipeline_passes import PipelineTimes
from suite.predict.analytic.flop import head_forward_flop, layer_forward_flop
from suite.predict.analytic.pipeline_partition import balanced_partition
from suite.predict.analytic.stage_layers import chunk_layer_kinds
from suite.predict.executed_run.pipeline_bubble import measured_durations


class StagePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Layers of each stage and seconds of a micro-batch through it, all its passes: executed, and as planned."""

    layers: list[int]
    seconds: list[float]
    planned_layers: list[int]
    planned_seconds: list[float]


def stage_plan(workload: Workload, times: Sequence[PipelineTimes | None]) -> StagePlan | None:
    """The contiguous split of the layers over as many stages whose slowest stage is fastest (`balanced_partition`).

    A layer takes an equal share of its stage's measured seconds; of the last stage, after the head has taken what its
    flop are of the stage's. The embedding counts as the first layer's, the head as the last one's.

    Args:
        times: of every rank.

    Returns None without stages of one chunk each that all were measured and have layers.
    """
    layout, architecture = workload.layout, workload.architecture
    known = [each for each in times if each is not None]
    dealt = chunk_layers(architecture.layers, layout)
    stages = layout.pipeline_stages
    if stages == 1 or layout.virtual_stages > 1 or not known or len(known) < len(times) or not all(map(len, dealt)):
        return None
    seconds: defaultdict[int, float] = defaultdict(float)
    for (_, chunk), taken in measured_durations(known).seconds.items():
        seconds[chunk] += taken
    measured = [seconds[stage] for stage in range(stages)]
    head = head_forward_flop(architecture, samples=1)
    of_layers = sum(
        number * sum(layer_forward_flop(kind, samples=1).values())
        for kind, number in chunk_layer_kinds(architecture, dealt[-1])
    )
    head_seconds = measured[-1] * head / (head + of_layers)
    costs: list[float] = []
    for stage, layers in enumerate(dealt):
        whole = measured[stage] - (head_seconds if stage == stages - 1 else 0.0)
        costs += [whole / len(layers)] * len(layers)
    costs[-1] += head_seconds
    planned = balanced_partition(costs, stages=stages)
    ends = [sum(planned[: stage + 1]) for stage in range(stages)]
    parts = [costs[end - number : end] for end, number in zip(ends, planned, strict=True)]
    return StagePlan(
        layers=[len(layers) for layers in dealt],
        seconds=measured,
        planned_layers=list(planned),
        planned_seconds=[math.fsum(part) for part in parts],
    )
