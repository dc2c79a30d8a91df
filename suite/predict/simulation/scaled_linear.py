"""A linear layer of suite/execute/model/scaled_products.py: factors in 8 bits, with blocks in place of tensors.

Memory alone: its calls are not counted, as no calibration times them.
"""

from __future__ import annotations

from suite.predict.analytic.cuda_temporaries import column_sum_buffer_bytes
from suite.predict.analytic.memory import FP32
from suite.predict.simulation.autograd_tape import ParameterLeaf, Value
from suite.predict.simulation.memory_blocks import MemoryBlock
from suite.predict.simulation.operator_base import OperatorBase

Factor = tuple[MemoryBlock, MemoryBlock]  # in 8 bits, and its scale


class ScaledOperators(OperatorBase):
    """Linear layers in 8 bits; what a CPU widens, computes in fp32 and rounds takes its own blocks."""

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
