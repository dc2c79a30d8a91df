"""Embedding and loss: what has a row for each entry of the vocabulary."""

from __future__ import annotations

from suite.predict.analytic.cuda_temporaries import embedding_backward_bytes
from suite.predict.analytic.memory import FP32
from suite.predict.simulation.autograd_tape import ParameterLeaf, Value
from suite.predict.simulation.host_calls import CHUNKED_LOSS, EMBEDDING, LOSS, LOSS_CHUNK, POSITIONS
from suite.predict.simulation.memory_blocks import MemoryBlock
from suite.predict.simulation.operator_base import OperatorBase


class LossOperators(OperatorBase):
    """The first and the last operators of the decoder."""

    def embedding(
        self, indices: MemoryBlock, weight: ParameterLeaf, *, tokens: int, rows: int, hidden: int, ranks: int = 1
    ) -> Value:
        """Keeps the indices. Backward: a table of zeros, and the gradients added to the rows that were read.

        A GPU sorts the indices first, and adds up parts of rows. Where `ranks` have so many rows each, DTensor's table
        has those of all of them, and this rank's are copied from it.
        """

        def rule(_kept: list[MemoryBlock], gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("embedding", tokens, hidden, variant="backward")
            self._count("zeros", max(0, rows - tokens) * hidden)
            self._host_backward(EMBEDDING)
            indices, partial = embedding_backward_bytes(tokens, rows, hidden) if self._cuda else (0, 0)
            held = tape.block(indices)
            table = self.block(ranks * rows * hidden)
            self._in_passing(partial)
            del held
            gradients.clear()
            return [self.block(rows * hidden) if ranks > 1 else table]

        tape = self.tape

        self._count("embedding", tokens, hidden)
        self._host_forward(EMBEDDING)
        node = self.tape.record([self.weight(weight)], [indices], rule)
        return Value(self.block(tokens * hidden), node)

    def positions(self, table: ParameterLeaf, *, rows: int, read: int, hidden: int) -> Value:
        """A view of `read` of the `rows` positions of a table."""

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("scale", rows * hidden)
            self._host_backward(POSITIONS)
            summed = self.block(read * hidden)
            of_table = self.block(rows * hidden)
            del summed
            return [of_table]

        weight = self.weight(table)
        return Value(weight.block, self.tape.record([weight], [], rule))

    def chunked_loss(
        self,
        x: Value,
        weight: ParameterLeaf,
        targets: MemoryBlock,
        *,
        tokens: int,
        columns: int,
        rows: int,
        chunks: int,
    ) -> Value:
        """Cross-entropy of which a part of the tokens has logits at a time: keeps the gradients of input and weight.

        With N tokens in c chunks of C = ceil(N / c), and e bytes of an element:
            e N D + e V D    gradients of the hidden states and of the weight, from the first chunk on
            4 C V            fp32 logits, which become their gradient where they lie
            e C V, e V D     in 16 bit too: logits and their gradient, and a chunk's share of the weight's
        In 16 bit on CUDA the weight's gradient is 4 V D until the last chunk, without shares of chunks, then e V D.
        """
        tape, most = self.tape, -(-tokens // chunks)
        adds_in_fp32 = self.half and self._cuda

        def rule(kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("scale", tokens * columns)
            self._count("scale", rows * columns)
            self._host_backward(CHUNKED_LOSS)
            return list(kept)

        of_x = self.block(tokens * columns)
        of_weight = tape.block(FP32 * rows * columns) if adds_in_fp32 else self.block(rows * columns)
        total = tape.block(2 * FP32)
        self._count("zeros", rows * columns, dtype="fp32")
        for first in range(0, tokens, most):
            size = min(most, tokens - first)
            self._count("product", size, rows, columns, variant="NT")
            self._count("product", size, columns, rows, variant="NN")
            self._count("product", rows, columns, size, variant="TN")
            self._count_loss_of_chunk(size, rows)
            half = self._product(size * rows, size * columns, rows * columns) if self.half else None
            logits = tape.block(FP32 * size * rows)
            del half
            gradient = self.block(size * rows) if self.half else logits
            del logits
            if self.half:
                self._product(size * columns, size * rows, rows * columns)
            if self.half and not adds_in_fp32:
                self._product(rows * columns, size * rows, size * columns)
            del gradient
        assert targets
        if adds_in_fp32:
            self._count("from_fp32", rows * columns)
            of_weight = self.block(rows * columns)
        loss = tape.block(FP32)
        del total
        return Value(loss, tape.record([x, self.weight(weight)], [of_x, of_weight], rule))

    def _count_loss_of_chunk(self, tokens: int, rows: int) -> None:
        """Softmax, loss and gradient of the logits; compiled they are read twice and written once, as by a sum."""
        if self._compiled_loss:
            self._count("add", tokens * rows)
            return
        self._count("cross_entropy", tokens, rows, dtype="fp32")
        self._count("scale", tokens * rows, dtype="fp32", times=2)
        if self.half:
            self._count("to_fp32", tokens * rows)
            self._count("from_fp32", tokens * rows)
        self.tape.count("call", times=len(LOSS_CHUNK))

    def loss(self, logits: Value, targets: MemoryBlock, *, tokens: int, rows: int) -> Value:
        """Cross-entropy in fp32: keeps the logarithms of the softmax, the targets, and their total weight.

        Backward: the gradient of the logarithms, then of the fp32 logits, then rounded.
        Of logits whose vocabulary is split: less their maximum, exponentials of that, logarithms; backward -1 at the
        targets, exponentials, their sum, and that times the gradient.
        Source: torch/distributed/tensor/parallel/loss.py.
        """
        tape, size = self.tape, FP32 * tokens * rows

        def rule(kept: list[MemoryBlock], gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("cross_entropy", tokens, rows, variant="backward", dtype="fp32")
            if self.half:
                self._count("from_fp32", tokens * rows)
            self._host_backward(LOSS)
            gradients[:] = [tape.block(size)]
            if self.ranks > 1:
                exponentials = tape.block(size)
                sums = tape.block(size)
                del exponentials
            of_logits = tape.block(size)
            if self.ranks > 1:
                del sums
            gradients.clear()
            kept.clear()
            return [self.block(tokens * rows) if self.half else of_logits]

        if self.half:
            self._count("to_fp32", tokens * rows)
        self._count("cross_entropy", tokens, rows, dtype="fp32")
        self._host_forward(LOSS)
        wide = tape.block(size) if self.half else logits.block
        if self.ranks > 1:
            shifted = tape.block(size)
            del wide
            exponentials = tape.block(size)
            del exponentials
            wide = shifted
            del shifted
        logarithms = tape.block(size)
        del wide
        loss, weight = tape.block(FP32), tape.block(FP32)
        return Value(loss, tape.record([logits], [logarithms, targets, weight], rule))
