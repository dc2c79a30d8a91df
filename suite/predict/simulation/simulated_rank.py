"""One rank of a simulated step: its chunks of the decoder, and where their gradients accumulate."""

from __future__ import annotations

from collections.abc import Sequence

from reference_runs.placement import stage_chunks
from reference_runs.run import Workload
from suite.job.options import StepOptions
from suite.predict.analytic.memory import BYTES_PER_PARAMETER, FP32, WEIGHT_ELEMENT_BYTES
from suite.predict.simulation.autograd_tape import NO_GRADIENT, ParameterLeaf, Tape, Value
from suite.predict.simulation.decoder import Chunk
from suite.predict.simulation.decoder_parameters import chunk_parameters
from suite.predict.simulation.fsdp import FullySharding, Unit
from suite.predict.simulation.memory_blocks import Category, MemoryBlock, StepPhase
from suite.predict.simulation.shared_inputs import BatchBlocks, batch
from suite.predict.simulation.state import timed_dtype


class Gradients:
    """Gradients of a rank's parameters, where these are not fully sharded.

    Attributes:
        in_buckets: whether DistributedDataParallel has them lie in its buckets once they are whole.
        read: whether weights are read through a function that has their gradients pass: DistributedDataParallel has
            stand-ins with wider gradients; parts of matrices become DTensors as they are read.
        flat: whether they lie in flat buffers from the start, to which every backward pass adds.
        whole: whether this is the last micro-batch.
        apart_bytes: of gradients that lie in no bucket or buffer: DistributedDataParallel leaves them alone, or they
            are of a table that stages without flush share.
    """

    def __init__(self, tape: Tape, workload: Workload, options: StepOptions, *, averaged: bool) -> None:
        precision, layout = workload.recipe.precision, workload.layout
        self._tape = tape
        self._element = int(BYTES_PER_PARAMETER[precision].gradients)
        self._widens = self._element > WEIGHT_ELEMENT_BYTES[precision]
        self._keeps = options.training_options.keeps_gradients
        self._accumulated: dict[int, MemoryBlock] = {}
        self._in_buffers: dict[int, MemoryBlock] = {}
        self._leaves = self.apart_bytes = 0
        self._scatters = layout.scatters_gradients
        self.flat = self._scatters or (layout.state_ranks > 1 and not layout.flushes)
        buckets = layout.state_ranks > 1 and not layout.fully_sharded and not self.flat
        self.in_buckets = buckets and averaged
        self.read = (buckets and self._widens) or layout.tensor_parallel > 1
        self.whole = False

    def leaf(self, rows: int, columns: int, readers: int, *, apart: bool) -> ParameterLeaf:
        """The leaf of a parameter; gradients of several readers are accumulated when all have come."""
        self._leaves += 1
        name, size = self._leaves, self._element * rows * columns
        flat = self._scatters or (self.flat and not apart)
        self.apart_bytes += size * (apart and not flat)
        waiting: list[MemoryBlock] = []
        if self._keeps or flat:
            self._accumulated[name] = self._tape.block(0 if flat else size)
            self._accumulated[name].move(Category.GRADIENTS)
        if flat:
            self._in_buffers[name] = self._accumulated[name]

        def deliver(block: MemoryBlock) -> None:
            if self.read:
                self._tape.count("weight_read", variant="backward")
            if self._widens:
                self._tape.count("to_fp32", rows * columns, variant="forward", dtype="bf16")
                block = self._tape.block(size)
            if readers > 1:
                waiting.append(block)
                if len(waiting) < readers:
                    return
                if not self._widens:
                    block = self._tape.block(size)
                waiting.clear()
                self._count("add", rows * columns)
            if self._tape.delivered is not None:
                self._tape.delivered.append(block)
            if name in self._accumulated:
                self._count("accumulate", rows * columns)
            self._tape.count("node", compiled=False)
            if self.in_buckets and self.whole and not apart:
                self._count("scale", rows * columns)
                self._accumulated.pop(name, None)
            else:
                self._accumulated.setdefault(name, block).move(Category.GRADIENTS)

        return ParameterLeaf(deliver)

    def clear(self) -> None:
        """After an update: what lies in buffers stays, as zeros."""
        self._accumulated = dict(self._in_buffers)

    def _count(self, operation: str, elements: int) -> None:
        dtype = timed_dtype(self._element)
        self._tape.count(operation, elements, variant="forward", dtype=dtype, compiled=False)


class SimulatedRank:
    """A rank of pipeline stage `stage`.

    Args:
        averaged: whether gradients are averaged over data-parallel ranks, where there are several: not in a slice.

    Attributes:
        cuda: whether it has a GPU.
        numbers: of its chunks in the whole model.
        hidden_bytes: of a micro-batch's hidden states between two chunks.
    """

    def __init__(
        self, tape: Tape, workload: Workload, options: StepOptions, *, stage: int, averaged: bool = True
    ) -> None:
        architecture, recipe, layout = workload
        self.tape, self.workload, self.stage, self.cuda = tape, workload, stage, options.kernels.cuda
        self.gradients = Gradients(tape, workload, options, averaged=averaged)
        self.sharding = FullySharding(tape, recipe, layout, options.kernels) if layout.fully_sharded else None
        self.numbers = stage_chunks(layout, stage=stage)
        self.chunks: list[Chunk] = []
        table = None
        for number in self.numbers:
            of_chunk = chunk_parameters(workload, self._new_leaf, chunk=number, sharding=self.sharding, table=table)
            table = table or of_chunk.embedding
            reads, sharding = self.gradients.read, self.sharding
            self.chunks.append(Chunk(tape, workload, options, of_chunk, reads=reads, sharding=sharding))
        length = architecture.sequence // layout.context_parallel
        length //= layout.tensor_parallel if layout.sequence_parallel else 1
        element = WEIGHT_ELEMENT_BYTES[recipe.precision]
        self.hidden_bytes = element * layout.micro_batch * length * architecture.hidden

    def _new_leaf(
        self, unit: Unit | None, rows: int, columns: int = 1, readers: int = 1, *, apart: bool = False
    ) -> ParameterLeaf:
        if self.sharding is None:
            return self.gradients.leaf(rows, columns, readers, apart=apart)
        if unit is not None and apart:
            unit = self.sharding.experts_of(unit)
        return self.sharding.leaf(unit or self.sharding.root, rows, columns, readers)

    def batch(self, micro_batches: int = 1) -> BatchBlocks:
        """So many micro-batches as the model is given them."""
        samples = micro_batches * self.workload.layout.micro_batch
        return batch(self.tape, self.workload, samples=samples, cuda=self.cuda)

    def rows_of(self, chunk: Chunk, expert_rows: Sequence[int]) -> Sequence[int]:
        """Rows of a chunk's layers with experts, among those of all such layers of the rank."""
        first = sum(before.mixtures for before in self.chunks[: self.chunks.index(chunk)])
        return expert_rows[first : first + chunk.mixtures]

    def received(self) -> Value:
        """Hidden states that another chunk sent."""
        return Value(self.tape.block(self.hidden_bytes), NO_GRADIENT)

    def forward(self, chunk: Chunk) -> Value:
        """One micro-batch through one chunk; a chunk after another is given hidden states."""
        self.tape.enter(StepPhase.FORWARD)
        return chunk.forward(self.batch(), None if chunk.embeds else self.received())

    def backward(self, output: Value, *, last: bool) -> None:
        """The chunk's backward pass; after that of the last micro-batch gradients are whole."""
        self.gradients.whole = last
        if self.sharding is not None:
            self.sharding.last = last
        self.tape.enter(StepPhase.BACKWARD)
        self.tape.backward(output, self.tape.block(FP32))
        if self.sharding is not None:
            self.sharding.finish()
