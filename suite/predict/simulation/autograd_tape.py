"""Autograd without numbers: blocks of memory that live as long as someone holds them, the nodes that hold them, and
the work of both passes.

A block is freed when its last reference goes, as a tensor's storage is. So a function that is written like the one it
describes holds what that one holds, as long as it does.
"""

from __future__ import annotations

import enum
import heapq
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple


class Work(NamedTuple):
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


Works = Counter[tuple[bool, Work]]


class Category(enum.StrEnum):
    """What blocks of a step are for. A pass's own are what it keeps and what it needs in passing."""

    WEIGHTS = "weights"
    GATHERED = "gathered weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer state"
    BUFFERS = "message buffers"
    FORWARD = "forward pass"
    RECOMPUTED = "computed again"
    BACKWARD = "backward pass"
    UPDATE = "update"


class StepPhase(enum.StrEnum):
    """The three parts of a step that each have a peak of memory."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


class Allocator:
    """Bytes that blocks hold now, and the most that they held at a time.

    Args:
        granularity: every block is rounded up to a multiple of so many bytes.

    Attributes:
        phase: of a step that runs now.
        category: of the blocks that are made now.
        held_by: bytes held now, by category.
        peaks: the most that was held in each phase, by category.
    """

    def __init__(self, granularity: int = 1) -> None:
        self.held = 0
        self.granularity = granularity
        self.phase = ""
        self.category = ""
        self.held_by: Counter[str] = Counter()
        self.peaks: dict[str, dict[str, int]] = {}
        self._most_in: Counter[str] = Counter()

    @property
    def most(self) -> int:
        """The most that was held in any phase."""
        return max(self._most_in.values(), default=0)

    def take(self, block: Block) -> None:
        """Count a block that is made."""
        self.held += block.bytes
        self.held_by[block.category] += block.bytes
        self._compare()

    def enter(self, phase: StepPhase, category: Category) -> None:
        """Count from now on, what is held already included, as of a phase; blocks that are made as of `category`."""
        self.phase, self.category = phase, category
        self._compare()

    def _compare(self) -> None:
        if self.held > self._most_in[self.phase]:
            self._most_in[self.phase] = self.held
            self.peaks[self.phase] = dict(self.held_by)


class Block:
    """Memory behind a tensor and its views; counts from its construction until nothing refers to it.

    Attributes:
        lent: whether who gave it goes on to use it, so that nothing is added to it in place.
        category: what it is for.
    """

    __slots__ = ("_allocator", "bytes", "category", "lent")

    def __init__(self, allocator: Allocator, size: int) -> None:
        self._allocator = allocator
        self.lent = False
        self.category = allocator.category
        self.bytes = -(-size // allocator.granularity) * allocator.granularity
        allocator.take(self)

    def move(self, category: str) -> None:
        """Count it as of another category from now on."""
        held_by = self._allocator.held_by
        held_by[self.category] -= self.bytes
        held_by[category] += self.bytes
        self.category = category

    def __del__(self) -> None:
        self._allocator.held -= self.bytes
        self._allocator.held_by[self.category] -= self.bytes


Rule = Callable[[list[Block], list[Block | None]], list[Block | None]]


class Node:
    """What the backward pass does for one operator.

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
        self, number: int, inputs: list[Value], kept: _Kept, rule: Rule, outputs: int, *, compiled: bool
    ) -> None:
        self.number = number
        self.compiled = compiled
        self.inputs: list[tuple[Node | Leaf | None, int]] = [(value.origin, value.output) for value in inputs]
        self.kept = kept
        self.rule = rule
        self.outputs = outputs


class Leaf:
    """A parameter, as far as its gradient goes.

    Args:
        deliver: takes the gradient of one reading of it.
    """

    __slots__ = ("deliver",)

    def __init__(self, deliver: Callable[[Block], None]) -> None:
        self.deliver = deliver


class Value:
    """A tensor or a view: its memory, and which output of what it is; no origin where it needs no gradient."""

    __slots__ = ("block", "origin", "output")

    def __init__(self, block: Block, origin: Node | Leaf | None = None, output: int = 0) -> None:
        self.block = block
        self.origin = origin
        self.output = output


class _StopError(Exception):
    """All that the backward pass needs is computed again."""


class _Frame:
    """One call of torch.utils.checkpoint: what to call again, and the blocks that its nodes keep once it was.

    Args:
        generator: the state of the random generator that it begins with.
    """

    def __init__(self, again: Callable[[], object], generator: Block) -> None:
        self.again = again
        self.generator = generator
        self.count = 0
        self.blocks: list[Block | None] | None = None


class _Kept:
    """The blocks that a node keeps: its own, or the places of those that its frame will compute again."""

    __slots__ = ("_blocks", "_frame", "_places", "_tape")

    def __init__(self, tape: Tape, blocks: list[Block], frame: _Frame | None) -> None:
        self._tape = tape
        self._frame = frame if blocks else None
        self._blocks = blocks if frame is None else []
        self._places = range(0)
        if frame is not None:
            self._places = range(frame.count, frame.count + len(blocks))
            frame.count += len(blocks)

    def taken(self) -> list[Block]:
        """The blocks, which this keeps no longer."""
        frame, self._frame = self._frame, None
        if frame is None:
            blocks, self._blocks = self._blocks, []
            return blocks
        if frame.blocks is None:
            self._tape.compute_again(frame)
        assert frame.blocks is not None
        taken: list[Block] = []
        for place in self._places:
            block, frame.blocks[place] = frame.blocks[place], None
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
        works: how often each work is done, by whether it belongs to the backward pass, recomputation included.
        compiled: whether what runs now is in a compiled region.
    """

    def __init__(
        self, allocator: Allocator, *, generator_bytes: int = 0, counts: bool = False, stops_early: bool = True
    ) -> None:
        self.works: Works = Counter()
        self.compiled = False
        self._backward = False
        self._stops_early = stops_early
        self._allocator = allocator
        self._counted: list[Block] | None = [] if counts else None
        self._generator_bytes = generator_bytes
        self._number = 0
        self._frame: _Frame | None = None
        self._again: list[Block | None] | None = None
        self._enough = 0

    def block(self, size: int) -> Block:
        """A new block of `size` bytes."""
        return Block(self._allocator, size)

    def enter(self, phase: StepPhase, category: Category | None = None) -> None:
        """Count what comes as of a phase of the step; its blocks as of `category`, or as of the phase's own."""
        self._allocator.enter(phase, category or Category(f"{phase} pass"))

    def work(
        self,
        operation: str,
        *sizes: int,
        variant: str = "",
        dtype: str = "fp32",
        times: int = 1,
        compiled: bool | None = None,
    ) -> None:
        """Count `times` calls of an operation, where nothing else is said in the region that runs now."""
        inside = self.compiled if compiled is None else compiled
        self.works[self._backward, Work(operation, variant, dtype, sizes, inside)] += times

    @property
    def repeats(self) -> bool:
        """Whether operators run again for the backward pass."""
        return self._again is not None

    @property
    def kept_bytes(self) -> int:
        """Bytes of the blocks that were kept, each once."""
        assert self._counted is not None
        return sum({id(block): block.bytes for block in self._counted}.values())

    def record(self, inputs: list[Value], keeps: list[Block], rule: Rule, *, outputs: int = 1) -> Node | None:
        """The node of an operator that keeps `keeps`; None where no input needs a gradient.

        To be called before the operator's output exists: recomputation ends with the last block that is kept.
        """
        if all(value.origin is None for value in inputs):
            return None
        self._number += 1
        if self._again is not None:
            for block in keeps:
                self._again.append(block)
                if len(self._again) == self._enough and self._stops_early:
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
        self.work("checkpoint", compiled=False)
        if self._again is not None:
            return function(*inputs)
        detached = [Value(value.block, _DETACHED if value.origin else None) for value in inputs]
        if self._counted is not None:
            self._counted += [value.block for value in inputs]
        self._frame = _Frame(lambda: function(*detached), self.block(self._generator_bytes))
        try:
            return function(*inputs)
        finally:
            self._frame = None

    def compute_again(self, frame: _Frame) -> None:
        """Fill `frame` with the blocks that its nodes keep."""
        self._again = frame.blocks = []
        self._enough = frame.count
        category, self._allocator.category = self._allocator.category, Category.RECOMPUTED
        with suppress(_StopError):
            frame.again()
        self._allocator.category = category
        self._again = None
        self.compiled = False

    def backward(self, value: Value, gradient: Block) -> None:
        """Run the graph of `value` backward from its `gradient`, which is taken over.

        Each node gives its gradients, then what it got and what it kept are freed. Gradients of a value that is used
        twice are added in place: to the first, or to the second where the first is lent.
        Source: torch/csrc/autograd/engine.cpp, evaluate_function; input_buffer.cpp, accumulate.
        """
        pending: dict[Node, list[Block | None]] = {}
        order: list[tuple[int, Node]] = []

        def hand(to: Node | Leaf | None, output: int, block: Block) -> None:
            if isinstance(to, Leaf):
                to.deliver(block)
            elif to is not None:
                if to not in pending:
                    pending[to] = [None] * to.outputs
                    heapq.heappush(order, (-to.number, to))
                first = pending[to][output]
                if first is not None:
                    self.work("sum_of_gradients", block.bytes, compiled=self.compiled)
                if first is None or first.lent:
                    pending[to][output] = block

        self._backward = True
        self.work("backward")
        hand(value.origin, value.output, gradient)
        del gradient
        while order:
            _, node = heapq.heappop(order)
            gradients = pending.pop(node)
            kept = node.kept.taken()
            self.compiled = node.compiled
            results = node.rule(kept, gradients)
            inputs = node.inputs
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


_DETACHED = Leaf(lambda _: None)
