"""The memory of micro-batches as the model is given them."""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.run import Mask, Workload
from suite.predict.simulation.attention_inputs import INT64
from suite.predict.simulation.autograd_tape import Tape
from suite.predict.simulation.memory_blocks import MemoryBlock


class BatchBlocks(NamedTuple):
    """Micro-batches as the model is given them, int64; `tokens` and `targets` may share storage."""

    tokens: MemoryBlock
    targets: MemoryBlock
    others: tuple[MemoryBlock, ...]


def batch(tape: Tape, workload: Workload, *, samples: int, cuda: bool) -> BatchBlocks:
    """The tokens, one more a sample than positions, so that they are the targets too; on a GPU each a copy of its own.

    With packed documents the document of each token too. With a prefix: tokens, targets, positions, and the first and
    last position that a token is seen from. Of context-parallel ranks each has copies of its positions.
    """
    architecture, layout = workload.architecture, workload.layout
    size = INT64 * samples * architecture.sequence // layout.context_parallel
    if architecture.mask is Mask.PREFIX:
        return BatchBlocks(tape.block(size), tape.block(size), (tape.block(size), tape.block(2 * size)))
    documents = (tape.block(size),) if architecture.mask is Mask.DOCUMENTS else ()
    if cuda or layout.context_parallel > 1:
        return BatchBlocks(tape.block(size), tape.block(size), documents)
    both = tape.block(INT64 * samples * (architecture.sequence + 1))
    return BatchBlocks(both, both, documents)
