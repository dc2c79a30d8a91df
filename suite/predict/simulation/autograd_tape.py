"""Autograd without numbers: the nodes that hold blocks of memory, and the operator calls of both passes."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from suite.predict.simulation.memory_blocks import Allocator, Category, MemoryBlock, StepPhase


class OperatorCall(NamedTuple):
    """One call of what a calibration times.

    Args:
        operation, variant, dtype: as docs/calibration.md has them.
        sizes: in the order of the operation's axes.
        compiled: in a compiled region, where neighbours are fused.
    """

    operation: str
    variant: str
    dtype: str
    sizes: tuple[int, ...]
    compiled: bool = False


OperatorCalls = Counter[tuple[bool, OperatorCall]]


WeightsHalf = list[tuple["Node", list["MemoryBlock | None"]]]
BackwardRule = Callable[[list[MemoryBlock], list[MemoryBlock | None]], list[MemoryBlock | None]]


class Node:
    """The backward pass of one operator.

    Args:
        number: nodes run backward from the highest on.
        inputs: what the operator's inputs came from.
        kept: the blocks that it keeps.
        rule: (kept blocks, gradient of each output) -> gradient of each input.
        outputs: how many there are.
        compiled: whether its operator is in a compiled region.
    """

    __slots__ = ("compiled", "inputs", "kept", "number", "outputs", "rule")

    def __init__(
        self, number: int, inputs: list[Value], kept: _Kept, rule: BackwardRule, outputs: int, *, compiled: bool
    ) -> None:
        self.number = number
        self.compiled = compiled
        self.inputs: list[tuple[Node | ParameterLeaf | None, int]] = [(value.origin, value.output) for value in inputs]
        self.kept = kept
        self.rule = rule
        self.outputs = outputs


class ParameterLeaf:
    """A parameter, as far as its gradient goes.

    Args:
        deliver: takes the gradient of one reading of it.
        is_weight: or what a chunk is given.
    """

    __slots__ = ("deliver", "is_weight")

    def __init__(self, deliver: Callable[[MemoryBlock], None], *, is_weight: bool = True) -> None:
        self.deliver = deliver
        self.is_weight = is_weight


class Value:
    """A tensor or view: its memory, and the node and output index that it comes from. No origin: no gradient needed."""

    __slots__ = ("block", "origin", "output")

    def __init__(self, block: MemoryBlock, origin: Node | ParameterLeaf | None = None, output: int = 0) -> None:
        self.block = block
        self.origin = origin
        self.output = output


class _StopError(Exception):
    """Everything that the backward pass needs has been recomputed."""


class _Frame:
    """One call of torch.utils.checkpoint: the function to run again, and the blocks that the second run keeps.

    Args:
        generator: the state of the random generator that it begins with.
    """

    def __init__(self, recompute: Callable[[], object], generator: MemoryBlock) -> None:
        self.recompute = recompute
        self.generator = generator
        self.count = 0
        self.blocks: list[MemoryBlock | None] | None = None


class _Kept:
    """The blocks that a node keeps: its own, or the indices of those that its frame will compute again."""

    __slots__ = ("_blocks", "_frame", "_indices", "_tape")

    def __init__(self, tape: Tape, blocks: list[MemoryBlock], frame: _Frame | None) -> None:
        self._tape = tape
        self._frame = frame if blocks else None
        self._blocks = blocks if frame is None else []
        self._indices = range(0)
        if frame is not None:
            self._indices = range(frame.count, frame.count + len(blocks))
            frame.count += len(blocks)

    def read(self) -> list[MemoryBlock]:
        """The blocks, which this goes on to keep: of what was computed again, what that was computed from.

        Source: torch/utils/checkpoint.py, _checkpoint_hook: nodes have its unpack_hook, and that the frame.
        """
        if (frame := self._frame) is None:
            return list(self._blocks)
        blocks = self.taken()
        self._frame = frame
        return blocks

    def taken(self) -> list[MemoryBlock]:
        """The blocks, which this keeps no longer."""
        frame, self._frame = self._frame, None
        if frame is None:
            blocks, self._blocks = self._blocks, []
            return blocks
        if frame.blocks is None:
            self._tape.compute_again(frame)
        assert frame.blocks is not None
        taken: list[MemoryBlock] = []
        for index in self._indices:
            block, frame.blocks[index] = frame.blocks[index], None
            assert block is not None
            taken.append(block)
        return taken


class Tape:
    """Records operators as they run, and runs them backward.

    Args:
        generator_bytes: of a random generator's state.
        counts: whether to hold every block that is kept for the backward pass, to be counted.
        stops_early: whether recomputation ends with the last block that is kept; compiled regions run as a whole.

    Attributes:
        calls: how often each call is made, by whether it belongs to the backward pass, recomputation included.
        compiled: whether what runs now is in a compiled region.
        of_inputs, of_weights: which gradients rules give: of a node's inputs, of its weights.
        delivered: of weights, by the node that runs now, where these are found apart.
    """

    def __init__(
        self, allocator: Allocator, *, generator_bytes: int = 0, counts: bool = False, stops_early: bool = True
    ) -> None:
        self.calls: OperatorCalls = Counter()
        self.compiled = False
        self.of_inputs = self.of_weights = True
        self.delivered: list[MemoryBlock] | None = None
        self._backward = False
        self._stops_early = stops_early
        self._allocator = allocator
        self._counted: list[MemoryBlock] | None = [] if counts else None
        self._generator_bytes = generator_bytes
        self._number = 0
        self._frame: _Frame | None = None
        self._recomputed: list[MemoryBlock | None] | None = None
        self._blocks_needed = 0

    def block(self, size: int) -> MemoryBlock:
        """A new block of `size` bytes."""
        return MemoryBlock(self._allocator, size)

    def enter(self, phase: StepPhase, category: Category | None = None) -> None:
        """Count what comes as of a phase of the step; its blocks as of `category`, or as of the phase's own."""
        self._allocator.enter(phase, category or Category(f"{phase} pass"))

    def count(
        self,
        operation: str,
        *sizes: int,
        variant: str = "",
        dtype: str = "fp32",
        times: int = 1,
        compiled: bool | None = None,
    ) -> None:
        """Count `times` calls of an operation; `compiled`: None means as the region that runs now."""
        inside = self.compiled if compiled is None else compiled
        self.calls[self._backward, OperatorCall(operation, variant, dtype, sizes, inside)] += times

    @property
    def repeats(self) -> bool:
        """Whether operators run again for the backward pass."""
        return self._recomputed is not None

    @property
    def kept_bytes(self) -> int:
        """Bytes of the blocks that were kept, each once."""
        assert self._counted is not None
        return sum({id(block): block.bytes for block in self._counted}.values())

    def record(
        self, inputs: list[Value], keeps: list[MemoryBlock], rule: BackwardRule, *, outputs: int = 1
    ) -> Node | None:
        """The node of an operator that keeps `keeps`; None where no input needs a gradient.

        To be called before the operator's output exists: recomputation ends with the last block that is kept.
        """
        if all(value.origin is None for value in inputs):
            return None
        self._number += 1
        if self._recomputed is not None:
            for block in keeps:
                self._recomputed.append(block)
                if len(self._recomputed) == self._blocks_needed and self._stops_early:
                    raise _StopError
            return Node(self._number, [], _Kept(self, [], None), rule, outputs, compiled=self.compiled)
        if self._frame is None and self._counted is not None:
            self._counted += keeps
        return Node(self._number, inputs, _Kept(self, keeps, self._frame), rule, outputs, compiled=self.compiled)

    def checkpoint(self, function: Callable[..., Value], inputs: list[Value]) -> Value:
        """`function` of `inputs`, which alone are kept.

        Source: torch/utils/checkpoint.py, _checkpoint_without_reentrant_generator.
        """
        assert self._frame is None
        self.count("checkpoint", compiled=False)
        if self._recomputed is not None:
            return function(*inputs)
        detached = [Value(value.block, NO_GRADIENT if value.origin else None) for value in inputs]
        if self._counted is not None:
            self._counted += [value.block for value in inputs]
        self._frame = _Frame(lambda: function(*detached), self.block(self._generator_bytes))
        try:
            return function(*inputs)
        finally:
            self._frame = None

    def compute_again(self, frame: _Frame) -> None:
        """Fill `frame` with the blocks that its nodes keep."""
        self._recomputed = frame.blocks = []
        self._blocks_needed = frame.count
        category, self._allocator.category = self._allocator.category, Category.RECOMPUTED
        with suppress(_StopError):
            frame.recompute()
        self._allocator.category = category
        self._recomputed = None
        self.compiled = False

    def backward(self, value: Value, gradient: MemoryBlock) -> None:
        """Run the graph of `value` backward from its `gradient`, which is taken over.

        Each node gives its gradients, then what it got and what it kept are freed. Gradients of a value that is used
        twice are added in place: to the first, or to the second where the first is borrowed.
        Source: torch/csrc/autograd/engine.cpp, evaluate_function; input_buffer.cpp, accumulate.
        """
        self._run_backward(value, gradient, None, [])

    def backward_to(self, leaf: ParameterLeaf, value: Value, gradient: MemoryBlock) -> WeightsHalf:
        """As `backward`, but only the gradient of `leaf`: nodes keep what they kept, to find those of weights later.

        What nodes with weights got is held for that too.
        Source: torch/distributed/pipelining/_backward.py, stage_backward_input.
        """
        leads = _nodes_that_lead_to(leaf, value)
        half: WeightsHalf = []
        self.of_weights = False
        self._run_backward(value, gradient, leads, half)
        self.of_weights = True
        half.sort(key=lambda of: of[0].number)
        return half

    def backward_to_weights(self, half: WeightsHalf) -> None:
        """The gradients that `backward_to` left out, node by node in the order of the forward pass.

        A node's inputs stay until all above it are done, as they hold it; what it gave until the next one has given.
        Source: torch/distributed/pipelining/_backward.py, stage_backward_weight.
        """
        self._backward, self.of_inputs = True, False
        given: list[MemoryBlock] = []
        while half:
            self.delivered = []
            node, gradients = half.pop(0)
            kept = node.kept.taken()
            results = node.rule(kept, list(gradients))
            kept.clear()
            for to, _ in reversed(node.inputs):
                result = results.pop()
                if result is not None and isinstance(to, ParameterLeaf):
                    to.deliver(result)
                del result
            given, self.delivered = self.delivered, None
            del node, gradients
        del given
        self._backward, self.of_inputs = False, True

    def _run_backward(
        self, value: Value, gradient: MemoryBlock, leads: dict[int, bool] | None, half: WeightsHalf
    ) -> None:
        """Run nodes backward: all, or those that `leads` says; of these, nodes with weights are added to `half`."""
        pending: dict[Node, list[MemoryBlock | None]] = {}
        order: list[tuple[int, Node]] = []

        def hand(to: Node | ParameterLeaf | None, output: int, block: MemoryBlock) -> None:
            if isinstance(to, ParameterLeaf):
                to.deliver(block)
            elif to is not None and (leads is None or leads[id(to)]):
                if to not in pending:
                    pending[to] = [None] * to.outputs
                    heapq.heappush(order, (-to.number, to))
                first = pending[to][output]
                if first is not None:
                    self.count("sum_of_gradients", block.bytes, compiled=self.compiled)
                if first is None or first.borrowed:
                    pending[to][output] = block

        self._backward = True
        self.count("backward")
        hand(value.origin, value.output, gradient)
        del gradient
        while order:
            _, node = heapq.heappop(order)
            gradients = pending.pop(node)
            kept = node.kept.taken() if leads is None else node.kept.read()
            self.compiled = node.compiled
            if leads is not None and any(isinstance(to, ParameterLeaf) and to.is_weight for to, _ in node.inputs):
                half.append((node, list(gradients)))
                for block in filter(None, gradients):
                    block.borrowed = True
            results = node.rule(kept, gradients)
            inputs = list(node.inputs)
            if leads is None:
                node.inputs = []
            del node
            gradients.clear()
            kept.clear()
            while results:
                (to, output), result = inputs.pop(), results.pop()
                if result is not None:
                    hand(to, output, result)
                del to, result
            self.compiled = False
        self._backward = False


def _nodes_that_lead_to(leaf: ParameterLeaf, value: Value) -> dict[int, bool]:
    """Whether each node of the graph of `value`, by identity, has a path to `leaf`."""
    leads: dict[int, bool] = {}
    waiting = [value.origin]
    while waiting:
        node = waiting[-1]
        if not isinstance(node, Node) or id(node) in leads:
            waiting.pop()
            continue
        before = [to for to, _ in node.inputs if isinstance(to, Node) and id(to) not in leads]
        waiting += before
        if not before:
            leads[id(node)] = any(to is leaf or (isinstance(to, Node) and leads[id(to)]) for to, _ in node.inputs)
            waiting.pop()
    return leads


NO_GRADIENT = ParameterLeaf(lambda _: None, is_weight=False)
