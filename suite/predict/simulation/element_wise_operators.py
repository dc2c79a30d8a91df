"""Activations, dropout, sums, norms and copies: operators that memory bandwidth limits."""

from __future__ import annotations

from suite.predict.analytic.memory import FP32
from suite.predict.simulation.autograd_tape import BackwardRule, ParameterLeaf, Value
from suite.predict.simulation.host_calls import ELEMENT_WISE, FAST_GELU, GATED, NORM, RMS_NORM
from suite.predict.simulation.memory_blocks import MemoryBlock
from suite.predict.simulation.operator_base import OperatorBase


class ElementWiseOperators(OperatorBase):
    """Operators that read and write every element once or twice."""

    def dropout(self, x: Value, probability: float, *, elements: int) -> Value:
        """Keeps what it multiplies with: the dtype's on a CPU, a byte an element on a GPU."""
        if probability == 0:
            return x
        self._count("dropout", elements)
        rule = self._like(elements, "dropout")
        if self._cuda:
            dropped = self.block(elements)
            return Value(dropped, self.tape.record([x], [self.tape.block(elements)], rule))
        node = self.tape.record([x], [self.block(elements)], rule)
        return Value(self.block(elements), node)

    def element_wise(self, x: Value, operation: str, *, elements: int) -> Value:
        """An activation that keeps its input."""
        self._count(operation, elements)
        node = self.tape.record([x], [x.block], self._like(elements, operation))
        return Value(self.block(elements), node)

    def relu(self, x: Value, *, elements: int) -> Value:
        """Keeps its output."""
        self._count("relu", elements)
        out = self.block(elements)
        return Value(out, self.tape.record([x], [out], self._like(elements, "relu")))

    def squared(self, x: Value, *, elements: int) -> Value:
        """x times itself: keeps it. Backward: a product for each factor, and their sum."""

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("add", elements, times=2)
            self._host_backward(ELEMENT_WISE)
            return [self.block(elements), self.block(elements)]

        self._count("scale", elements)
        return Value(self.block(elements), self.tape.record([x, x], [x.block, x.block], rule))

    def fast_gelu(self, x: Value, *, elements: int) -> Value:
        """x / (1 + exp(-1.702 |x|)) * exp(0.851 (x - |x|)), one operator after the other."""
        self._count("fast_gelu", elements)
        size = self._magnitude(x, elements)
        first = self._exponential(self._scaled(size, elements), elements)
        quotient = self._quotient(x, self._shifted(first, elements), elements)
        del first
        difference = self._scaled(self._difference(x, size, elements), elements)
        return self._product_of_both(quotient, self._exponential(difference, elements), elements)

    def _magnitude(self, x: Value, elements: int) -> Value:
        """|x|: keeps x. Backward: its signs, then their product with the gradient."""

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("fast_gelu", elements, variant="backward")
            self._host_backward(FAST_GELU)
            signs = self.block(elements)
            of_input = self.block(elements)
            del signs
            return [of_input]

        return Value(self.block(elements), self.tape.record([x], [x.block], rule))

    def _exponential(self, x: Value, elements: int) -> Value:
        """Keeps its output."""
        out = self.block(elements)
        return Value(out, self.tape.record([x], [out], self._passing(elements)))

    def _shifted(self, x: Value, elements: int) -> Value:
        """x plus a number; the gradient passes."""
        return Value(self.block(elements), x.origin, x.output)

    def _difference(self, x: Value, y: Value, elements: int) -> Value:
        """x - y: the gradient passes to x."""
        node = self.tape.record([x, y], [], lambda _, gradients: [gradients[0], self.block(elements)])
        return Value(self.block(elements), node)

    def _quotient(self, x: Value, y: Value, elements: int) -> Value:
        """x / y: keeps both. Backward: g / y; x / y, that over y, -g, and the product of these."""

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            of_x = self.block(elements)
            once = self.block(elements)
            twice = self.block(elements)
            del once
            negative = self.block(elements)
            of_y = self.block(elements)
            del twice, negative
            return [of_x, of_y]

        node = self.tape.record([x, y], [x.block, y.block], rule)
        return Value(self.block(elements), node)

    def _product_of_both(self, x: Value, y: Value, elements: int) -> Value:
        """x y, element by element: keeps both."""

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            return [self.block(elements), self.block(elements)]

        node = self.tape.record([x, y], [x.block, y.block], rule)
        return Value(self.block(elements), node)

    def gated(self, x: Value, operation: str, *, elements: int) -> Value:
        """GELU or SiLU of every other one of 2 `elements`, times its neighbour: keeps them, and what multiplies it."""

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count(operation, elements, variant="backward")
            self._host_backward(GATED)
            return [self.block(2 * elements)]

        self._count(operation, elements)
        node = self.tape.record([x], [], rule, outputs=2)
        gate, neighbour = Value(x.block, node), Value(x.block, node, 1)
        activated = Value(self.block(elements), self.tape.record([gate], [gate.block], self._passing(elements)))
        return self._product_of_both(activated, neighbour, elements)

    def scaled(self, x: Value, *, elements: int) -> Value:
        """x times a number, which its gradient is multiplied by too; nothing is kept."""
        self._count("scale", elements)
        return Value(self.block(elements), self.tape.record([x], [], self._like(elements, "scale")))

    def _scaled(self, x: Value, elements: int) -> Value:
        return Value(self.block(elements), self.tape.record([x], [], self._passing(elements)))

    def sum(self, x: Value, y: Value, *, elements: int, into_y: bool = False) -> Value:
        """x + y; its gradient is that of both. `into_y`: written there, where operators write into their inputs."""
        self._count("add", elements)
        node = self.tape.record([x, y], [], lambda _, gradients: [gradients[0], gradients[0]])
        return Value(y.block if into_y and self._in_place else self.block(elements), node)

    def norm(self, x: Value, weight: ParameterLeaf, bias: ParameterLeaf | None, *, tokens: int, hidden: int) -> Value:
        """LayerNorm: keeps its input, mean and deviation; on a GPU the statistics are fp32. Or an RMSNorm."""
        if self._root_mean_square:
            return self._rms_norm(x, weight, tokens=tokens, hidden=hidden)
        leaves = [leaf for leaf in (weight, bias) if leaf]

        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("layer_norm", tokens, hidden, variant="backward")
            self._host_backward(NORM)
            return [self.block(tokens * hidden), *(self.block(hidden) for _ in leaves)]

        self._count("layer_norm", tokens, hidden)
        self._host_forward(NORM)
        out = self.block(tokens * hidden)
        statistics = [self.tape.block((FP32 if self._cuda else self.element) * tokens) for _ in range(2)]
        node = self.tape.record([x, *map(self.weight, leaves)], [x.block, *statistics], rule)
        return Value(out, node)

    def _rms_norm(self, x: Value, weight: ParameterLeaf, *, tokens: int, hidden: int) -> Value:
        """RMSNorm: on a GPU one operator, which keeps its input and an fp32 factor a token; on a CPU several in fp32.

        A CPU's, with w = x in fp32: w^2, its mean m, r = (m + epsilon)^(-1/2), n = w r, n times the gain, rounded.
        Source: aten/src/ATen/native/layer_norm.cpp, rms_norm_composite, rms_norm_symint.
        """
        self._count("rms_norm", tokens, hidden)
        self._host_forward(RMS_NORM)
        if self._cuda:
            rule = self._rms_norm_rule(tokens, hidden)
            out, factor = self.block(tokens * hidden), self.tape.block(FP32 * tokens)
            return Value(out, self.tape.record([x, self.weight(weight)], [x.block, factor], rule))
        wide = self._widened(x, elements=tokens * hidden)
        factors = self._inverse_root_mean_square(wide, tokens=tokens, hidden=hidden)
        normal = self._product_by_row(wide, factors, tokens=tokens, hidden=hidden)
        del wide, factors
        product = self._product_by_column(normal, self.weight(weight), tokens=tokens, hidden=hidden)
        del normal
        return self._narrowed(product, elements=tokens * hidden)

    def _rms_norm_rule(self, tokens: int, hidden: int) -> BackwardRule:
        def rule(_kept: list[MemoryBlock], _gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
            self._count("rms_norm", tokens, hidden, variant="backward")
            self._host_backward(RMS_NORM)
            return [self.block(tokens * hidden), self.block(hidden)]

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
            self._count("rms_norm", tokens, hidden, variant="backward")
            self._host_backward(RMS_NORM)
            of_gain = tape.block(whole)
            of_x = tape.block(whole)
            sums = tape.block(FP32 * hidden)
            del of_gain
            return [of_x, self.block(hidden) if self.half else sums]

        node = tape.record([x, gain], [x.block], rule)
        return Value(tape.block(whole), node)
