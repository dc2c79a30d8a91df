"""Memory of a pipeline stage while its passes run in the order of PyTorch's schedule."""

from __future__ import annotations

from reference_runs.catalog import accumulation
from reference_runs.layout import Schedule
from suite.job.pipeline_passes import Pass, PassKind
from suite.predict.analytic.memory import FP32
from suite.predict.simulation.autograd_tape import ParameterLeaf, Value, WeightsHalf
from suite.predict.simulation.memory_blocks import Category, MemoryBlock, StepPhase
from suite.predict.simulation.pipeline_order import passes
from suite.predict.simulation.simulated_rank import SimulatedRank

ExpertRows = tuple[tuple[int, ...], ...]
Key = tuple[int, int]  # chunk, micro-batch


class PipelinedStage:
    """A step of a stage's chunks.

    PyTorch's stages have a buffer for the input and one for the gradient of the output of every micro-batch, for good.
    A chunk's output is held until its backward pass has ended, of one in halves both. What is sent is held until the
    end of the step, in 1f1b less: the gradient until the next backward pass has ended, and of outputs the last that the
    first passes send alone, until backward passes follow each other. The gradient of an input that was found without
    those of the weights is held with its buffer, until the next step. Where two chunks of a stage follow each other,
    what one hands to the other takes the place of the buffer.
    Source: torch/distributed/pipelining/stage.py, _RecvInfo, forward_one_chunk, backward_one_chunk,
    backward_weight_one_chunk, set_local_fwd_input, set_local_bwd_input; schedules.py.
    """

    def __init__(self, rank: SimulatedRank) -> None:
        assert rank.sharding is None
        self._rank, self._tape, self._numbers = rank, rank.tape, rank.numbers
        layout = rank.workload.layout
        self._layout = layout
        self._micro_batches = accumulation(rank.workload.recipe, layout)
        self._last = layout.pipeline_stages * layout.virtual_stages - 1
        self._alternates = layout.schedule is Schedule.ONE_F_ONE_B and layout.virtual_stages == 1
        self._tape.enter(StepPhase.FORWARD, Category.BUFFERS)
        micro_batches, each = range(self._micro_batches), rank.hidden_bytes
        self._inputs = {(n, m): self._tape.block(each) for n in self._numbers if n > 0 for m in micro_batches}
        self._ends = {(n, m): self._tape.block(each) for n in self._numbers if n < self._last for m in micro_batches}
        for block in self._ends.values():
            block.borrowed = True
        self._leaves: dict[Key, ParameterLeaf] = {}
        self._outputs: dict[Key, Value] = {}
        self._halves: dict[Key, tuple[WeightsHalf, Value]] = {}
        self._returned: dict[Key, _Arrived] = {}
        self._sent: list[_Arrived] = []
        self._found: list[_Arrived] = []
        self._posted: list[MemoryBlock] = []

    def run(self, expert_rows: ExpertRows | None) -> list[MemoryBlock]:
        """Run the micro-batches of a step; returns what stays allocated besides gradients."""
        rank, tape = self._rank, self._tape
        tape.enter(StepPhase.FORWARD)
        batch = rank.batch(self._micro_batches)
        if expert_rows is None and self._alternates:  # all cycles of a pass forward and a pass backward are alike
            self._micro_batches = min(self._micro_batches, 2 * (self._layout.pipeline_stages - rank.stage) + 1)
        for done in passes(self._layout, micro_batches=self._micro_batches, stage=rank.stage):
            chunk, key = rank.chunks[self._numbers.index(done.chunk)], (done.chunk, done.micro_batch)
            if expert_rows is not None:
                chunk.expert_rows = rank.rows_of(chunk, expert_rows[done.micro_batch])
            tape.enter(StepPhase.FORWARD if done.kind is PassKind.FORWARD else StepPhase.BACKWARD)
            if done.kind is not PassKind.FORWARD:
                self._backward(done, key)
                continue
            self._returned[key] = _Arrived()
            self._leaves[key] = ParameterLeaf(self._returned[key].deliver, is_weight=False)
            x = Value(self._inputs[key], self._leaves[key]) if done.chunk > 0 else None
            self._outputs[key] = chunk.forward(batch, x)
            del x
            apart = done.micro_batch == self._layout.pipeline_stages - rank.stage - 2
            if done.chunk + 1 in self._numbers:
                self._inputs[done.chunk + 1, done.micro_batch] = self._outputs[key].block
            elif done.chunk < self._last and (not self._alternates or apart):
                self._posted.append(self._outputs[key].block)
        return [*self._inputs.values(), *self._ends.values(), *(each.block for each in self._found if each.block)]

    def _backward(self, done: Pass, key: Key) -> None:
        """The first chunk has no input to find a gradient of: the half of the weights is all."""
        tape, halved, ahead = self._tape, done.chunk > 0, self._layout.pipeline_stages - self._rank.stage
        if self._alternates and done.micro_batch > self._micro_batches - min(ahead, self._micro_batches):
            self._posted.clear()  # the work that was named last is another one now
        if done.kind is PassKind.INPUT and halved:
            output = self._outputs.pop(key)
            half = tape.backward_to(self._leaves.pop(key), output, self._gradient(key))
            self._halves[key] = half, Value(output.block)
            self._found.append(self._returned[key])
            self._send(key)
        elif done.kind is PassKind.WEIGHT and halved:
            tape.backward_to_weights(self._halves[key][0])
            del self._halves[key]
        elif done.kind is not PassKind.INPUT:
            self._rank.gradients.whole = done.micro_batch == self._micro_batches - 1
            tape.backward(self._outputs[key], self._gradient(key))
            del self._outputs[key], self._leaves[key]
            if self._alternates:
                self._sent.clear()
            self._send(key)

    def _send(self, key: Key) -> None:
        """Hand the gradient of a chunk's input to the chunk before, which may be here."""
        given, (chunk, micro_batch) = self._returned.pop(key), key
        if chunk - 1 not in self._numbers:
            self._sent.append(given)
        elif given.block is not None:
            given.block.borrowed = True
            self._ends[chunk - 1, micro_batch] = given.block

    def _gradient(self, key: Key) -> MemoryBlock:
        return self._ends[key] if key[0] < self._last else self._tape.block(FP32)


class _Arrived:
    """The gradient of a received input."""

    def __init__(self) -> None:
        self.block: MemoryBlock | None = None

    def deliver(self, block: MemoryBlock) -> None:
        """Add the gradient of one reader, in place."""
        if self.block is None or self.block.borrowed:
            self.block = block
