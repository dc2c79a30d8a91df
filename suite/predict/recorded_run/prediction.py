"""Everything that arithmetic says of one run: parameters, flop, memory, traffic and time."""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.catalog import accumulation
from reference_runs.errors import InputError
from reference_runs.incomplete import NotPredicted, missing_keys
from reference_runs.layout import Layout, stages_word
from reference_runs.run import Architecture, Recipe, Workload
from reference_runs.stack import NO_KEEPING, Keeping
from suite.machine.half_precision import Kernels
from suite.predict.analytic.flop import hardware_flop, model_flop
from suite.predict.analytic.flop_conventions import flop_conventions, frozen_flop
from suite.predict.analytic.initial_loss import first_loss
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.offload import has_time
from suite.predict.analytic.parameters import parameter_counts
from suite.predict.analytic.pipeline_schedule import bubble_fraction
from suite.predict.analytic.process_groups import Traffic
from suite.predict.analytic.step_time import StepTime, step_time
from suite.predict.analytic.timed_stages import timed_stages
from suite.predict.analytic.traffic import step_traffic
from suite.predict.recorded_run.described_memory import RankMemory, described_by_stage


class RunPrediction(NamedTuple):
    """Arithmetic's answers about a run; a field that its record or its machine does not allow is empty or None.

    Args:
        parameters: by part.
        flop: of one step, under every named convention.
        memory: of one rank of every pipeline stage.
        traffic: of one rank of the stages that may be the slowest, by stage.
        step: of the slowest stage.
    """

    parameters: dict[str, int]
    model_flop: int | None
    hardware_flop: int | None
    flop: dict[str, float]
    first_loss: float | None
    memory: tuple[RankMemory, ...]
    traffic: dict[int, list[Traffic]]
    bubble_fraction: float | None
    step: StepTime | None


def prediction_without_layout(
    architecture: Architecture, recipe: Recipe, absent: NotPredicted | None = None
) -> RunPrediction:
    """Parameters, flop and first loss: what a run has whatever its layout. `absent` collects what the recipe lacks."""
    absent = absent or NotPredicted()
    needed, flop, loss = None, {}, None
    with absent.unless("flop of a step"):
        needed = model_flop(architecture, samples=recipe.global_batch)
        needed -= frozen_flop(architecture, recipe, samples=recipe.global_batch)
        flop = flop_conventions(architecture, samples=recipe.global_batch)
    # the formula for the first loss holds for norms in front of what they feed, and for one feed-forward part a layer
    other_attention = architecture.key_value_rank is not None or architecture.linear_heads is not None
    plain = architecture.experts is None and not other_attention
    if plain and architecture.norm.before:
        with absent.unless("first loss"):
            loss = first_loss(architecture, recipe)
    return RunPrediction(parameter_counts(architecture), needed, None, flop, loss, (), {}, None, None)


def run_prediction(
    workload: Workload, machine: Machine | None, absent: NotPredicted | None = None, *, keeping: Keeping | None = None
) -> RunPrediction:
    """The prediction of a run; without a machine no time. `absent` collects what the recipe lacks.

    What is kept in memory is as `keeping` says, else as the machine's stack does it.

    State of which more than the optimizer's part is offloaded has no time either: its transfers are not described.
    Memory is that of as many micro-batches as the stages need where the recipe lacks the batch: more of them hold no
    more activations.

    Raises:
        InputError: stages have different numbers of replicas.
    """
    architecture, recipe, layout = workload
    if layout.stage_replicas is not None:
        got = stages_word("replicas", layout.stage_replicas)
        what = "stages with different numbers of replicas are predicted where they are executed"
        raise InputError(what, got=got, allowed="reproduce NAME --layout, or dpN", where="--layout")
    absent = absent or NotPredicted()
    prediction = prediction_without_layout(architecture, recipe, absent)
    with absent.unless("flop of a step"):
        executed = hardware_flop(architecture, layout, samples=recipe.global_batch)
        executed -= frozen_flop(architecture, recipe, samples=recipe.global_batch)
        prediction = prediction._replace(hardware_flop=executed)
    with absent.unless("memory"):
        usual = machine.stack.keeping if machine else NO_KEEPING
        memory = described_by_stage(
            workload,
            usual if keeping is None else keeping,
            machine.kernels if machine else Kernels(cuda=True),
            micro_batches=micro_batches_held(recipe, layout),
            device_bytes=machine.memory_bytes if machine else None,
        )
        prediction = prediction._replace(memory=memory)
    with absent.unless("pipeline bubble"):
        bubble = bubble_fraction(layout, micro_batches=accumulation(recipe, layout))
        prediction = prediction._replace(bubble_fraction=bubble)
    with absent.unless("traffic, step time"):
        prediction = _with_step(prediction, workload, machine)
    return prediction  # noqa: RET504  # the context may end before the assignment


def _with_step(prediction: RunPrediction, workload: Workload, machine: Machine | None) -> RunPrediction:
    recipe, layout = workload.recipe, workload.layout
    micro_batches = accumulation(recipe, layout)
    traffic = {
        stage: step_traffic(workload, stage=stage, micro_batches=micro_batches)
        for stage in timed_stages(workload.architecture, layout)
    }
    step = None
    if machine is not None and has_time(layout, machine):
        step = step_time(workload, machine, micro_batches=micro_batches, traffic=list(traffic.values()))
    return prediction._replace(traffic=traffic, step=step)


def micro_batches_held(recipe: Recipe, layout: Layout) -> int:
    """Micro-batches of a step, by which memory goes: those that fill the pipeline where the recipe lacks the batch."""
    if layout.accumulation is None and "global_batch" in missing_keys(recipe):
        return layout.pipeline_stages * layout.virtual_stages
    return accumulation(recipe, layout)
