"""LayerNorm, and RMSNorm: on a GPU one operator, on a CPU several."""

from __future__ import annotations

from suite.predict.analytic.memory import FP32
from suite.predict.simulation.autograd_tape import BackwardRule, ParameterLeaf, Value
from suite.predict.simulation.host_calls import NORM, RMS_NORM
from suite.predict.simulation.memory_blocks import MemoryBlock
from suite.predict.simulation.operator_base import OperatorBase


class NormOperators(OperatorBase):
    """Norms of rows."""

    def norm(
        self, x: Value, gain: ParameterLeaf | None, bias: ParameterLeaf | None, *, tokens: int, hidden: int
    ) -> Value:
        """LayerNorm: keeps its input, mean and deviation; on a GPU the statistics are fp32. Or an RMSNorm."""
        if self._root_mean_square:
            return self.rms_norm(x, gain, tokens=tokens, hidden=hidden)
        leaves = [leaf for leaf in (gain, bias) if leaf]

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("layer_norm", tokens, hidden, variant="backward")
            self._host_backward(NORM)
            of_input = self.block(tokens * hidden) if self.tape.of_inputs else None
            return [of_input, *(self.block(hidden) if self.tape.of_weights else None for _ in leaves)]

        self._count("layer_norm", tokens, hidden)
        self._host_forward(NORM)
        out = self.block(tokens * hidden)
        statistics = [self.tape.block((FP32 if self._cuda else self.element) * tokens) for _ in range(2)]
        node = self.tape.record([x, *map(self.weight, leaves)], [x.block, *statistics], rule)
        return Value(out, node)

    def norm_of_heads(self, x: Value, gain: ParameterLeaf, *, tokens: int, heads: int, head_dim: int) -> Value:
        """RMSNorm of queries or keys, head by head."""
        return self.rms_norm(x, gain, tokens=tokens * heads, hidden=head_dim)

    def rms_norm(self, x: Value, gain: ParameterLeaf | None, *, tokens: int, hidden: int) -> Value:
        """RMSNorm: on a GPU one operator, which keeps its input and an fp32 factor a token; on a CPU several in fp32.

        A CPU's, with w = x in fp32: w^2, its mean m, r = (m + epsilon)^(-1/2), n = w r, n times the gain, rounded.
        Source: aten/src/ATen/native/layer_norm.cpp, rms_norm_composite, rms_norm_symint.
        """
        self._count("rms_norm", tokens, hidden)
        self._host_forward(RMS_NORM)
        if self._cuda:
            gains = [self.weight(gain)] if gain else []
            rule = self._rms_norm_rule(tokens, hidden, gains=len(gains))
            out, factor = self.block(tokens * hidden), self.tape.block(FP32 * tokens)
            return Value(out, self.tape.record([x, *gains], [x.block, factor], rule))
        wide = self._widened(x, elements=tokens * hidden)
        factors = self._inverse_root_mean_square(wide, tokens=tokens, hidden=hidden)
        normal = self._product_by_row(wide, factors, tokens=tokens, hidden=hidden)
        del wide, factors
        if gain is None:
            return self._narrowed(normal, elements=tokens * hidden)
        product = self._product_by_column(normal, self.weight(gain), tokens=tokens, hidden=hidden)
        del normal
        return self._narrowed(product, elements=tokens * hidden)

    def _rms_norm_rule(self, tokens: int, hidden: int, *, gains: int) -> BackwardRule:
        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("rms_norm", tokens, hidden, variant="backward")
            self._host_backward(RMS_NORM)
            return [self.block(tokens * hidden), *(self.block(hidden) for _ in range(gains))]

        return rule

    def _widened(self, x: Value, *, elements: int) -> Value:
        """x in fp32."""
        if not self.half:
            return x
        return Value(self.tape.block(FP32 * elements), self.tape.record([x], [], self._passing(elements)))

    def _narrowed(self, x: Value, *, elements: int) -> Value:
        """x, which is fp32, in the dtype."""
        if not self.half:
            return x
        return Value(self.block(elements), self.tape.record([x], [], lambda _, __: [self.tape.block(FP32 * elements)]))

    def _inverse_root_mean_square(self, x: Value, *, tokens: int, hidden: int) -> Value:
        """(mean of x^2 + epsilon)^(-1/2), fp32: the square keeps x, the root its output.

        Backward, each after the one before it: of the root a cube, its product with a number, and that with the
        gradient; of the mean a gradient of all elements; of the square a copy of x, twice that, their product.
        """
        tape, whole = self.tape, FP32 * tokens * hidden

        def of_square(_kept: list[MemoryBlock], gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            copy = tape.block(whole)
            twice = tape.block(whole)
            del copy
            product = tape.block(whole)
            gradients.clear()
            del twice
            return [product]

        def of_root(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            cube = tape.block(FP32 * tokens)
            scaled = tape.block(FP32 * tokens)
            del cube
            product = tape.block(FP32 * tokens)
            del scaled
            return [product]

        square = Value(tape.block(whole), tape.record([x], [x.block], of_square))
        mean = Value(tape.block(FP32 * tokens), tape.record([square], [], lambda _, __: [tape.block(whole)]))
        del square
        root = tape.block(FP32 * tokens)
        return Value(root, tape.record([mean], [root], of_root))

    def _product_by_row(self, x: Value, factors: Value, *, tokens: int, hidden: int) -> Value:
        """x times a factor a token, fp32: keeps both. Backward: a product for each, summed up for the factors."""
        tape, whole = self.tape, FP32 * tokens * hidden

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("rms_norm", tokens, hidden, variant="backward")
            self._host_backward(RMS_NORM)
            of_factors = tape.block(whole)
            of_x = tape.block(whole)
            sums = tape.block(FP32 * tokens)
            del of_factors
            return [of_x, sums]

        node = tape.record([x, factors], [x.block, factors.block], rule)
        return Value(tape.block(whole), node)

    def _product_by_column(self, x: Value, gain: Value, *, tokens: int, hidden: int) -> Value:
        """x, fp32, times a gain a column: keeps x. Backward: as of a factor a row; the gain's in its dtype."""
        tape, whole = self.tape, FP32 * tokens * hidden

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            of_gain = tape.block(whole) if tape.of_weights else None
            of_x = tape.block(whole) if tape.of_inputs else None
            if not tape.of_weights:
                return [of_x, None]
            sums = tape.block(FP32 * hidden)
            del of_gain
            return [of_x, self.block(hidden) if self.half else sums]

        node = tape.record([x, gain], [x.block], rule)
        return Value(tape.block(whole), node)
