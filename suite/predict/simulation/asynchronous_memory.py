"""Memory of a pipeline stage whose passes go on over updates."""

from __future__ import annotations

from collections import deque

from reference_runs.catalog import accumulation
from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.memory import BYTES_PER_PARAMETER, FP32
from suite.predict.analytic.pipeline_schedule import micro_batches_in_flight
from suite.predict.simulation.autograd_tape import ParameterLeaf, Value
from suite.predict.simulation.memory_blocks import Category, MemoryBlock, StepPhase
from suite.predict.simulation.simulated_rank import SimulatedRank
from suite.predict.simulation.weight_versions import table_updates


class UnflushedStage:
    """Steps of a stage without flush, the last of them in the steady state.

    A micro-batch in flight keeps what its passes keep, and the message that it came with. What is sent is held until
    the next message over the same link; what will be received has its buffer as soon as that is asked for. The last
    stage holds its part of a shared table's gradient until the first one has gone through the same micro-batches.
    """

    def __init__(self, rank: SimulatedRank) -> None:
        self._rank, self._tape = rank, rank.tape
        (self._chunk,) = rank.chunks
        layout = rank.workload.layout
        self._micro_batches = accumulation(rank.workload.recipe, layout)
        self._last = rank.stage == layout.pipeline_stages - 1
        ahead = [
            micro_batches_in_flight(layout, micro_batches=self._micro_batches, stage=stage)
            for stage in range(layout.pipeline_stages)
        ]
        self._in_flight = int(ahead[rank.stage])
        self._shares_table = self._last and rank.workload.architecture.tied_embeddings
        # whether a message from the stage before is asked for as soon as a gradient is sent to it
        alike = layout.stage_replicas is None
        self._asks_early = alike and rank.stage > 0 and ahead[rank.stage - 1] > ahead[rank.stage]
        self._begun = self._ended = self._table_updates = 0
        self._passed: deque[tuple[Value | None, Value, _GivenBack]] = deque()
        self._arriving: MemoryBlock | None = None
        self._gradient: MemoryBlock | None = None
        self._sent: dict[str, MemoryBlock | None] = {}
        self._sums: deque[MemoryBlock] = deque()

    def run(self) -> None:
        """Run steps until every later one is alike; this and the rank hold what stays allocated, gradients too."""
        layout = self._rank.workload.layout
        ahead = sum(layout.stage_replicas) if layout.stage_replicas else 2 * layout.pipeline_stages
        steps = 2 + ceil_division(ahead + self._in_flight, self._micro_batches)
        for step in range(steps):
            self._step()
            if step < steps - 1:
                if self._shares_table:
                    self._sums.append(self._table_gradient())
                self._rank.gradients.clear()

    def _step(self) -> None:
        rank, tape, micro_batches = self._rank, self._tape, self._micro_batches
        tape.enter(StepPhase.FORWARD)
        last = self._ended + micro_batches + self._in_flight - 1
        given = {number: rank.batch() for number in range(self._begun, last)}
        for number in range(self._ended, self._ended + micro_batches):
            while self._begun < number + self._in_flight:
                tape.enter(StepPhase.FORWARD)
                returned = _GivenBack()
                x = None
                if rank.stage > 0:
                    block, self._arriving = self._arriving or self._received(), None
                    x = Value(block, ParameterLeaf(returned.deliver, is_weight=False))
                    del block
                output = self._chunk.forward(given[self._begun], x)
                self._passed.append((x, output, returned))
                if not self._last:
                    self._sent["after"] = output.block
                    if self._begun >= self._in_flight - 1:
                        self._gradient = self._received()
                        self._gradient.borrowed = True
                del x, output, returned
                self._begun += 1
            tape.enter(StepPhase.BACKWARD)
            self._backward()
            self._ended += 1
            made = 0
            if self._shares_table:
                made = table_updates(rank.workload.layout, self._ended, micro_batches=micro_batches)
            if made > self._table_updates:
                self._table_updates = made
                self._sums.popleft()

    def _backward(self) -> None:
        rank, tape = self._rank, self._tape
        x, output, returned = self._passed.popleft()
        gradient, self._gradient = self._gradient or tape.block(FP32), None
        rank.gradients.whole = False
        tape.backward(output, gradient)
        if rank.stage > 0:
            self._sent["before"] = None
            self._sent["before"] = returned.block
            if self._asks_early:
                self._arriving = self._received()
        del x, output, gradient

    def _received(self) -> MemoryBlock:
        block = self._tape.block(self._rank.hidden_bytes)
        block.move(Category.BUFFERS)
        return block

    def _table_gradient(self) -> MemoryBlock:
        architecture = self._rank.workload.architecture
        each = int(BYTES_PER_PARAMETER[self._rank.workload.recipe.precision].gradients)
        block = self._tape.block(each * architecture.padded_vocabulary * architecture.hidden)
        block.move(Category.GRADIENTS)
        return block


class _GivenBack:
    """The gradient of a received input."""

    def __init__(self) -> None:
        self.block: MemoryBlock | None = None

    def deliver(self, block: MemoryBlock) -> None:
        """Add the gradient of one reader, in place."""
        if self.block is None or self.block.borrowed:
            self.block = block
