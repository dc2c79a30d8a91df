"""Attention: parts of the fused projection, rotation, scores, softmax, context; views and padding of latent ones."""

from __future__ import annotations

from suite.predict.analytic.cuda_temporaries import GENERATOR_BYTES, attention_workspace_bytes
from suite.predict.analytic.memory import FP32
from suite.predict.simulation.autograd_tape import Value
from suite.predict.simulation.host_calls import (
    CONTEXT,
    FUSED_ATTENTION,
    HEADS,
    ONE_OPERATOR_SOFTMAX,
    PACKED_ATTENTION,
    PADDED_HEADS,
    ROTATION,
    SCORES,
    SHARED_KEY,
    SOFTMAX,
    SOFTMAX_OF_HALF,
    SPLIT_GROUPS,
    SPLIT_HEADS,
    SPLIT_PROJECTION,
    SPLIT_STATE,
)
from suite.predict.simulation.memory_blocks import MemoryBlock
from suite.predict.simulation.operator_base import OperatorBase


class AttentionOperators(OperatorBase):
    """Operators between the two matrices of attention."""

    def parts(self, x: Value, *, parts: int, elements: int) -> list[Value]:
        """Views of the `parts` of a fused projection's output. Backward stacks their gradients, then copies them into
        the projection's order."""

        def rule(_kept: list[MemoryBlock], gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("scale", parts * elements)
            self._count("permuted", parts * elements)
            self._host_backward(SPLIT_PROJECTION)
            stacked = self.block(parts * elements)
            gradients.clear()
            copied = self.block(parts * elements)
            del stacked
            return [copied]

        node = self.tape.record([x], [], rule, outputs=parts)
        self._host_forward(SPLIT_PROJECTION)
        return [Value(x.block, node, part) for part in range(parts)]

    def groups(self, x: Value, *, elements: int) -> list[Value]:
        """Views of the queries, keys and values of a fused projection's output, group by group. Backward joins their
        gradients, then copies them into the projection's order."""

        def rule(_kept: list[MemoryBlock], gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("scale", elements)
            self._count("permuted", elements)
            self._host_backward(SPLIT_GROUPS)
            joined = self.block(elements)
            gradients.clear()
            copied = self.block(elements)
            del joined
            return [copied]

        node = self.tape.record([x], [], rule, outputs=3)
        self._host_forward(SPLIT_GROUPS)
        return [Value(x.block, node, part) for part in range(3)]

    def rotated(self, x: Value, turn: Value, *, elements: int, turned: int, turns: int) -> Value:
        """`turned` of the elements rotated, the others passed: keeps the cosines and sines, in the dtype.

        Forward: turned by the cosine; halves swapped, one of them negated; by the sine; the sum; joined with the rest.
        Backward: back through both products; each slice of the input has a whole gradient of its own, which are added.

        Args:
            turns: cosines and sines.
        """

        def rule(kept: list[MemoryBlock], gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("scale", turned, times=4)
            self._count("scale", turned // 2)
            self._count("scale", elements, times=2)
            self._count("add", elements)
            self._host_backward(ROTATION)
            by_sine = self.block(turned)
            negated = self.block(turned // 2)
            by_cosine = self.block(turned)
            kept.clear()
            swapped = self.block(turned)
            del by_sine, negated, swapped
            of_input = self.block(elements)
            gradients.clear()
            of_turned = self.block(elements)
            del by_cosine, of_turned
            return [of_input]

        if self.half:
            self._count("from_fp32", turns)
        self._count("scale", turned, times=3)
        self._count("scale", turned // 2)
        self._count("add", turned)
        self._count("scale", elements)
        self._host_forward(ROTATION)
        factors = self.block(turns) if self.half else turn.block
        by_cosine = self.block(turned)
        negated = self.block(turned // 2)
        swapped = self.block(turned)
        del negated
        node = self.tape.record([x], [factors], rule)
        by_sine = self.block(turned)
        del swapped
        sums = self.block(turned)
        del by_cosine, by_sine
        joined = self.block(elements)
        del sums
        return Value(joined, node)

    def scores(
        self, q: Value, k: Value, *, queries: int, keys: int, elements: int, sizes: tuple[int, int, int]
    ) -> Value:
        """q k^T: keeps both, of `queries` and `keys` elements; `sizes` are samples times heads, sequence, head size.

        Assumed of heads that share keys: their one product takes as long as one of each.
        """

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("batched_product", *sizes, variant="TN")
            self._count("batched_product", *sizes, variant="NN")
            self._host_backward(SCORES)
            of_k = self._product(keys, queries, elements)
            return [self._product(queries, elements, keys), of_k]

        node = self.tape.record([q, k], [q.block, k.block], rule)
        self._count("batched_product", *sizes, variant="NT")
        self._host_forward(SCORES)
        return Value(self._product(elements, queries, keys), node)

    def softmax(self, scores: Value, *, elements: int, length: int) -> Value:
        """Softmax in fp32 of the scaled scores and their bias, rounded to the dtype: keeps the fp32 result.

        Each step has a block of its own: wide scores, scaled, biased, softmax. Backward, a GPU multiplies gradient and
        softmax first (aten/src/ATen/native/cuda/SoftMax.cu, softmax_backward_cuda_out).
        """
        tape, size = self.tape, FP32 * elements

        def rule(kept: list[MemoryBlock], gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            if self.half:
                self._count("to_fp32", elements)
                self._count("from_fp32", elements)
                gradients[:] = [tape.block(size)]
            self._count("softmax", elements // length, length, variant="backward", dtype="fp32")
            if self._one_operator:
                self._host_backward(ONE_OPERATOR_SOFTMAX)
                of_scores = tape.block(size)
                self._in_passing(size)
                kept.clear()
                return [self.block(elements) if self.half else of_scores]
            self._count("scale", elements, dtype="fp32")
            self._host_backward(SOFTMAX_OF_HALF if self.half else SOFTMAX)
            of_softmax = tape.block(size)
            self._in_passing(size)
            gradients.clear()
            kept.clear()
            of_scores = tape.block(size)
            del of_softmax
            return [self.block(elements) if self.half else of_scores]

        if self.half:
            self._count("to_fp32", elements)
            self._count("from_fp32", elements)
        if not self._one_operator:
            self._count("scale", elements, dtype="fp32")
            self._count("add", elements, dtype="fp32")
        self._count("softmax", elements // length, length, dtype="fp32")
        wide = tape.block(size) if self.half else scores.block
        if self._in_place or self._one_operator:
            softmax = tape.block(size)
            del wide
        else:
            scaled = tape.block(size)
            del wide
            biased = tape.block(size)
            del scaled
            softmax = tape.block(size)
            del biased
        node = tape.record([scores], [softmax], rule)
        return Value(self.block(elements) if self.half else softmax, node)

    def context(
        self,
        weights: Value,
        v: Value,
        *,
        scores: int,
        queries: int,
        values: int,
        strided: bool,
        sizes: tuple[int, int, int],
    ) -> Value:
        """Weights times values, a result of `queries` elements: keeps both. Backward copies a gradient that does not
        lie head by head (`strided`)."""

        def rule(_kept: list[MemoryBlock], gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            if strided:
                self._count("permuted", queries)
                gradients[:] = [self.block(queries)]
            self._count("batched_product", *sizes, variant="TN")
            self._count("batched_product", *sizes, variant="NT")
            self._host_backward(CONTEXT)
            of_v = self._product(values, scores, queries)
            return [self._product(scores, queries, values), of_v]

        node = self.tape.record([weights, v], [weights.block, v.block], rule)
        self._count("batched_product", *sizes, variant="NN")
        self._host_forward(CONTEXT)
        return Value(self._product(queries, scores, values), node)

    def attention(
        self, q: Value, k: Value, v: Value, mask: MemoryBlock, *, queries: int, keys: int, sizes: tuple[int, int, int]
    ) -> Value:
        """Fused attention: keeps queries, keys, values, mask, its output, an fp32 log-sum-exp a row of scores, and on a
        GPU the random generator's seed and offset.

        Backward: the three gradients; on a GPU the sum of the queries' gradients, and a product a row, in fp32. What a
        CPU's kernel holds of the scores in passing is left out: a few blocks for each of its threads, at most 1.6 MB.
        Source: aten/src/ATen/native/cpu/FlashSdpaBackend.cpp; `attention_workspace_bytes`.
        """
        tape = self.tape
        rows = queries // sizes[2]

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("attention", *sizes, variant="backward")
            self._host_backward(FUSED_ATTENTION)
            of_inputs: list[MemoryBlock | None] = [self.block(size) for size in (queries, keys, keys)]
            self._in_passing(
                attention_workspace_bytes(self._sdpa_backend, heads=sizes[0], length=sizes[1], head_dim=sizes[2])
            )
            return of_inputs

        self._count("attention", *sizes)
        self._host_forward(FUSED_ATTENTION)
        out, logarithms = self.block(queries), tape.block(FP32 * rows)
        generator = [tape.block(size) for size in GENERATOR_BYTES[self._sdpa_backend]] if self._cuda else []
        kept = [q.block, k.block, v.block, mask, out, logarithms, *generator]
        return Value(out, tape.record([q, k, v], kept, rule))

    def packed_attention(self, x: Value, *, elements: int, sizes: tuple[int, int, int]) -> Value:
        """Fused attention over a fused projection's output, of 3 `elements`, on a GPU: keeps that, its output and an
        fp32 log-sum-exp a row of scores. Backward: one gradient."""
        workspace = attention_workspace_bytes(self._sdpa_backend, heads=sizes[0], length=sizes[1], head_dim=sizes[2])

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("attention", *sizes, variant="backward")
            self._host_backward(PACKED_ATTENTION)
            packed = self.block(3 * elements)
            self._in_passing(workspace)
            return [packed]

        self._count("attention", *sizes)
        self._host_forward(PACKED_ATTENTION)
        out, logarithms = self.block(elements), self.tape.block(FP32 * elements // sizes[2])
        return Value(out, self.tape.record([x], [x.block, out, logarithms], rule))


class LatentOperators(OperatorBase):
    """Views of expanded heads, and a key that heads share."""

    def heads(self, x: Value, *, elements: int) -> Value:
        """A view of a projection's output, head by head. Backward copies its gradient into the projection's order."""

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("permuted", elements)
            self._host_backward(HEADS)
            return [self.block(elements)]

        self._host_forward(HEADS)
        return Value(x.block, self.tape.record([x], [], rule))

    def split_heads(self, x: Value, *, elements: int) -> tuple[Value, Value]:
        """Two views of a projection's output, each a part of every head. Backward joins their gradients, then copies
        them into the projection's order."""

        def rule(_kept: list[MemoryBlock], gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("scale", elements)
            self._count("permuted", elements)
            self._host_backward(SPLIT_HEADS)
            joined = self.block(elements)
            gradients.clear()
            copied = self.block(elements)
            del joined
            return [copied]

        self._host_forward(SPLIT_HEADS)
        node = self.tape.record([x], [], rule, outputs=2)
        return Value(x.block, node), Value(x.block, node, 1)

    def split_state(self, x: Value, *, elements: int) -> tuple[Value, Value]:
        """Two views of a compressed state, next to each other. Backward joins their gradients."""

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("scale", elements)
            self._host_backward(SPLIT_STATE)
            return [self.block(elements)]

        self._host_forward(SPLIT_STATE)
        node = self.tape.record([x], [], rule, outputs=2)
        return Value(x.block, node), Value(x.block, node, 1)

    def with_shared_key(self, shared: Value, own: Value, *, of_shared: int, elements: int) -> Value:
        """Keys of every head: what all share, of so many elements, in front of each one's own. Nothing is kept.

        Backward: a sum over heads for what they share; the others' gradient is a part of the keys'.
        """

        def rule(_kept: list[MemoryBlock], gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("scale", of_shared)
            self._host_backward(SHARED_KEY)
            return [self.block(of_shared), gradients[0]]

        self._count("scale", elements)
        self._host_forward(SHARED_KEY)
        node = self.tape.record([shared, own], [], rule)
        return Value(self.block(elements), node)

    def padded(self, x: Value, *, elements: int, padded: int) -> Value:
        """x with zeros up to `padded` elements: itself where it has as many. Nothing is kept."""
        if padded == elements:
            return x

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("scale", elements)
            self._host_backward(PADDED_HEADS)
            return [self.block(elements)]

        self._count("scale", padded)
        return Value(self.block(padded), self.tape.record([x], [], rule))

    def narrowed(self, x: Value, *, elements: int, padded: int) -> Value:
        """A view of x without what was padded. Backward: a gradient of all of it."""
        if padded == elements:
            return x

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("scale", padded)
            self._host_backward(PADDED_HEADS)
            return [self.block(padded)]

        return Value(x.block, self.tape.record([x], [], rule))
