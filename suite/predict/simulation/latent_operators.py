"""Operators between the matrices of latent attention, and zeros that pad heads for a fused attention."""

from __future__ import annotations

from suite.predict.simulation.autograd_tape import Value
from suite.predict.simulation.host_calls import HEADS, PADDED_HEADS, SHARED_KEY, SPLIT_HEADS, SPLIT_STATE
from suite.predict.simulation.memory_blocks import MemoryBlock
from suite.predict.simulation.operator_base import OperatorBase


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
