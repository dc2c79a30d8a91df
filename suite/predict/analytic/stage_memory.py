"""Memory of one rank of a pipeline stage: its parts, and the three instants of a step at which it may be fullest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from reference_runs.layout import Layout, Offload, Schedule
from reference_runs.placement import head_stage
from reference_runs.run import Precision, Recipe, Workload
from reference_runs.stack import NO_KEEPING, Keeping
from suite.predict.analytic.activations import MicroBatchBytes, kept_units, micro_batch_bytes, working_bytes
from suite.predict.analytic.elementwise import chosen, larger, smaller
from suite.predict.analytic.memory import (
    BYTES_PER_PARAMETER,
    FP32,
    WEIGHT_ELEMENT_BYTES,
    StateBytes,
    adds_in_16_bit,
    expert_shards,
    group_parameters,
    kept_moment_bytes,
    shard_is_master,
    state_bytes,
    state_of_modules,
    state_ranks,
    stored_elements,
    unscattered_gradient_bytes,
)
from suite.predict.analytic.micro_batch import hidden_elements
from suite.predict.analytic.parameters import frozen_parameters, layer_tensors, total_elements, trained_parameters
from suite.predict.analytic.pipeline_schedule import NO_FLUSH, micro_batches_in_flight, weight_versions
from suite.predict.analytic.product_formats import layer_weight_copies_bytes
from suite.predict.analytic.stage_layers import layer_kinds, stage_layer_kinds
from suite.predict.analytic.timed_stages import timed_stages


class StageMemory(NamedTuple):
    """Bytes on one rank of a pipeline stage: its parts, and their sums at three instants of a step.

    Args:
        weights: in all versions that the schedule keeps.
        activations: of all micro-batches in flight, embedding and head included, logits not.
        working: what the backward pass of a layer holds beside what is kept: gradients, and what it computes again. On
            the stage of Megatron's head what it holds beyond one micro-batch's logits, which are gone by then, or the
            16-bit logits, and their gradient, beside the loss's in fp32.
        waiting: of `activations`, those of the micro-batches that a schedule without flush keeps beyond the one whose
            backward pass ends.
        unfinished: of the layers whose backward pass comes last: one layer's, or one recomputed group's.
        buffers: for communication (see `buffer_bytes`).
        temporary: fp32 gradients that the update reads, 4 bytes a parameter of the optimizer's shard; none where a
            copy is kept anyway, where fp32 ones were scattered to the shard, where the update widens fp16 gradients in
            passing, and where it runs on the host.
        after_forward: end of the forward pass, start of the backward pass: everything but unfinished and temporary.
        after_backward: end of the last backward pass, its first layers still to do.
        at_update: the optimizer's step.
        weight_copies: of the layers' weights in the format of the products, where they have one of their own.
    """

    weights: float
    gradients: float
    gradient_copy: float
    master_weights: float
    moments: float
    activations: float
    logits: float
    working: float
    waiting: float
    unfinished: float
    buffers: float
    temporary: float
    after_forward: float
    after_backward: float
    at_update: float
    weight_copies: float = 0

    @property
    def state(self) -> float:
        """Bytes of weights, gradients and optimizer state."""
        return sum(self[:5])

    @property
    def optimizer(self) -> float:
        """Bytes of moments, master weights and the optimizer's copy of the gradients."""
        return self.gradient_copy + self.master_weights + self.moments

    @property
    def peak(self) -> float:
        """Bytes of tensors at the fullest of the three instants."""
        return larger(larger(self.after_forward, self.after_backward), self.at_update)

    def fullest_instant(self) -> tuple[str, dict[str, float]]:
        """When a rank holds most, and the bytes of each part that lives then; they add up to the peak."""
        constant = {
            "weights": self.weights,
            "gradient copy": self.gradient_copy,
            "master weights": self.master_weights,
            "moments": self.moments,
            "copies of weights in the products' format": self.weight_copies,
        }
        if self.peak == self.after_forward:
            alive = {
                "activations": self.activations,
                "logits": self.logits,
                "a layer's backward pass": self.working,
                "communication buffers and gathered weights": self.buffers,
            }
            rest = self.peak - sum(constant.values()) - sum(alive.values())
            return "after the forward pass", {"gradients": rest, **constant, **alive}
        constant = {"gradients": self.gradients, **constant, "activations of later micro-batches": self.waiting}
        buffers = {"communication buffers and gathered weights": self.buffers}
        if self.peak == self.after_backward:
            return "after the backward pass", {**constant, "layers still to do": self.unfinished, **buffers}
        return "at the update", {**constant, "temporary": self.temporary}


class _LayoutTerms(NamedTuple):
    """Terms that all stages of a layout have in common.

    Args:
        kinds: of each of `layer_kinds`.
        weight_copies: bytes of each of `layer_kinds`, see `layer_weight_copies_bytes`.
        layer_parameters: of a layer of each of `layer_kinds`; 0 where none is gathered or scattered.
        stream: bytes of one micro-batch between two stages on one rank.
    """

    kinds: tuple[MicroBatchBytes, ...]
    weight_copies: tuple[int, ...]
    layer_parameters: tuple[int, ...]
    stream: int
    keeping: Keeping


def _shared(workload: Workload, keeping: Keeping) -> _LayoutTerms:
    architecture, recipe, layout = workload
    by_layer = layout.zero_stage >= 2 or layout.offload is Offload.STATE
    tensor, expert = layout.tensor_parallel, layout.expert_parallel
    architectures = [kind for kind, _ in layer_kinds(architecture)]
    tensors = [layer_tensors(kind, tensor_parallel=tensor, expert_parallel=expert) for kind in architectures]
    sizes = tuple(total_elements(of_layer) if by_layer else 0 for of_layer in tensors)
    stream = WEIGHT_ELEMENT_BYTES[recipe.precision] * hidden_elements(workload)
    of_kinds = [Workload(kind, recipe, layout) for kind in architectures]
    kinds = tuple(micro_batch_bytes(kind, keeping) for kind in of_kinds)
    copies = tuple(layer_weight_copies_bytes(kind, primary=keeping.primary_in_format) for kind in of_kinds)
    return _LayoutTerms(kinds, copies, sizes, stream, keeping)


def buffer_bytes(
    recipe: Recipe,
    layout: Layout,
    *,
    stage: int,
    parameters: int,
    layers: Sequence[int],
    layer_parameters: Sequence[int],
    stream: int,
    narrow_gradients: bool = False,
) -> float:
    """Bytes of buffers for communication on a rank of `stage` with so many parameters, and so many layers of each kind.

    With g bytes a gradient, w a weight, n ranks of data and context parallelism, and U the parameters of two layers
    of the largest kind (the one at work, and the one ahead) and of the tables and the norm next to the layers:
        min(bucket, g N)    ZeRO-0 and 1, n > 1: gradients on their way; 0 where ZeRO-1 scatters them in place
        g U                 ZeRO-2 and 3, n > 1: gradients before they are scattered; also where they go to the host
        w U                 ZeRO-3, n > 1: gathered weights; w N where they stay between forward and backward pass;
                            also where the weights lie on the host
        2 e T h             received from the stage before and, as gradient, from the stage after; over t with
                            sequence parallelism; one of them on the outer stages
    With `narrow_gradients` g is w: gradients are 16-bit until they are scattered (FSDP's mixed precision).

    Source: Li et al. 2020, arXiv 2006.15704, section 3.2.3; Zhao et al. 2023, arXiv 2304.11277, section 3.3; Narayanan
    et al. 2021, arXiv 2104.04473, section 4.1. ZeRO-1's gathered weights fill their own place. What collectives and
    the communication library hold inside is left out, and what ring attention receives.
    """
    buffers: float = stream * ((stage > 0) * 1 + (stage < layout.pipeline_stages - 1))
    several = state_ranks(layout) > 1
    gradient, weight = BYTES_PER_PARAMETER[recipe.precision].gradients, BYTES_PER_PARAMETER[recipe.precision].weights
    gradient = weight if narrow_gradients else gradient
    if layout.zero_stage <= 1 and layout.offload is not Offload.STATE:
        in_place = layout.zero_stage == 1 and layout.reduce_scatter
        return buffers + (not in_place) * (several * smaller(layout.bucket_bytes, gradient * parameters))
    in_layers = sum(number * size for number, size in zip(layers, layer_parameters, strict=True))
    at_work = smaller(in_layers, 2 * reduce(larger, layer_parameters))
    unsharded = parameters - in_layers + at_work
    buffers = buffers + (True if _gradients_on_host(layout) else several) * (gradient * unsharded)
    if layout.offload is not Offload.STATE and layout.zero_stage <= 2:
        return buffers
    gathered = weight * (unsharded if layout.reshard_after_forward else parameters)
    return buffers + (True if layout.offload is Offload.STATE else several) * gathered


def _gradients_on_host(layout: Layout) -> bool:
    return layout.offload is Offload.STATE or (layout.offload is Offload.OPTIMIZER and layout.zero_stage >= 2)


def _offloaded(state: StateBytes, layout: Layout) -> StateBytes:
    """Part of `state` that stays on the accelerator."""
    weights = 0 * state.weights if layout.offload is Offload.STATE else state.weights
    gradients = 0 * state.gradients if _gradients_on_host(layout) else state.gradients
    return StateBytes(weights, gradients, 0 * state.gradient_copy, 0 * state.master_weights, 0 * state.moments)


def _temporary_bytes(workload: Workload, keeping: Keeping, share: float) -> float:
    """See `StageMemory.temporary`, of an optimizer's shard of so many parameters."""
    _, recipe, layout = workload
    if shard_is_master(keeping, workload):
        return 0 * share  # the update reads fp32 gradients as they are
    passing = recipe.precision is not Precision.FP16_GRADIENT_COPY and recipe.precision.has_masters
    scattered = layout.zero_stage == 1 and layout.reduce_scatter
    wide = BYTES_PER_PARAMETER[recipe.precision].gradients == FP32 and not adds_in_16_bit(keeping, workload)
    in_place = scattered and wide
    temporary = FP32 * share if passing and not layout.offload.of_state else 0 * share
    return temporary * (state_ranks(layout) == 1) if in_place else temporary


def _before_passes(
    workload: Workload, *, stage: int, layers: Sequence[int], micro_batches: int, shared: _LayoutTerms
) -> tuple[StageMemory, float]:
    """The memory of a stage without the layers of the micro-batches in flight, and what one of those keeps.

    Args:
        layers: on the stage, of each kind.
    """
    _, recipe, layout = workload
    unit = shared.kinds[-1]
    rank = trained_parameters(workload, stage=stage)
    dense = stored_elements(group_parameters(rank, recipe), layout, shards=layout.sharding_ranks)
    of_experts = stored_elements((rank.experts, 0), layout, shards=expert_shards(layout))
    stored, kept_gradients, share = (sum(pair) for pair in zip(dense, of_experts, strict=True))
    stored = stored + frozen_parameters(workload, stage=stage)
    if layout.schedule in NO_FLUSH:
        stored = stored * weight_versions(layout, stage=stage, micro_batches=micro_batches)
    moments = kept_moment_bytes(workload, stage=stage, parameters=rank.all)
    state = state_bytes(stored, recipe.precision, gradients=kept_gradients, optimizer=share)
    state = state._replace(moments=moments * share)
    state = state_of_modules(state, shared.keeping, workload, share=share)
    state = state._replace(
        gradients=state.gradients
        + unscattered_gradient_bytes(workload, shared.keeping, parameters=rank.all, micro_batches=micro_batches)
    )
    if layout.offload.of_state:
        state = _offloaded(state, layout)
    heads = micro_batches if layout.schedule is Schedule.GPIPE else 1
    on_stage = heads * (stage == head_stage(layout))
    kinds = list(zip(shared.kinds, layers, strict=True))
    working = reduce(larger, [working_bytes(kind, layout, layers=number) for kind, number in kinds])
    unfinished = working + reduce(larger, [(number > 0) * kind.unit for kind, number in kinds])
    if shared.keeping.megatron_layers:
        in_16_bit = unit.logits // 2 * (WEIGHT_ELEMENT_BYTES[recipe.precision] < FP32)
        working = chosen(on_stage > 0, larger(working - unit.logits, in_16_bit), working)
    buffers = buffer_bytes(
        recipe,
        layout,
        stage=stage,
        parameters=rank.matrices + rank.vectors,
        layers=layers,
        layer_parameters=shared.layer_parameters,
        stream=shared.stream,
        narrow_gradients=shard_is_master(shared.keeping, workload) or adds_in_16_bit(shared.keeping, workload),
    )
    copies = sum(number * size for size, number in zip(shared.weight_copies, layers, strict=True))
    constant = state.weights + state.gradient_copy + state.master_weights + state.moments + copies
    accumulated = constant + state.gradients
    each = sum(kind.unit * kept_units(layout, layers=number) for kind, number in kinds)
    each = each + (stage == 0) * unit.embedding
    memory = StageMemory(
        *state,
        on_stage * unit.head,
        on_stage * unit.logits,
        working,
        0 * each,
        unfinished,
        buffers,
        (temporary := _temporary_bytes(workload, shared.keeping, share)),
        constant + on_stage * unit.logits + working + buffers,
        accumulated + unfinished + buffers,
        accumulated + temporary,
        copies,
    )
    return memory, each


def gradients_in_passes(
    gradients: float, each: float, in_flight: float, keeping: Keeping, layout: Layout, *, micro_batches: int
) -> float:
    """Bytes of gradients at the fullest moment of the forward passes.

        G                                    in a buffer that is there from the start, Megatron-Core's
        G, from the second micro-batch on    in others that stay
        G min(ceil(n / p), v) / v            made by autograd: of the chunks that n = (m - F) v backward passes come to
                                             before the last forward pass, p of each of v chunks
        max(G - A, 0) / v                    n = 0: of the first chunk, whose backward pass frees A / v of activations

    Source: Megatron-Core, distributed/param_and_grad_buffer.py; Narayanan et al. 2021, arXiv 2104.04473, section 2.2.
    """
    if not keeping.eager or layout.schedule in NO_FLUSH:
        return ((micro_batches > 1) | keeping.fused_gate) * gradients
    virtual = layout.virtual_stages
    backward = (micro_batches - in_flight) * virtual
    made = smaller(-(-backward // layout.pipeline_stages), virtual) * gradients
    first = (virtual > 1) * larger(gradients - each, 0 * each)
    return chosen(backward > 0, made, first) / virtual


def _with_passes(
    memory: StageMemory, each: float, in_flight: float, keeping: Keeping, layout: Layout, *, micro_batches: int
) -> StageMemory:
    """The memory with the activations of `in_flight` micro-batches, of which `each` keeps so many bytes."""
    activations = in_flight * each + memory.activations
    waiting = memory.waiting if layout.schedule not in NO_FLUSH else (in_flight - 1) * each
    return memory._replace(
        activations=activations,
        waiting=waiting,
        after_forward=memory.after_forward
        + activations
        + gradients_in_passes(memory.gradients, each, in_flight, keeping, layout, micro_batches=micro_batches),
        after_backward=memory.after_backward + waiting,
        at_update=memory.at_update + waiting,
    )


def _stage_memory(workload: Workload, *, stage: int, micro_batches: int, shared: _LayoutTerms) -> StageMemory:
    architecture, layout = workload.architecture, workload.layout
    layers = [number for _, number in stage_layer_kinds(architecture, layout, stage=stage)]
    memory, each = _before_passes(workload, stage=stage, layers=layers, micro_batches=micro_batches, shared=shared)
    in_flight = micro_batches_in_flight(layout, micro_batches=micro_batches, stage=stage)
    return _with_passes(memory, each, in_flight, shared.keeping, layout, micro_batches=micro_batches)


def stage_memory(workload: Workload, *, stage: int, micro_batches: int, keeping: Keeping = NO_KEEPING) -> StageMemory:
    """Bytes on one rank of pipeline stage `stage` (from 0), by part and at three instants of a step.

        after forward     state (gradients only from the second micro-batch on: before, none exist), activations of
                          the micro-batches in flight, logits, what is computed again, buffers
        after backward    state, the activations of its last layers, buffers
        at the update     state, temporary

    Activations are freed as gradients come, so the largest of these is the peak. A step's micro-batches in flight are
    gone at its end, except without flush. The head's activations are in flight once: its backward pass follows at
    once, except with GPipe. Step counters (8 bytes), token indices and norm statistics are left out, and so are the
    gradients with which the second halves of backward passes wait, what a kernel needs inside, and what CUDA and the
    communication library take for themselves.

    Source: Rajbhandari et al. 2020, arXiv 1910.02054, section 3; Korthikanti et al. 2022, arXiv 2205.05198, section 4.
    """
    return _stage_memory(workload, stage=stage, micro_batches=micro_batches, shared=_shared(workload, keeping))


def memory_by_stage(workload: Workload, *, micro_batches: int, keeping: Keeping = NO_KEEPING) -> list[StageMemory]:
    """`stage_memory` of every pipeline stage in order; stages alike share what does not depend on the schedule."""
    architecture, layout = workload.architecture, workload.layout
    shared = _shared(workload, keeping)
    last, flush = layout.pipeline_stages - 1, layout.schedule not in NO_FLUSH
    alike: dict[tuple[int, ...], tuple[StageMemory, float]] = {}
    by_stage: list[StageMemory] = []
    for stage in range(last + 1):
        layers = [number for _, number in stage_layer_kinds(architecture, layout, stage=stage)]
        # first, last and other stages differ; without flush each stage keeps its own number of weight versions
        kind = (*layers, -1 if flush and 0 < stage < last else stage)
        if kind not in alike:
            alike[kind] = _before_passes(
                workload, stage=stage, layers=layers, micro_batches=micro_batches, shared=shared
            )
        memory, each = alike[kind]
        in_flight = micro_batches_in_flight(layout, micro_batches=micro_batches, stage=stage)
        by_stage.append(_with_passes(memory, each, in_flight, keeping, layout, micro_batches=micro_batches))
    return by_stage


def peak_bytes(workload: Workload, *, micro_batches: int, keeping: Keeping = NO_KEEPING) -> float:
    """Bytes at the fullest instant of the fullest rank.

    It is of one of `timed_stages`: those between have no more layers, micro-batches in flight or weight versions than
    one of them that comes before, and neither embedding nor head.
    """
    shared = _shared(workload, keeping)
    peaks = (
        _stage_memory(workload, stage=stage, micro_batches=micro_batches, shared=shared).peak
        for stage in timed_stages(workload.architecture, workload.layout)
    )
    return reduce(larger, peaks)
