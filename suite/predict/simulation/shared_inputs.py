"""Inputs that all layers share: micro-batches, the bias of attention's scores, the rotation of queries and keys."""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.run import Architecture, Mask, Position, Workload
from suite.predict.analytic.memory import FP32
from suite.predict.simulation.autograd_tape import Tape, Value
from suite.predict.simulation.decoder_parameters import ChunkSizes
from suite.predict.simulation.host_calls import ANGLES, ANGLES_PASSES, MASK, MASK_PASSES
from suite.predict.simulation.memory_blocks import MemoryBlock

INT64 = 8


class AttentionInputs:
    """As suite/execute/model/position.py makes them, once for all layers of a micro-batch."""

    def __init__(self, tape: Tape, architecture: Architecture, sizes: ChunkSizes) -> None:
        self.tape, self.architecture, self.sizes = tape, architecture, sizes

    def score_bias(self) -> Value:
        """The penalty of distance and the mask, fp32; on the way there int64 distances and two copies.

        A window has a comparison more, and what either of both leaves out; documents likewise, of every sample.
        """
        square, heads = self.sizes.length * self.sizes.keys_length, 1
        self._count_mask(square * (self.sizes.heads if self.architecture.position is Position.ALIBI else 1))
        if self.architecture.mask is Mask.PREFIX:
            return self._prefix_bias(self.sizes.samples * square)
        distance, zero = self.tape.block(INT64 * square), self.tape.block(FP32 * square)
        penalty = zero
        if self.architecture.position is Position.ALIBI:
            heads = self.sizes.heads
            wide = self.tape.block(FP32 * square)
            penalty = self.tape.block(FP32 * heads * square)
            del wide
        del zero
        masked = self.tape.block(square)
        if (self.architecture.sliding_window or self.sizes.keys_length) < self.sizes.keys_length:
            self.tape.count("scale", square, variant="forward", times=2)
            far = self.tape.block(square)
            masked = self.tape.block(square)
            del far
        if self.architecture.mask is Mask.DOCUMENTS:
            self._count_mask((self.sizes.samples - 1) * square)
            square = self.sizes.samples * square
            apart = self.tape.block(square)
            masked = self.tape.block(square)
            del apart
        bias = self.tape.block(FP32 * heads * square)
        del masked, distance, penalty
        return Value(bias)

    def _prefix_bias(self, elements: int) -> Value:
        """The mask of each sample, fp32, made from bytes: two comparisons, both of them, and where they are not."""
        self._count_mask(elements)
        seen = self.tape.block(elements)
        zero, unseen = self.tape.block(FP32 * elements), self.tape.block(elements)
        bias = self.tape.block(FP32 * elements)
        del seen, zero, unseen
        return Value(bias)

    def _count_mask(self, elements: int) -> None:
        """Distances or comparisons, penalties, -inf: operators over all elements, and small ones before."""
        self.tape.count("scale", elements, variant="forward", times=len(MASK_PASSES))
        self.tape.count("call", times=len(MASK))

    def rotation(self) -> Value | None:
        """Cosines and sines, fp32; None for other than rotary positions. Assumed: their scaling takes no time."""
        if not self.architecture.rotary_dim:
            return None
        self.tape.count("scale", self.turns // 2, variant="forward", times=len(ANGLES_PASSES))
        self.tape.count("call", times=len(ANGLES))
        return Value(self.tape.block(FP32 * self.turns))

    @property
    def turns(self) -> int:
        """Cosines and sines of every position; of every sample's own where they differ."""
        assert self.architecture.rotary_dim is not None
        positions = self.sizes.tokens if self.architecture.mask is Mask.PREFIX else self.sizes.length
        return 2 * positions * self.architecture.rotary_dim


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
