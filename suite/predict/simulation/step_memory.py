"""Memory of one rank as it is executed here: what autograd keeps of a micro-batch, and the most that is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from reference_runs.catalog import accumulation
from reference_runs.layout import Layout, Schedule
from reference_runs.placement import chunk_layers
from reference_runs.run import Precision, Recipe, Workload
from suite.job.options import DEFAULT_OPTIONS, TrainingOptions
from suite.machine.half_precision import Kernels
from suite.predict.analytic.memory import BYTES_PER_PARAMETER, WEIGHT_ELEMENT_BYTES, optimizer_shards, shard_elements
from suite.predict.simulation.autograd_tape import Allocator, Block, Category, Leaf, StepPhase, Tape, Value
from suite.predict.simulation.decoder import Chunk, batch
from suite.predict.simulation.fsdp import FullySharding
from suite.predict.simulation.operators import FP32
from suite.predict.simulation.pipeline_schedule import passes
from suite.predict.simulation.state import executed_state, optimizer_groups, script_update_bytes

GENERATOR_BYTES = 5056  # of the CPU's random generator: torch.get_rng_state, a Mersenne twister
_NO_GRADIENT = Leaf(lambda _: None)


class Gradients:
    """Gradients of a rank's parameters.

    Args:
        element: bytes of an element.
        widens: whether they are wider than what they are gradients of.
        reads: whether weights are read through a function that has their gradients pass.
        buckets: whether DistributedDataParallel has them lie in its buckets once they are whole.
        keeps: whether they are zeroed where they lie, and never freed.

    Attributes:
        whole: whether this is the last micro-batch.
    """

    def __init__(
        self, tape: Tape, *, element: int, widens: bool, reads: bool, buckets: bool, keeps: bool = False
    ) -> None:
        self.tape, self.element, self.widens, self.reads, self.buckets = tape, element, widens, reads, buckets
        self.keeps = keeps
        self.whole = False
        self.accumulated: dict[int, Block] = {}
        self._leaves = 0

    def leaf(self, rows: int, columns: int, readers: int) -> Leaf:
        """The leaf of a parameter; gradients of several readers are accumulated when all have come."""
        self._leaves += 1
        name, size = self._leaves, self.element * rows * columns
        waiting: list[Block] = []
        if self.keeps:
            self.accumulated[name] = self.tape.block(size)
            self.accumulated[name].move(Category.GRADIENTS)

        def deliver(block: Block) -> None:
            if self.reads:
                self.tape.work("weight_read", variant="backward")
            if self.widens:
                self.tape.work("to_fp32", rows * columns, variant="forward", dtype="bf16")
                block = self.tape.block(size)
            if readers > 1:
                waiting.append(block)
                if len(waiting) < readers:
                    return
                if not self.widens:
                    block = self.tape.block(size)
                waiting.clear()
                self._works("add", rows * columns)
            if name in self.accumulated:
                self._works("accumulate", rows * columns)
            self.tape.work("node", compiled=False)
            if self.buckets and self.whole:
                self._works("scale", rows * columns)
                self.accumulated.pop(name, None)
            else:
                self.accumulated.setdefault(name, block).move(Category.GRADIENTS)

        return Leaf(deliver)

    def _works(self, operation: str, elements: int) -> None:
        dtype = "fp32" if self.element == FP32 else "fp16"
        self.tape.work(operation, elements, variant="forward", dtype=dtype, compiled=False)


def executed_activation_bytes(
    workload: Workload,
    *,
    stage: int,
    kernels: Kernels,
    script: TrainingOptions = DEFAULT_OPTIONS,
) -> int:
    """Bytes that autograd keeps for the backward pass of one micro-batch in the chunks of a rank of `stage`."""
    architecture, recipe, layout = workload
    tape = Tape(Allocator(), counts=True)
    gradients, sharding = gradients_of(tape, recipe, layout), sharding_of(tape, recipe, layout, kernels)
    chunks = executed_chunks(
        tape, workload, kernels, stage=stage, gradients=gradients, sharding=sharding, script=script
    )
    given = batch(tape, architecture, samples=layout.micro_batch)
    outputs = [chunk.forward(given, _received(tape, workload)) for chunk in chunks]
    assert outputs
    return tape.kept_bytes


def _received(tape: Tape, workload: Workload) -> Value:
    """Hidden states that another chunk sent."""
    return Value(tape.block(_hidden_bytes(workload)), _NO_GRADIENT)


def _hidden_bytes(workload: Workload) -> int:
    """Bytes of a micro-batch's hidden states between two chunks."""
    architecture, recipe, layout = workload
    length = architecture.sequence // (layout.tensor_parallel if layout.sequence_parallel else 1)
    return WEIGHT_ELEMENT_BYTES[recipe.precision] * layout.micro_batch * length * architecture.hidden


def executed_chunks(
    tape: Tape,
    workload: Workload,
    kernels: Kernels,
    *,
    stage: int,
    gradients: Gradients,
    sharding: FullySharding | None,
    compiled: bool = False,
    script: TrainingOptions = DEFAULT_OPTIONS,
) -> list[Chunk]:
    """The chunks of a rank of `stage`."""
    dealt = chunk_layers(workload.architecture.layers, workload.layout)
    return [
        Chunk(
            tape,
            workload,
            kernels,
            leaf=gradients.leaf,
            reads=gradients.reads,
            sharding=sharding,
            compiled=compiled,
            script=script,
            layers=len(dealt[number]),
            first=number == 0,
            last=number == len(dealt) - 1,
        )
        for number in range(stage, len(dealt), workload.layout.pipeline_stages)
    ]


def gradients_of(tape: Tape, recipe: Recipe, layout: Layout, script: TrainingOptions = DEFAULT_OPTIONS) -> Gradients:
    """Where the gradients of a rank accumulate."""
    element = int(BYTES_PER_PARAMETER[recipe.precision].gradients)
    widens = element > WEIGHT_ELEMENT_BYTES[recipe.precision]
    buckets = layout.data_parallel > 1 and not layout.fully_sharded
    # DistributedDataParallel has stand-ins with wider gradients; parts of matrices become DTensors as they are read
    reads = (buckets and widens) or layout.tensor_parallel > 1
    keeps = script.keeps_gradients
    return Gradients(tape, element=element, widens=widens, reads=reads, buckets=buckets, keeps=keeps)


def sharding_of(tape: Tape, recipe: Recipe, layout: Layout, kernels: Kernels) -> FullySharding | None:
    """What fully_shard does around a rank's blocks, with ZeRO-2 and 3 over several ranks."""
    return FullySharding(tape, recipe, layout, kernels) if layout.fully_sharded else None


def executed_peak_bytes(
    workload: Workload,
    *,
    stage: int,
    replica: int,
    kernels: Kernels,
    script: TrainingOptions = DEFAULT_OPTIONS,
) -> int:
    """The most bytes that are allocated at a time in a step of a rank of `stage`."""
    peaks = executed_peaks(workload, stage=stage, replica=replica, kernels=kernels, script=script)
    return max(sum(parts.values()) for parts in peaks.values())


@lru_cache(maxsize=1024)
def executed_peaks(
    workload: Workload,
    *,
    stage: int,
    replica: int,
    kernels: Kernels,
    script: TrainingOptions = DEFAULT_OPTIONS,
) -> Mapping[str, Mapping[str, int]]:
    """The most bytes that are allocated at a time in each `StepPhase` of a rank of `stage`, by `Category`.

    Of a pipeline, whose passes alternate, the fullest of all forward passes and the fullest of all backward passes.
    """
    architecture, recipe, layout = workload
    allocator = Allocator(512 if kernels.cuda else 1)
    tape = Tape(allocator, generator_bytes=0 if kernels.cuda else GENERATOR_BYTES)
    tape.enter(StepPhase.FORWARD)
    gradients, sharding = gradients_of(tape, recipe, layout, script), sharding_of(tape, recipe, layout, kernels)
    chunks = executed_chunks(
        tape, workload, kernels, stage=stage, gradients=gradients, sharding=sharding, script=script
    )
    state = executed_state(workload, stage=stage, replica=replica, update=script.update)
    stored: list[Block] = []
    for category, size in (
        (Category.WEIGHTS, state.weight_bytes),
        (Category.OPTIMIZER, state.optimizer_bytes),
        (Category.GRADIENTS, state.gradient_bytes if gradients.buckets else 0),
    ):
        allocator.enter(StepPhase.FORWARD, category)
        stored.append(tape.block(size))
    run = _run_pipeline if layout.pipeline_stages > 1 else _run
    stored += run(tape, chunks, workload, stage=stage, gradients=gradients, sharding=sharding)
    allocator.enter(StepPhase.UPDATE, Category.UPDATE)
    in_passing = [tape.block(size) for size in _passing_bytes(workload, stage=stage)]
    in_passing.clear()
    for size in script_update_bytes(architecture, layout, script, stage=stage):
        tape.block(size)
    if layout.zero_stage == 1 and layout.data_parallel > 1 and not kernels.cuda:
        # gloo gathers into a buffer of its own, group by group
        allocator.enter(StepPhase.UPDATE, Category.BUFFERS)
        for elements in optimizer_groups(workload, stage=stage):
            whole = layout.data_parallel * shard_elements(elements, layout.data_parallel)
            tape.block(WEIGHT_ELEMENT_BYTES[recipe.precision] * whole)
    stored.clear()
    return {phase: {name: size for name, size in parts.items() if size} for phase, parts in allocator.peaks.items()}


def _run(
    tape: Tape,
    chunks: list[Chunk],
    workload: Workload,
    *,
    stage: int,
    gradients: Gradients,
    sharding: FullySharding | None,
) -> list[Block]:
    """The micro-batches of a step, one after the other; nothing is left but gradients."""
    architecture, recipe, layout = workload
    assert stage == 0
    (chunk,) = chunks
    micro_batches = accumulation(recipe, layout)
    for number in range(micro_batches):
        gradients.whole = number == micro_batches - 1
        tape.enter(StepPhase.FORWARD)
        loss = chunk.forward(batch(tape, architecture, samples=layout.micro_batch))
        if sharding is not None:
            sharding.last = gradients.whole
        tape.enter(StepPhase.BACKWARD)
        tape.backward(loss, tape.block(FP32))
        if sharding is not None:
            sharding.finish()
    return []


def run_micro_batch(
    tape: Tape,
    chunk: Chunk,
    workload: Workload,
    *,
    sharding: FullySharding | None,
    last: bool,
) -> None:
    """One micro-batch through one chunk, forward and backward; a chunk behind another is given hidden states."""
    x = None if chunk.embedding is not None else _received(tape, workload)
    out = chunk.forward(batch(tape, workload.architecture, samples=workload.layout.micro_batch), x)
    if sharding is not None:
        sharding.last = last
    tape.backward(out, tape.block(FP32))
    if sharding is not None:
        sharding.finish()


def _run_pipeline(
    tape: Tape,
    chunks: list[Chunk],
    workload: Workload,
    *,
    stage: int,
    gradients: Gradients,
    sharding: FullySharding | None,
) -> list[Block]:
    """The micro-batches of a step through a stage's chunks, in its schedule's order; returns PyTorch's buffers.

    PyTorch's stages have a buffer for the input and one for the gradient of the output of every micro-batch, for good.
    A chunk's output is held until its backward pass has ended. What is sent is held until the end of the step, in 1f1b
    less: the gradient until the next backward pass has ended, and of outputs the last that the first passes send alone.
    Source: torch/distributed/pipelining/stage.py, _RecvInfo, forward_one_chunk, backward_one_chunk; schedules.py.
    """
    architecture, recipe, layout = workload
    assert sharding is None
    micro_batches = accumulation(recipe, layout)
    numbers = range(stage, layout.pipeline_stages * layout.virtual_stages, layout.pipeline_stages)
    size = _hidden_bytes(workload)
    last = layout.pipeline_stages * layout.virtual_stages - 1
    tape.enter(StepPhase.FORWARD, Category.BUFFERS)
    inputs = {(n, m): tape.block(size) for n in numbers if n > 0 for m in range(micro_batches)}
    ends = {(n, m): tape.block(size) for n in numbers if n < last for m in range(micro_batches)}
    for block in ends.values():
        block.lent = True
    tape.enter(StepPhase.FORWARD)
    given = batch(tape, architecture, samples=micro_batches * layout.micro_batch)
    outputs: dict[tuple[int, int], Value] = {}
    returned: dict[tuple[int, int], _Arrived] = {}
    sent: list[_Arrived] = []
    posted: list[Block] = []
    alternates = layout.schedule is Schedule.ONE_F_ONE_B and layout.virtual_stages == 1
    for backward, number, micro_batch in passes(layout, micro_batches=micro_batches, stage=stage):
        place = number, micro_batch
        tape.enter(StepPhase.BACKWARD if backward else StepPhase.FORWARD)
        if backward:
            gradients.whole = micro_batch == micro_batches - 1
            tape.backward(outputs[place], ends[place] if number < last else tape.block(FP32))
            del outputs[place]
            if alternates:
                sent.clear()
            sent.append(returned.pop(place))
        else:
            returned[place] = _Arrived()
            x = Value(inputs[place], Leaf(returned[place].deliver)) if number > 0 else None
            outputs[place] = chunks[numbers.index(number)].forward(given, x)
            del x
            if number < last and (not alternates or micro_batch == layout.pipeline_stages - stage - 2):
                posted.append(outputs[place].block)
    return [*inputs.values(), *ends.values()]


class _Arrived:
    """The gradient of a received input."""

    def __init__(self) -> None:
        self.block: Block | None = None

    def deliver(self, block: Block) -> None:
        """Add the gradient of one reader, in place."""
        if self.block is None or self.block.lent:
            self.block = block


def _passing_bytes(workload: Workload, *, stage: int) -> list[int]:
    """Bytes of what the update allocates: fp32 gradients that it reads, and fp32 weights that it does not keep.

    Flat shards have copies of fp32 gradients too.
    """
    recipe, layout = workload.recipe, workload.layout
    no_master = recipe.precision is Precision.FP16_NO_MASTER
    if layout.fully_sharded:
        own = executed_state(workload, stage=stage, replica=0).parameters
        return [2 * FP32 * own] if no_master else []
    shards = optimizer_shards(layout)
    groups = optimizer_groups(workload, stage=stage)
    own = sum(shard_elements(elements, shards) for elements in groups)
    each = BYTES_PER_PARAMETER[recipe.precision]
    copied = not each.gradient_copy and (shards > 1 or each.gradients < FP32)
    return [FP32 * own * (copied + no_master)]
