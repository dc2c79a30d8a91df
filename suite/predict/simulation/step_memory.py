"""Memory of one rank as it is executed here: what autograd keeps of a micro-batch, and the peak; of a slice too."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.run import Precision, Workload
from suite.job.options import StepOptions
from suite.machine.gpu import cublas_workspace_bytes
from suite.predict.analytic.memory import BYTES_PER_PARAMETER, FP32, WEIGHT_ELEMENT_BYTES, optimizer_shards
from suite.predict.simulation.asynchronous_memory import UnflushedStage
from suite.predict.simulation.autograd_tape import ParameterLeaf, Tape, Value
from suite.predict.simulation.epilogue_operators import cublaslt_workspace_bytes
from suite.predict.simulation.memory_blocks import Allocator, Category, MemoryBlock, StepPhase
from suite.predict.simulation.pipeline_memory import ExpertRows, PipelinedStage
from suite.predict.simulation.simulated_rank import SimulatedRank
from suite.predict.simulation.state import executed_state, optimizer_groups, update_bytes

GENERATOR_BYTES = 5056  # of the CPU's random generator: torch.get_rng_state, a Mersenne twister
CUDA_GRANULARITY = 512  # bytes that PyTorch's allocator rounds every block up to
ALIKE_FROM = 3  # micro-batches
MULTIPLYING_THREADS = 2  # Python's, and autograd's for the backward pass: cuBLAS has a workspace for each


def executed_activation_bytes(
    workload: Workload, options: StepOptions, *, stage: int, expert_rows: int | None = None
) -> int:
    """Bytes that autograd keeps for the backward pass of one micro-batch in the chunks of a rank of `stage`.

    Args:
        expert_rows: that the rank's experts of each layer compute; None: as many as the rank's tokens have.
    """
    tape = Tape(Allocator(), counts=True)
    rank = SimulatedRank(tape, workload, _eager(options), stage=stage)
    batch = rank.batch()
    for chunk in rank.chunks:
        chunk.expert_rows = None if expert_rows is None else [expert_rows] * chunk.mixtures
    outputs = [chunk.forward(batch, rank.received()) for chunk in rank.chunks]
    assert outputs
    return tape.kept_bytes


def _eager(options: StepOptions) -> StepOptions:
    """Memory is measured in an eager step, also of a launch that compiles."""
    return msgspec.structs.replace(options, compiled=False)


def executed_peak_bytes(
    workload: Workload,
    options: StepOptions,
    *,
    stage: int,
    replica: int,
    expert_rows: ExpertRows | None = None,
    sliced: bool = False,
) -> int:
    """The most bytes that are allocated at a time in a step of a rank of `stage`; `sliced`: of a slice."""
    peaks = executed_peaks(workload, options, stage=stage, replica=replica, expert_rows=expert_rows, sliced=sliced)
    return max(sum(parts.values()) for parts in peaks.values())


@lru_cache(maxsize=1024)
def executed_peaks(
    workload: Workload,
    options: StepOptions,
    *,
    stage: int,
    replica: int,
    expert_rows: ExpertRows | None = None,
    sliced: bool = False,
) -> Mapping[str, Mapping[str, int]]:
    """The most bytes that are allocated at a time in each `StepPhase` of a rank of `stage`, by `Category`.

    Of a pipeline, whose passes alternate, the fullest of all forward passes and the fullest of all backward passes.

    Args:
        expert_rows: that the rank's experts compute, in each micro-batch in each layer with experts; None: as many as
            the rank's tokens have.
        sliced: whether it is a slice: no messages to other stages or data-parallel ranks, and nothing for them.
    """
    workload = workload.at_stage(stage)
    layout, cuda = workload.layout, options.kernels.cuda
    allocator = Allocator(CUDA_GRANULARITY if cuda else 1)
    tape = Tape(allocator, generator_bytes=0 if cuda else GENERATOR_BYTES)
    tape.enter(StepPhase.FORWARD)
    rank = SimulatedRank(tape, workload, _eager(options), stage=stage, averaged=not sliced)
    state = executed_state(workload, stage=stage, replica=replica, update=options.training_options.update)
    kept = rank.gradients.in_buckets or rank.gradients.flat
    stored: list[MemoryBlock] = []
    for category, size in (
        (Category.WEIGHTS, state.weight_bytes),
        (Category.OPTIMIZER, state.optimizer_bytes),
        (Category.GRADIENTS, state.gradient_bytes - rank.gradients.apart_bytes if kept else 0),
    ):
        allocator.enter(StepPhase.FORWARD, category)
        stored.append(tape.block(size))
    if cuda:
        allocator.enter(StepPhase.FORWARD, Category.WORKSPACES)
        stored += [tape.block(cublas_workspace_bytes(options.kernels.gpu)) for _ in range(MULTIPLYING_THREADS)]
        stored.append(tape.block(cublaslt_workspace_bytes(options)))
    unflushed = None if layout.flushes else UnflushedStage(rank)
    if sliced:
        stored += run_slice(rank, expert_rows)
    elif unflushed is not None:
        unflushed.run()
    else:
        stored += PipelinedStage(rank).run(expert_rows) if layout.pipeline_stages > 1 else _run(rank, expert_rows)
    _update(tape, workload, options, stage=stage, gathers=not sliced)
    stored.clear()
    del unflushed
    return {phase: {name: size for name, size in parts.items() if size} for phase, parts in allocator.peaks.items()}


def _run(rank: SimulatedRank, expert_rows: ExpertRows | None) -> list[MemoryBlock]:
    """Run the micro-batches of a step one after the other; only gradients remain allocated."""
    (chunk,) = rank.chunks
    micro_batches = accumulation(rank.workload.recipe, rank.workload.layout)
    if expert_rows is None:  # those between the first and the last are alike
        micro_batches = min(micro_batches, ALIKE_FROM)
    for number in range(micro_batches):
        chunk.expert_rows = None if expert_rows is None else expert_rows[number]
        loss = rank.forward(chunk)
        rank.backward(loss, last=number == micro_batches - 1)
    return []


def _update(tape: Tape, workload: Workload, options: StepOptions, *, stage: int, gathers: bool) -> None:
    """The update; where it `gathers`, with ZeRO-1 gloo gathers the weights into a buffer of its own, group by group.

    So it does with gradients that it scatters, before.
    """
    recipe, layout = workload.recipe, workload.layout
    groups = optimizer_groups(workload, stage=stage)
    if layout.scatters_gradients and not options.kernels.cuda:
        tape.enter(StepPhase.UPDATE, Category.BUFFERS)
        for group in groups:
            gradients = int(BYTES_PER_PARAMETER[recipe.precision].gradients)
            tape.block(gradients * group.padded * (group.shards > 1))
    tape.enter(StepPhase.UPDATE, Category.UPDATE)
    one_pass = options.training_options.updates_in_one_pass
    in_passing = [tape.block(size) for size in _passing_bytes(workload, stage=stage, one_pass=one_pass)]
    in_passing.clear()
    for size in update_bytes(workload, options.training_options, stage=stage):
        tape.block(size)
    if gathers and layout.zero_stage == 1 and layout.state_ranks > 1 and not options.kernels.cuda:
        tape.enter(StepPhase.UPDATE, Category.BUFFERS)
        for group in groups:
            tape.block(WEIGHT_ELEMENT_BYTES[recipe.precision] * group.padded * (group.shards > 1))


def _passing_bytes(workload: Workload, *, stage: int, one_pass: bool) -> list[int]:
    """Bytes of what the update allocates: fp32 gradients that it reads, and fp32 weights that it does not keep.

    Flat shards have copies of fp32 gradients too, unless these were scattered. In one pass nothing is widened.
    """
    recipe, layout = workload.recipe, workload.layout
    no_master = recipe.precision is Precision.FP16_NO_MASTER and not one_pass
    if layout.fully_sharded:
        elements = executed_state(workload, stage=stage, replica=0).parameters
        return [2 * FP32 * elements] if no_master else []
    shards = optimizer_shards(layout)
    elements = sum(group.share for group in optimizer_groups(workload, stage=stage))
    each = BYTES_PER_PARAMETER[recipe.precision]
    copied = not each.gradient_copy and (
        (shards > 1 and not layout.scatters_gradients) or (each.gradients < FP32 and not one_pass)
    )
    return [FP32 * elements * (copied + no_master)]


def run_slice(rank: SimulatedRank, expert_rows: ExpertRows | None) -> list[MemoryBlock]:
    """Run a slice's micro-batch; returns what stays allocated besides gradients.

    What an earlier stage would send, and the gradient that a later one would, are drawn once, for good; the gradient
    has a copy in each step, times the loss scale. What one part hands to the next is held until the step's end, as is
    the gradient of it: it is a leaf of the next part's graph.
    """
    tape, (chunk,) = rank.tape, rank.chunks
    chunk.expert_rows = None if expert_rows is None else expert_rows[0]
    has_head = chunk.parameters.head is not None
    tape.enter(StepPhase.FORWARD, Category.BUFFERS)
    drawn = [tape.block(rank.hidden_bytes * is_drawn) for is_drawn in (not chunk.embeds, not has_head)]
    tape.enter(StepPhase.FORWARD)
    batch = rank.batch()
    embedded = chunk.embedded(batch.tokens) if chunk.embeds else None
    bias, turn = chunk.shared(batch)
    to_embedding, entered = _cut(drawn[0] if embedded is None else embedded.block)
    left = chunk.through_layers(entered, bias, turn)
    if has_head:
        to_layers, headed = _cut(left.block)
        loss = chunk.headed(headed, batch)
        tape.enter(StepPhase.BACKWARD)
        tape.backward(loss, tape.block(FP32))
        del loss, headed
        (gradient,) = to_layers
    else:
        gradient = tape.block(rank.hidden_bytes)
        tape.enter(StepPhase.BACKWARD)
    gradient.borrowed = True  # by the step
    tape.backward(left, gradient)
    if embedded is not None:
        (of_embedded,) = to_embedding
        of_embedded.borrowed = True
        tape.backward(embedded, of_embedded)
    return drawn


def _cut(block: MemoryBlock) -> tuple[list[MemoryBlock], Value]:
    """The same memory, with which a graph of its own begins, and the gradient that it will get."""
    gradients: list[MemoryBlock] = []

    def deliver(given: MemoryBlock) -> None:
        """Add the gradient of one reader, in place."""
        if not gradients:
            gradients.append(given)
        elif gradients[0].borrowed:
            gradients[0] = given

    return gradients, Value(block, ParameterLeaf(deliver, is_weight=False))
