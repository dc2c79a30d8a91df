"""Seconds of one training step, as a sum of terms: what computes, what communicates, and what waits.

Matrix products at a share of the peak, memory-bound operators at a share of the bandwidth, a fixed time for each
kernel, a host that may be slower than the accelerator, collectives, the pipeline's fill, and what a software stack
overlaps or waits for. With the neutral values of `Machine` and its stack `PLAIN` it is the textbooks' model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

from reference_runs.errors import InputError
from reference_runs.layout import Offload
from reference_runs.run import Recipe, Workload
from reference_runs.stack import Accumulation, Stack
from suite.predict.analytic.collective_time import LEAST_SECONDS, Group, axis_groups, collective_seconds, taken_share
from suite.predict.analytic.elementwise import chosen, larger
from suite.predict.analytic.exposed_messages import (
    exposed_data_parallel_seconds,
    shard_copies_bytes,
    tensor_parallel_exposure,
)
from suite.predict.analytic.layer_time import FUSED_BACKWARD, LayerTime, head_seconds, layer_time
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.measured_parts import (
    NOTHING,
    PartSeconds,
    PassSeconds,
    StageParts,
    modelled_parts,
    stage_parts,
)
from suite.predict.analytic.memory import BYTES_PER_PARAMETER, WEIGHT_ELEMENT_BYTES
from suite.predict.analytic.memory_bound_operators import BACKWARD
from suite.predict.analytic.narrow_traffic import gathers_share, reductions_share, weight_casts_share
from suite.predict.analytic.offload import has_time, update_seconds, updated_parameters
from suite.predict.analytic.parameters import trained_parameters
from suite.predict.analytic.pipeline_schedule import NO_FLUSH, waits_of_a_pass
from suite.predict.analytic.process_groups import key_value_copies
from suite.predict.analytic.product_formats import weight_casts
from suite.predict.analytic.ring_attention import exposed_ring_seconds
from suite.predict.analytic.stage_computation import StageComputation, micro_batch_seconds, stage_computation
from suite.predict.analytic.stage_layers import layer_kinds, stage_layer_kinds
from suite.predict.analytic.timed_stages import all_stages_seconds, timed_stages

RankTraffic = Sequence[tuple[str, str, int, int]]  # of analytic/traffic.py: axis, operation, bytes, messages


class StepTime(NamedTuple):
    """Seconds of one step by what they are spent on, of the stage that takes longest; they add up to the step.

    Args:
        forward_seconds: matrix products of the forward passes.
        backward_seconds: matrix products of the backward passes, without recomputation.
        recomputation_seconds: matrix products that the backward passes repeat.
        operator_seconds: memory-bound operators, recomputed ones included.
        tensor_parallel_seconds: the exposed part.
        context_parallel_seconds: the exposed part.
        pipeline_seconds: sending activations and their gradients to the neighbouring stages, none of it hidden.
        bubble_seconds: waiting for other stages.
        data_parallel_seconds: the exposed part.
        tied_embedding_seconds: adding up the gradients of an embedding that first and last stage store.
        optimizer_seconds: clipping and update.
        launch_seconds: kernels' own time beyond bytes and flop, and waiting for the host that launches them.
        accumulation_seconds: adding each micro-batch's gradients to their sum, where kernels of their own do it.
        overhead_seconds: of each step, what no other term describes.
        expert_parallel_seconds: tokens to their experts and back, the exposed part.
        cast_seconds: casting factors into the format of the products, where they have one of their own.
        layer_seconds: layers whose time is given, in both passes, without messages; the terms of products, operators
            and casts are then 0, and `launch_seconds` is what the host hides of messages or adds to them.
        embedding_seconds: the same of the embedding.
        head_seconds: the same of head and loss.
    """

    forward_seconds: float
    backward_seconds: float
    recomputation_seconds: float
    operator_seconds: float
    tensor_parallel_seconds: float
    context_parallel_seconds: float
    pipeline_seconds: float
    bubble_seconds: float
    data_parallel_seconds: float
    tied_embedding_seconds: float
    optimizer_seconds: float
    launch_seconds: float = 0.0
    accumulation_seconds: float = 0.0
    overhead_seconds: float = 0.0
    expert_parallel_seconds: float = 0.0
    cast_seconds: float = 0.0
    layer_seconds: float = 0.0
    embedding_seconds: float = 0.0
    head_seconds: float = 0.0

    @property
    def total_seconds(self) -> float:
        """Seconds of the step."""
        return sum(self)


def step_time(
    workload: Workload,
    machine: Machine,
    *,
    micro_batches: int,
    traffic: Sequence[RankTraffic],
    parts: PartSeconds | None = None,
    links: Mapping[str, Group] | None = None,
) -> StepTime:
    """Seconds of one step, by term, of the pipeline stage that takes longest.

    Of a stage with l layers, m micro-batches, p stages, v virtual stages a rank:
        accelerator    products, operators, casts, n k_a for its n kernels, tensor- and context-parallel traffic
        host           n k_h to launch them
        micro-batch    the larger of both, smoothed: (accelerator^8 + host^8)^(1/8); their sum where the stack makes
                       the host wait at every layer; then accumulating gradients
        busy           m micro-batches, and the pipeline-parallel traffic that the stack waits for
        bubble         a micro-batch of every other stage, over v and `waits_of_a_pass`; 0 without flush
        after          exposed data-parallel traffic, the tied embedding's gradient, the optimizer step, casts of the
                       weights, the overhead

    Equal stages wait for `suite.predict.analytic.pipeline_schedule.bubble_fraction` of busy and bubble.
    Source: Narayanan et al. 2021, arXiv 2104.04473, sections 2.2 and 3.

    Args:
        traffic: of one rank of each of `timed_stages`, what `step_traffic` (traffic.py) returns.
        parts: seconds of layers, embedding, head and update (measured_parts.py) that take the place of the machine's;
            of one layout, not of arrays. The step is then the same sum.
        links: in place of what `axis_groups` says of the layout's order of ranks.

    Raises:
        InputError: the layout keeps weights in the host's memory, whose transfers have no time here; or an optimizer's
            state, and the machine records no link to the host.
    """
    given = stage_steps(workload, machine, micro_batches=micro_batches, traffic=traffic, parts=parts, links=links)
    return reduce(_slower, [stage.time for stage in given])


class StageStep(NamedTuple):
    """A pipeline stage's step, and what it is made of.

    Args:
        pass_seconds: of one micro-batch, computed with its messages inside layers.
        send_seconds: of one micro-batch's messages to the neighbouring stages, none of it hidden.
        computation: of one micro-batch.
        given: seconds of one micro-batch by part, where parts have given seconds.
        message_seconds: of a step, by axis ("tp": what nothing hides), and "reduction" and "gather" of data
            parallelism: before computation hides any.
    """

    time: StepTime
    pass_seconds: float
    send_seconds: float
    computation: StageComputation
    given: StageParts
    message_seconds: Mapping[str, float]


def stage_steps(
    workload: Workload,
    machine: Machine,
    *,
    micro_batches: int,
    traffic: Sequence[RankTraffic],
    parts: PartSeconds | None = None,
    links: Mapping[str, Group] | None = None,
    others: Mapping[int, RankTraffic] | None = None,
) -> list[StageStep]:
    """The step of each of `timed_stages`, as `step_time` has it, then of each of the `others`, by its traffic.

    Raises:
        InputError: as `step_time`.
    """
    architecture, recipe, layout = workload
    if not has_time(layout, machine):
        raise InputError("layout.offload: no time is predicted", got=layout.offload.value, allowed=Offload.NONE.value)
    step = _StepOfStages(
        workload,
        machine,
        micro_batches,
        [layer_time(Workload(kind, recipe, layout), machine) for kind, _ in layer_kinds(architecture)],
        head_seconds(workload, machine),
        links
        or axis_groups(
            layout,
            machine,
            head_copies=key_value_copies(architecture, tensor_parallel=layout.tensor_parallel),
            mixture=architecture,
        ),
        None if parts is None else (parts, modelled_parts(workload, machine)),
    )
    timed = timed_stages(architecture, layout)
    stages = [_stage_step(step, stage, entries) for stage, entries in zip(timed, traffic, strict=True)]
    passes, sends = [stage.pass_seconds for stage in stages], [stage.send_seconds for stage in stages]
    stages += [_stage_step(step, stage, entries) for stage, entries in (others or {}).items()]
    if layout.schedule in NO_FLUSH:
        return stages
    every = all_stages_seconds(architecture, layout, passes, sends)
    divided = layout.virtual_stages * waits_of_a_pass(layout)

    def bubble(stage: StageStep) -> float:
        return larger(every - (stage.pass_seconds + stage.send_seconds), 0.0) / divided

    return [stage._replace(time=stage.time._replace(bubble_seconds=bubble(stage))) for stage in stages]


class _StepOfStages(NamedTuple):
    """Times that the stages of a step share; `kinds` of each of `layer_kinds`, `head` of both passes.

    Args:
        parts: given seconds, and what the machine says of the same.
    """

    workload: Workload
    machine: Machine
    micro_batches: int
    kinds: Sequence[LayerTime]
    head: tuple[float, float]
    groups: Mapping[str, Group]
    parts: tuple[PartSeconds, PartSeconds] | None


def _stage_step(step: _StepOfStages, stage: int, entries: RankTraffic) -> StageStep:
    """A stage's step without its bubble."""
    workload, machine, micro_batches = step.workload, step.machine, step.micro_batches
    layout, stack, bandwidth = workload.layout, machine.stack, machine.achievable_memory_bytes_per_second
    rank = trained_parameters(workload, stage=stage)
    computation = stage_computation(workload, machine, stage=stage, kinds=step.kinds, head=step.head)
    messages = _messages_seconds(step, stage, entries)
    seconds = _exposed_inside(step, stage, computation, messages)
    inside = seconds["tp"] + seconds["cp"] + seconds["ep"]
    overlapped: Any = stack.overlaps_pipeline & (layout.virtual_stages > 1)
    sent = chosen(overlapped, 0.0 * seconds["pp"], seconds["pp"])
    micro_batch = micro_batch_seconds(
        workload, machine, stage=stage, computation=computation, message_seconds=inside / micro_batches
    )
    weight_passes = weight_casts(layout, micro_batches=micro_batches) * weight_casts_share(workload, stack)
    given, beyond = _given_parts(step, stage)
    updated = updated_parameters(rank, layout)
    taken = seconds["taken"] / larger(seconds["reduction"] + seconds["gather"], LEAST_SECONDS)
    one, slowdown = micro_batch.seconds + beyond.total, micro_batch.slowdown
    added = _accumulation_bytes(workload.recipe, stack, micro_batches) * rank.all / bandwidth
    copied = micro_batches * shard_copies_bytes(workload, stack, parameters=rank.all) / bandwidth
    time = StepTime(
        forward_seconds=micro_batches * computation.forward,
        backward_seconds=micro_batches * computation.backward,
        recomputation_seconds=micro_batches * computation.again,
        operator_seconds=micro_batches
        * (computation.operators + computation.operators_backward + computation.operators_again),
        tensor_parallel_seconds=seconds["tp"],
        context_parallel_seconds=seconds["cp"],
        pipeline_seconds=sent,
        bubble_seconds=0.0 * (one + added),
        data_parallel_seconds=exposed_data_parallel_seconds(
            layout,
            reduction_seconds=seconds["reduction"],
            gather_seconds=seconds["gather"],
            backward_seconds=larger(slowdown * computation.backward_pass + beyond.backward, 0.0),
            computation_seconds=larger(slowdown * computation.both_passes + beyond.total, 0.0),
            micro_batches=micro_batches,
            overlap_share=machine.overlap_share if stack.overlaps_data_parallel else 0.0,
            overlap_cost=machine.overlap_cost * taken,
            gathers_overlap=stack.overlaps_gathers,
        )
        + copied,
        tied_embedding_seconds=seconds["embedding"],
        optimizer_seconds=update_seconds(
            workload, machine, stage=stage, rank=rank, updated=updated, micro_batches=micro_batches
        ),
        launch_seconds=micro_batches * micro_batch.launch_seconds,
        accumulation_seconds=micro_batches * added,
        overhead_seconds=machine.step_overhead_seconds + 0.0 * added,
        expert_parallel_seconds=seconds["ep"],
        cast_seconds=micro_batches * (computation.casts + computation.gradient_casts + computation.casts_again)
        + weight_passes * computation.weight_casts,
    )
    if step.parts is not None:
        time = _with_parts(time, given, micro_batches)._replace(
            launch_seconds=micro_batches * (one - given.both.total) - inside,
            cast_seconds=weight_passes * computation.weight_casts,
            optimizer_seconds=step.parts[0].update * updated,
        )
    return StageStep(time, one + added, sent / micro_batches, computation, given, messages)


def _with_parts(time: StepTime, given: StageParts, micro_batches: int) -> StepTime:
    """The time with layers, embedding and head as they were measured in place of the terms that compute them."""
    return time._replace(
        **dict.fromkeys(_COMPUTED, 0.0),
        layer_seconds=micro_batches * given.layers.total,
        embedding_seconds=micro_batches * given.embedding.total,
        head_seconds=micro_batches * given.head.total,
    )


_COMPUTED = ("forward_seconds", "backward_seconds", "recomputation_seconds", "operator_seconds")


def _given_parts(step: _StepOfStages, stage: int) -> tuple[StageParts, PassSeconds]:
    """One micro-batch's given parts of a stage, and by how much they are beyond the machine's; nothing without any."""
    if step.parts is None:
        return StageParts(NOTHING, NOTHING, NOTHING), NOTHING
    given, modelled = (stage_parts(step.workload, parts, stage=stage) for parts in step.parts)
    left, right = given.both, modelled.both
    return given, PassSeconds(left.forward - right.forward, left.backward - right.backward)


def _messages_seconds(step: _StepOfStages, stage: int, entries: RankTraffic) -> dict[str, float]:
    """Seconds of a rank's messages in a step by axis; those of data parallelism apart as reduction and gather.

    Gradients and new weights have the bytes of the traffic, or fewer as `narrow_traffic.py` has it. Of tensor
    parallelism what nothing hides. "taken": those of data parallelism, each message's times `taken_share`.
    """
    workload, stack = step.workload, step.machine.stack
    exposed = tensor_parallel_exposure(workload, step.machine, stage=stage, micro_batches=step.micro_batches)
    seconds = dict.fromkeys(("tp", "cp", "ep", "pp", "embedding", "reduction", "gather", "taken"), 0.0)
    for axis, operation, payload, messages in entries:
        spent = collective_seconds(operation, step.groups[axis], payload_bytes=payload, messages=messages)
        key = "tp" if axis == "kv" else axis
        if key == "tp":
            spent = exposed(operation, spent)
        spent = spent * (workload.recipe.imbalance if key == "ep" else 1.0)
        if axis in ("dp", "edp", "shard", "replicate"):
            key = "gather" if operation == "all_gather" else "reduction"
            narrowed = gathers_share if key == "gather" else reductions_share
            spent = spent * narrowed(workload, stack, stage=stage, axis=axis)
            seconds["taken"] = seconds["taken"] + spent * taken_share(step.machine, step.groups[axis])
        seconds[key] = seconds[key] + spent
    return seconds


def _exposed_inside(
    step: _StepOfStages, stage: int, computation: StageComputation, seconds: dict[str, float]
) -> dict[str, float]:
    """The seconds of all messages, of those inside layers what computation does not hide."""
    workload, machine, micro_batches = step.workload, step.machine, step.micro_batches
    layers = stage_layer_kinds(workload.architecture, workload.layout, stage=stage)
    context_parallel = exposed_ring_seconds(
        workload,
        machine.stack,
        seconds["cp"],
        kinds=[(kind.attention_seconds, number) for kind, (_, number) in zip(step.kinds, layers, strict=True)],
        backward_share=FUSED_BACKWARD if workload.layout.fused_attention else BACKWARD,
        micro_batches=micro_batches,
    )
    hides = machine.overlap_share if machine.stack.overlaps_experts else 0.0
    return seconds | {
        "cp": context_parallel,
        "ep": larger(seconds["ep"] - hides * micro_batches * computation.both_passes, 0.0),
    }


def _accumulation_bytes(recipe: Recipe, stack: Stack, micro_batches: int) -> float:
    """Bytes that adding one micro-batch's gradient of one parameter to the sum moves: w + 2 g.

    Reading the gradient as the backward pass leaves it, reading and writing the sum; 0 where the product that computes
    it adds it, and where there is one micro-batch whose gradient is the sum.
    """
    if stack.accumulation is Accumulation.IN_PRODUCT:
        return 0.0
    moved = WEIGHT_ELEMENT_BYTES[recipe.precision] + 2 * BYTES_PER_PARAMETER[recipe.precision].gradients
    if stack.accumulation is Accumulation.SEPARATE_ALWAYS:
        return moved
    return chosen(micro_batches > 1, 1.0 * moved, 0.0)


def _slower(a: StepTime, b: StepTime) -> StepTime:
    """The one of two stages that takes longer; the first where both take as long."""
    longer: Any = b.total_seconds > a.total_seconds
    if isinstance(longer, bool):
        return b if longer else a
    return StepTime(*(chosen(longer, of_b, of_a) for of_a, of_b in zip(a, b, strict=True)))
