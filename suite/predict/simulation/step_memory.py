"""Memory of one rank as it is executed here: what autograd keeps of a micro-batch, and the most that is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.layout import Schedule
from reference_runs.run import Precision, Workload
from suite.job.options import StepOptions
from suite.machine.gpu import cublas_workspace_bytes
from suite.predict.analytic.memory import BYTES_PER_PARAMETER, FP32, WEIGHT_ELEMENT_BYTES, optimizer_shards
from suite.predict.simulation.autograd_tape import ParameterLeaf, Tape, Value
from suite.predict.simulation.memory_blocks import Allocator, Category, MemoryBlock, StepPhase
from suite.predict.simulation.pipeline_schedule import passes
from suite.predict.simulation.simulated_rank import SimulatedRank
from suite.predict.simulation.state import executed_state, optimizer_groups, update_bytes

GENERATOR_BYTES = 5056  # of the CPU's random generator: torch.get_rng_state, a Mersenne twister
CUDA_GRANULARITY = 512  # bytes that PyTorch's allocator rounds every block up to
ExpertRows = tuple[tuple[int, ...], ...]
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
    workload: Workload, options: StepOptions, *, stage: int, replica: int, expert_rows: ExpertRows | None = None
) -> int:
    """The most bytes that are allocated at a time in a step of a rank of `stage`."""
    peaks = executed_peaks(workload, options, stage=stage, replica=replica, expert_rows=expert_rows)
    return max(sum(parts.values()) for parts in peaks.values())


@lru_cache(maxsize=1024)
def executed_peaks(
    workload: Workload, options: StepOptions, *, stage: int, replica: int, expert_rows: ExpertRows | None = None
) -> Mapping[str, Mapping[str, int]]:
    """The most bytes that are allocated at a time in each `StepPhase` of a rank of `stage`, by `Category`.

    Of a pipeline, whose passes alternate, the fullest of all forward passes and the fullest of all backward passes.

    Args:
        expert_rows: that the rank's experts compute, in each micro-batch in each layer with experts; None: as many as
            the rank's tokens have.
    """
    layout, cuda = workload.layout, options.kernels.cuda
    allocator = Allocator(CUDA_GRANULARITY if cuda else 1)
    tape = Tape(allocator, generator_bytes=0 if cuda else GENERATOR_BYTES)
    tape.enter(StepPhase.FORWARD)
    rank = SimulatedRank(tape, workload, _eager(options), stage=stage)
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
    stored += (_run_pipeline if layout.pipeline_stages > 1 else _run)(rank, expert_rows)
    _update(tape, workload, options, stage=stage)
    stored.clear()
    return {phase: {name: size for name, size in parts.items() if size} for phase, parts in allocator.peaks.items()}


def _run(rank: SimulatedRank, expert_rows: ExpertRows | None) -> list[MemoryBlock]:
    """Run the micro-batches of a step one after the other; only gradients remain allocated."""
    (chunk,) = rank.chunks
    micro_batches = accumulation(rank.workload.recipe, rank.workload.layout)
    for number in range(micro_batches):
        chunk.expert_rows = None if expert_rows is None else expert_rows[number]
        loss = rank.forward(chunk)
        rank.backward(loss, last=number == micro_batches - 1)
    return []


def _run_pipeline(rank: SimulatedRank, expert_rows: ExpertRows | None) -> list[MemoryBlock]:
    """The micro-batches of a step through a stage's chunks, in its schedule's order; returns PyTorch's buffers.

    PyTorch's stages have a buffer for the input and one for the gradient of the output of every micro-batch, for good.
    A chunk's output is held until its backward pass has ended. What is sent is held until the end of the step, in 1f1b
    less: the gradient until the next backward pass has ended, and of outputs the last that the first passes send alone.
    Source: torch/distributed/pipelining/stage.py, _RecvInfo, forward_one_chunk, backward_one_chunk; schedules.py.
    """
    assert rank.sharding is None
    tape, layout, stage, numbers = rank.tape, rank.workload.layout, rank.stage, rank.numbers
    micro_batches = accumulation(rank.workload.recipe, layout)
    last = layout.pipeline_stages * layout.virtual_stages - 1
    tape.enter(StepPhase.FORWARD, Category.BUFFERS)
    inputs = {(n, m): tape.block(rank.hidden_bytes) for n in numbers if n > 0 for m in range(micro_batches)}
    ends = {(n, m): tape.block(rank.hidden_bytes) for n in numbers if n < last for m in range(micro_batches)}
    for block in ends.values():
        block.borrowed = True
    tape.enter(StepPhase.FORWARD)
    batch = rank.batch(micro_batches)
    outputs: dict[tuple[int, int], Value] = {}
    returned: dict[tuple[int, int], _Arrived] = {}
    sent: list[_Arrived] = []
    posted: list[MemoryBlock] = []
    alternates = layout.schedule is Schedule.ONE_F_ONE_B and layout.virtual_stages == 1
    for backward, number, micro_batch in passes(layout, micro_batches=micro_batches, stage=stage):
        key, chunk = (number, micro_batch), rank.chunks[numbers.index(number)]
        if expert_rows is not None:
            chunk.expert_rows = rank.rows_of(chunk, expert_rows[micro_batch])
        tape.enter(StepPhase.BACKWARD if backward else StepPhase.FORWARD)
        if backward:
            rank.gradients.whole = micro_batch == micro_batches - 1
            tape.backward(outputs[key], ends[key] if number < last else tape.block(FP32))
            del outputs[key]
            if alternates:
                sent.clear()
            sent.append(returned.pop(key))
        else:
            returned[key] = _Arrived()
            x = Value(inputs[key], ParameterLeaf(returned[key].deliver)) if number > 0 else None
            outputs[key] = chunk.forward(batch, x)
            del x
            if number < last and (not alternates or micro_batch == layout.pipeline_stages - stage - 2):
                posted.append(outputs[key].block)
    return [*inputs.values(), *ends.values()]


def _update(tape: Tape, workload: Workload, options: StepOptions, *, stage: int) -> None:
    """The update; with ZeRO-1 gloo gathers the weights into a buffer of its own, group by group.

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
    in_passing = [tape.block(size) for size in _passing_bytes(workload, stage=stage)]
    in_passing.clear()
    for size in update_bytes(workload, options.training_options, stage=stage):
        tape.block(size)
    if layout.zero_stage == 1 and layout.state_ranks > 1 and not options.kernels.cuda:
        tape.enter(StepPhase.UPDATE, Category.BUFFERS)
        for group in groups:
            tape.block(WEIGHT_ELEMENT_BYTES[recipe.precision] * group.padded * (group.shards > 1))


class _Arrived:
    """The gradient of a received input."""

    def __init__(self) -> None:
        self.block: MemoryBlock | None = None

    def deliver(self, block: MemoryBlock) -> None:
        """Add the gradient of one reader, in place."""
        if self.block is None or self.block.borrowed:
            self.block = block


def _passing_bytes(workload: Workload, *, stage: int) -> list[int]:
    """Bytes of what the update allocates: fp32 gradients that it reads, and fp32 weights that it does not keep.

    Flat shards have copies of fp32 gradients too, unless these were scattered.
    """
    recipe, layout = workload.recipe, workload.layout
    no_master = recipe.precision is Precision.FP16_NO_MASTER
    if layout.fully_sharded:
        elements = executed_state(workload, stage=stage, replica=0).parameters
        return [2 * FP32 * elements] if no_master else []
    shards = optimizer_shards(layout)
    elements = sum(group.share for group in optimizer_groups(workload, stage=stage))
    each = BYTES_PER_PARAMETER[recipe.precision]
    copied = not each.gradient_copy and ((shards > 1 and not layout.scatters_gradients) or each.gradients < FP32)
    return [FP32 * elements * (copied + no_master)]
