"""Allocations of the Triton kernels of `kernels/`, each in place of several operators of PyTorch's.

Memory alone: their calls are not counted. Sums over rows that the programs of a kernel leave (at most a few MB) are
left out.
"""

from __future__ import annotations

from collections.abc import Callable

from suite.predict.analytic.memory import FP32
from suite.predict.simulation.autograd_tape import BackwardRule, ParameterLeaf, Value
from suite.predict.simulation.memory_blocks import MemoryBlock
from suite.predict.simulation.operators import Operators, Vectors

LEAST_CHUNK = 8192  # rows of the loss's chunks, kernels/linear_cross_entropy.py


def rows_of_a_chunk(rows: int, hidden: int, columns: int) -> int:
    """Rows of the hidden states whose logits exist at a time, as kernels/linear_cross_entropy.py derives them."""
    return max(1, min(max(-(-rows * hidden // columns), LEAST_CHUNK), -(-rows // 2)))


class TritonOperators(Operators):
    """Operators whose memory bandwidth limits them, by Triton kernels; products are PyTorch's."""

    def norm(
        self, x: Value, gain: ParameterLeaf | None, bias: ParameterLeaf | None, *, tokens: int, hidden: int
    ) -> Value:
        """Keeps its input, and mean and deviation in fp32; of an RMSNorm 1 / root alone."""
        if self._root_mean_square:
            return self.rms_norm(x, gain, tokens=tokens, hidden=hidden)
        out, statistics = self.block(tokens * hidden), self._statistics(tokens)
        rule = self._norm_rule(tokens * hidden, hidden, gradients=1, vectors=1 + (bias is not None))
        return Value(out, self.tape.record([x, *self._vectors(gain, bias)], [x.block, *statistics], rule))

    def rms_norm(self, x: Value, gain: ParameterLeaf | None, *, tokens: int, hidden: int) -> Value:
        """Keeps its input, and 1 / root in fp32."""
        out, factor = self.block(tokens * hidden), self.tape.block(FP32 * tokens)
        gains = self._vectors(gain)
        rule = self._norm_rule(tokens * hidden, hidden, gradients=1, vectors=len(gains))
        return Value(out, self.tape.record([x, *gains], [x.block, factor], rule))

    def norm_of_heads(self, x: Value, gain: ParameterLeaf, *, tokens: int, heads: int, head_dim: int) -> Value:
        """Norm of each head; several, which lie apart in the projection's output, are copied first."""
        if heads > 1:
            x = self.copied(x, elements=tokens * heads * head_dim)
        return self.rms_norm(x, gain, tokens=tokens * heads, hidden=head_dim)

    def both_normalised(
        self, x: Value, first: Vectors, second: Vectors, *, tokens: int, hidden: int
    ) -> tuple[Value, Callable[[], Value]]:
        """Both at once: keeps x, and one mean and deviation. RMSNorms are two."""
        if self._root_mean_square:
            return super().both_normalised(x, first, second, tokens=tokens, hidden=hidden)
        one, other = self.block(tokens * hidden), self.block(tokens * hidden)
        statistics = self._statistics(tokens)
        vectors = [*self._vectors(*first), *self._vectors(*second)]
        rule = self._norm_rule(tokens * hidden, hidden, gradients=1, vectors=len(vectors))
        node = self.tape.record([x, *vectors], [x.block, *statistics], rule, outputs=2)
        return Value(one, node), lambda: Value(other, node, 1)

    def added_and_normalised(
        self,
        x: Value,
        branch: Value,
        gain: ParameterLeaf | None,
        bias: ParameterLeaf | None,
        *,
        tokens: int,
        hidden: int,
    ) -> tuple[Value, Value]:
        """Keeps the sum. Backward: one gradient, of x and branch."""
        normal, total = self.block(tokens * hidden), self.block(tokens * hidden)
        statistics = self._statistics(tokens)
        inner = self._norm_rule(tokens * hidden, hidden, gradients=1, vectors=1 + (bias is not None))

        def rule(kept: list[MemoryBlock], gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            of_sum, *of_vectors = inner(kept, gradients)
            return [of_sum, of_sum, *of_vectors]

        node = self.tape.record([x, branch, *self._vectors(gain, bias)], [total, *statistics], rule, outputs=2)
        return Value(total, node, 1), Value(normal, node)

    def normalised_sum(
        self,
        x: Value,
        branch: Value,
        gain: ParameterLeaf | None,
        bias: ParameterLeaf | None,
        *,
        tokens: int,
        hidden: int,
    ) -> Value:
        """Norm of alpha x + branch: keeps both. Backward: a gradient for each."""
        out, statistics = self.block(tokens * hidden), self._statistics(tokens)
        rule = self._norm_rule(tokens * hidden, hidden, gradients=2, vectors=1 + (bias is not None))
        inputs = [x, branch, *self._vectors(gain, bias)]
        return Value(out, self.tape.record(inputs, [x.block, branch.block, *statistics], rule))

    def relu_squared(self, x: Value, *, elements: int) -> Value:
        """Keeps its input."""
        return self.fast_gelu(x, elements=elements)

    def fast_gelu(self, x: Value, *, elements: int) -> Value:
        """Keeps its input."""
        node = self.tape.record([x], [x.block], self._passing(elements))
        return Value(self.block(elements), node)

    def gated(self, x: Value, operation: str, *, elements: int) -> Value:
        """Keeps its input, 2 `elements`."""
        assert operation
        node = self.tape.record([x], [x.block], self._passing(2 * elements))
        return Value(self.block(elements), node)

    def rotated_pair(
        self, q: Value, k: Value, turn: Value, *, elements: tuple[int, int], turned: tuple[int, int], turns: int
    ) -> tuple[Value, Value]:
        """Queries and keys at once: keeps the fp32 cosines and sines. Those of different sizes turn as PyTorch's."""
        assert turned <= elements
        if elements[0] * turned[1] != elements[1] * turned[0]:
            return super().rotated_pair(q, k, turn, elements=elements, turned=turned, turns=turns)

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            return [self.block(size) for size in elements]

        q_out, k_out = (self.block(size) for size in elements)
        node = self.tape.record([q, k], [turn.block], rule, outputs=2)
        return Value(q_out, node), Value(k_out, node, 1)

    def softmax(self, scores: Value, *, elements: int, length: int) -> Value:
        """Scaled, masked and rounded in one kernel: keeps its output, in the scores' dtype."""
        assert elements % length == 0
        out = self.block(elements)
        return Value(out, self.tape.record([scores], [out], self._passing(elements)))

    def fused_loss(
        self, x: Value, weight: ParameterLeaf, targets: MemoryBlock, *, tokens: int, columns: int, rows: int
    ) -> Value:
        """Cross-entropy of which a chunk of the tokens has logits at a time: keeps the gradients of input and weight.

        With M tokens, D columns, V rows, C rows of a chunk and e bytes of an element:
            4 M + e C V          losses, logits, which become their gradient
            e M D + 4 V D        gradients of the hidden states, of the weight in fp32
            e V D                in 16 bit too: a chunk's share of the latter, then itself
        """
        tape = self.tape
        losses = tape.block(FP32 * tokens)
        logits = self.block(min(rows_of_a_chunk(tokens, columns, rows), tokens) * rows)
        of_x, sums = self.block(tokens * columns), tape.block(FP32 * rows * columns)
        of_weight = self.block(rows * columns) if self.half else sums
        del losses, logits, sums
        assert targets
        loss = tape.block(FP32)
        kept = [of_x, of_weight]
        del of_x, of_weight
        return Value(loss, tape.record([x, self.weight(weight)], kept, lambda blocks, _: list(blocks)))

    def _statistics(self, tokens: int) -> list[MemoryBlock]:
        return [self.tape.block(FP32 * tokens) for _ in range(1 if self._root_mean_square else 2)]

    def _vectors(self, *leaves: ParameterLeaf | None) -> list[Value]:
        return [self.weight(leaf) for leaf in leaves if leaf is not None]

    def _norm_rule(self, elements: int, hidden: int, *, gradients: int, vectors: int) -> BackwardRule:
        """`gradients` of hidden states, and those of gains and biases."""

        def rule(_kept: list[MemoryBlock], _given: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            of_states = [self.block(elements) for _ in range(gradients)]
            return [*of_states, *(self.block(hidden) for _ in range(vectors))]

        return rule
