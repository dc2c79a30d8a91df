"""Everything that arithmetic says of one run: parameters, flop, memory, traffic and time."""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.catalog import accumulation
from reference_runs.layout import Offload
from reference_runs.run import Architecture, Norm, Recipe, Workload
from suite.predict.analytic.caching_allocator import reserved_peak_bytes
from suite.predict.analytic.flop import flop_conventions, hardware_flop, model_flop
from suite.predict.analytic.initial_loss import first_loss
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.parameters import parameter_counts
from suite.predict.analytic.pipeline_schedule import bubble_fraction
from suite.predict.analytic.process_groups import Traffic
from suite.predict.analytic.stage_memory import StageMemory, memory_by_stage
from suite.predict.analytic.step_time import StepTime, step_time, timed_stages
from suite.predict.analytic.traffic import step_traffic


class RunPrediction(NamedTuple):
    """What arithmetic says of a run; what its record or its machine does not allow is empty or None.

    Args:
        parameters: by part.
        flop: of one step, under every named convention.
        memory: of one rank of every pipeline stage.
        reserved_bytes: by the allocator, on a rank of the fullest stage.
        traffic: of one rank of the stages that may be the slowest, by stage.
        step: of the slowest stage.
    """

    parameters: dict[str, int]
    model_flop: int
    hardware_flop: int | None
    flop: dict[str, float]
    first_loss: float | None
    memory: tuple[StageMemory, ...]
    reserved_bytes: float | None
    traffic: dict[int, list[Traffic]]
    bubble_fraction: float | None
    step: StepTime | None


def prediction_without_layout(architecture: Architecture, recipe: Recipe) -> RunPrediction:
    """Parameters, flop and first loss: what a run has whatever its layout."""
    samples = recipe.global_batch
    # the formula for the first loss holds for norms in front of what they feed
    loss = None if architecture.norm is Norm.DEEP_NORM else first_loss(architecture, recipe)
    counts, flop = parameter_counts(architecture), flop_conventions(architecture, samples=samples)
    needed = model_flop(architecture, samples=samples)
    return RunPrediction(counts, needed, None, flop, loss, (), None, {}, None, None)


def run_prediction(workload: Workload, machine: Machine | None) -> RunPrediction:
    """The prediction of a run; without a machine no time.

    Offloaded state has no time either: its transfers are not described.
    """
    architecture, recipe, layout = workload
    micro_batches = accumulation(recipe, layout)
    memory = tuple(memory_by_stage(workload, micro_batches=micro_batches))
    # as for `peak_bytes`: no stage between the second and the last holds more than the second
    fullest = max(timed_stages(layout), key=lambda stage: memory[stage].peak)
    traffic = {
        stage: step_traffic(workload, stage=stage, micro_batches=micro_batches) for stage in timed_stages(layout)
    }
    step = None
    if machine is not None and layout.offload is Offload.NONE:
        step = step_time(workload, machine, micro_batches=micro_batches, traffic=list(traffic.values()))
    return prediction_without_layout(architecture, recipe)._replace(
        hardware_flop=hardware_flop(architecture, layout, samples=recipe.global_batch),
        memory=memory,
        reserved_bytes=reserved_peak_bytes(workload, memory[fullest], stage=fullest, micro_batches=micro_batches),
        traffic=traffic,
        bubble_fraction=bubble_fraction(layout, micro_batches=micro_batches),
        step=step,
    )
