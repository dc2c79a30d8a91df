"""Allocations, kept tensors, gradients and computation of each operator of the executed model.

Seen in PyTorch 2.13 by its profiler's memory events and operators on the CPU; tools/autograd/derivatives.yaml says what
is kept. `host_calls` has the views and nodes of each line of suite/execute/model.
"""

from __future__ import annotations

from collections.abc import Callable

from suite.predict.analytic.cuda_temporaries import column_sum_buffer_bytes
from suite.predict.analytic.memory import FP32
from suite.predict.simulation.attention_operators import AttentionOperators, LatentOperators
from suite.predict.simulation.autograd_tape import ParameterLeaf, Value
from suite.predict.simulation.element_wise_operators import ElementWiseOperators
from suite.predict.simulation.epilogue_operators import EpilogueOperators
from suite.predict.simulation.host_calls import LINEAR
from suite.predict.simulation.loss_operators import LossOperators
from suite.predict.simulation.memory_blocks import MemoryBlock
from suite.predict.simulation.norm_operators import NormOperators
from suite.predict.simulation.operator_base import OperatorBase

Vectors = tuple[ParameterLeaf | None, ParameterLeaf | None]  # gain and bias of a norm


Factor = tuple[MemoryBlock, MemoryBlock]  # in 8 bits, and its scale


class ScaledOperators(OperatorBase):
    """Linear layers of suite/execute/model/scaled_products.py: factors in 8 bits, with blocks in place of tensors.

    A CPU widens them, computes in fp32 and rounds, in blocks of their own. Memory alone: their calls are not counted,
    as no calibration times them.
    """

    def scaled_linear(
        self, x: Value, weight: ParameterLeaf, bias: ParameterLeaf | None, *, tokens: int, columns: int, rows: int
    ) -> Value:
        """Keeps its input in 8 bits, and the input's scale. Backward: gradients of input, weight and bias."""

        def rule(kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            gradient = self._cast(tokens * rows)
            transposed = self._transposed(self._cast(rows * columns), rows * columns)
            of_input = self._scaled_product(tokens * columns, tokens * rows, rows * columns)
            del transposed
            first = self._transposed(gradient, tokens * rows)
            second = self._transposed((kept[0], kept[1]), tokens * columns)
            of_weight = self._scaled_product(rows * columns, tokens * rows, tokens * columns)
            del first, second
            if bias is None:
                return [of_input, of_weight]
            of_bias = self.block(rows)
            self._in_passing(*column_sum_buffer_bytes(tokens, rows, self._gpu))
            return [of_input, of_weight, of_bias]

        factor = self._cast(tokens * columns)
        other = self._cast(rows * columns)
        out = self._scaled_product(tokens * rows, tokens * columns, rows * columns)
        del other
        inputs = [x, self.weight(weight), *([self.weight(bias)] if bias else [])]
        return Value(out, self.tape.record(inputs, [*factor], rule))

    def _cast(self, elements: int) -> Factor:
        """The quotient in fp32, then its rounding; a CPU widens what is in 16 bits first, for the norm too."""
        scale = self.tape.block(FP32)
        widens = self.half and not self._cuda
        if widens:
            self.tape.block(FP32 * elements)
        wide = [self.tape.block(FP32 * elements) for _ in range(1 + widens)]
        del wide[1:]
        return self.tape.block(elements), scale

    def _transposed(self, factor: Factor, elements: int) -> Factor:
        return self.tape.block(elements), factor[1]

    def _scaled_product(self, elements: int, *factors: int) -> MemoryBlock:
        """The block of a product; a CPU multiplies both factors in fp32, each widened and then scaled."""
        out = self.block(elements)
        if not self._cuda:
            wide: list[MemoryBlock] = []
            for factor in factors:
                narrow = self.tape.block(FP32 * factor)
                wide.append(self.tape.block(FP32 * factor))
                del narrow
            product = self.tape.block(FP32 * elements)
            if self.half:
                self.block(elements)
            del product, wide
        return out


class Operators(
    AttentionOperators,
    LatentOperators,
    ElementWiseOperators,
    NormOperators,
    LossOperators,
    ScaledOperators,
    EpilogueOperators,
):
    """All operators of the decoder; here linear layers, whole or split over the tensor-parallel ranks, and what Triton
    has one kernel for."""

    def both_normalised(
        self, x: Value, first: Vectors, second: Vectors, *, tokens: int, hidden: int
    ) -> tuple[Value, Callable[[], Value]]:
        """The norm of x, and a function that returns another one when it is needed."""
        return self.norm(x, *first, tokens=tokens, hidden=hidden), lambda: self.norm(
            x, *second, tokens=tokens, hidden=hidden
        )

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
        """The residual stream x + branch, and its norm."""
        total = self.sum(x, branch, elements=tokens * hidden, into_y=True)
        return total, self.norm(total, gain, bias, tokens=tokens, hidden=hidden)

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
        """LayerNorm of alpha x + branch."""
        elements = tokens * hidden
        total = self.sum(self.scaled(x, elements=elements), branch, elements=elements)
        return self.norm(total, gain, bias, tokens=tokens, hidden=hidden)

    def rotated_pair(
        self, q: Value, k: Value, turn: Value, *, elements: tuple[int, int], turned: tuple[int, int], turns: int
    ) -> tuple[Value, Value]:
        """Queries and keys at their positions; `elements` of each, and how many of them are `turned`."""
        first = self.rotated(q, turn, elements=elements[0], turned=turned[0], turns=turns)
        return first, self.rotated(k, turn, elements=elements[1], turned=turned[1], turns=turns)

    def linear(
        self,
        x: Value,
        weight: ParameterLeaf,
        bias: ParameterLeaf | None,
        *,
        tokens: int,
        columns: int,
        rows: int,
        of_layer: bool = True,
    ) -> Value:
        """Keeps its input. Backward: gradients of input, weight and bias; without bias the weight's comes first.

        Args:
            of_layer: whether it is a layer's, which may multiply in a format of its own.
        """
        if of_layer and self.scales_products:
            return self.scaled_linear(x, weight, bias, tokens=tokens, columns=columns, rows=rows)
        if of_layer and self.by_cublaslt(has_bias=bias is not None, columns=columns, rows=rows):
            return self.epilogue_linear(x, weight, bias, tokens=tokens, columns=columns, rows=rows)

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("product", tokens, columns, rows, variant="NN")
            self._count("product", rows, columns, tokens, variant="TN")
            self._host_backward(LINEAR)
            if bias:
                self._count("column_sum", tokens, rows)
            products = {
                "input": (self.tape.of_inputs, (tokens * columns, tokens * rows, rows * columns)),
                "weight": (self.tape.of_weights, (rows * columns, tokens * rows, tokens * columns)),
            }
            order = ("input", "weight") if bias else ("weight", "input")
            found = {name: self._product(*sizes) for name in order for wanted, sizes in [products[name]] if wanted}
            gradients = [found.get("input"), found.get("weight")]
            if bias:
                gradients.append(self.block(rows) if self.tape.of_weights else None)
                self._in_passing(*column_sum_buffer_bytes(tokens, rows, self._gpu))
            return gradients

        inputs = [x, self.weight(weight), *([self.weight(bias)] if bias else [])]
        node = self.tape.record(inputs, [x.block], rule)
        self._count("product", tokens, rows, columns, variant="NT")
        if bias and not self._cuda:  # a GPU's kernels add it to the product as they write that
            self._count("bias", tokens * rows)
        self._host_forward(LINEAR)
        return Value(self._product(tokens * rows, tokens * columns, rows * columns, *([rows] if bias else [])), node)

    def for_columns(self, x: Value, *, elements: int) -> Value:
        """The input of a matrix whose columns are split, whole on every rank."""
        if self.ranks == 1 or not self._by_sequence:
            return self.summed_back(x, elements=elements)
        node = self.tape.record([x], [], lambda _, gradients: [self._scattered(elements, gradients)])
        return Value(self._gathered(elements), node)

    def summed_back(self, x: Value, *, elements: int) -> Value:
        """A leaf that every rank has whole, and whose gradients the ranks sum."""
        if self.ranks == 1:
            return x
        return Value(x.block, self.tape.record([x], [], self._passing(elements)))

    def of_rows(self, x: Value, *, elements: int) -> Value:
        """The sum over ranks of what a matrix whose rows are split gives; with sequence parallelism the rank's part."""
        if self.ranks == 1:
            return x
        if not self._by_sequence:
            return self.copied(x, elements=elements)
        node = self.tape.record([x], [], lambda _, _gradients: [self._gathered(elements)])
        return Value(self._scattered(elements, []), node)

    def of_all_positions(self, x: Value, *, elements: int, ranks: int, copies: bool, joins: bool) -> Value:
        """Keys or values of all context-parallel ranks, of a rank's `elements`. Backward: a rank's share of the sums.

        Args:
            copies: whether the rank's own do not lie one after the other in memory.
            joins: whether those of all ranks do not, as they come.
        """
        whole = ranks * elements

        def rule(_kept: list[MemoryBlock], gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("permuted", whole)
            message = self.block(whole)
            gradients.clear()
            part = self.block(elements)
            del message
            return [part]

        own = self.copied(x, elements=elements) if copies else x
        node = self.tape.record([own], [], rule)
        message = self.block(whole)
        del own
        if not joins:
            return Value(message, node)
        self._count("permuted", whole)
        joined = self.block(whole)
        return Value(joined, node)

    def _gathered(self, elements: int) -> MemoryBlock:
        """All ranks' parts as they come, rank by rank, and joined along the sequence."""
        message = self.block(elements)
        joined = self.block(elements)
        del message
        return joined

    def _scattered(self, elements: int, given: list[MemoryBlock | None]) -> MemoryBlock:
        """The message has the parts of the sequence one after the other, so that it is a copy."""
        message = self.block(elements)
        given.clear()
        part = self.block(elements // self.ranks)
        del message
        return part
