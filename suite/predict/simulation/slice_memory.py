"""Memory of a slice while its parts run, each with a graph of its own."""

from __future__ import annotations

from suite.predict.analytic.memory import FP32
from suite.predict.simulation.autograd_tape import ParameterLeaf, Value
from suite.predict.simulation.memory_blocks import Category, MemoryBlock, StepPhase
from suite.predict.simulation.pipeline_memory import ExpertRows
from suite.predict.simulation.simulated_rank import SimulatedRank


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
