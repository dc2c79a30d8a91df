"""Activations, dropout, sums and copies: operators that memory bandwidth limits."""

from __future__ import annotations

from suite.predict.simulation.autograd_tape import Value
from suite.predict.simulation.host_calls import ELEMENT_WISE, FAST_GELU, GATED
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

    def relu_squared(self, x: Value, *, elements: int) -> Value:
        """ReLU, times itself."""
        return self._squared(self.relu(x, elements=elements), elements=elements)

    def _squared(self, x: Value, *, elements: int) -> Value:
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
