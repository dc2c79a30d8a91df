"""Blocks of memory that live as long as someone holds them, and the most that is held at a time.

A block is freed when its last reference goes, as a tensor's storage is. So a function that is written like the one it
describes holds what that one holds, as long as it does.
"""

from __future__ import annotations

import enum
from collections import Counter


class Category(enum.StrEnum):
    """Purposes of a step's blocks. A pass's own are what it keeps and what it needs in passing."""

    WEIGHTS = "weights"
    GATHERED = "gathered weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer state"
    BUFFERS = "message buffers"
    WORKSPACES = "workspaces of libraries"
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

    def take(self, block: MemoryBlock) -> None:
        """Count a block that is made."""
        self.held += block.bytes
        self.held_by[block.category] += block.bytes
        self._compare()

    def enter(self, phase: StepPhase, category: Category) -> None:
        """Start a phase. What is held already counts in it; new blocks count as `category`."""
        self.phase, self.category = phase, category
        self._compare()

    def most_of_part(self) -> dict[str, int]:
        """The most that was held in this phase since it, or its last part, began, by category: the end of a part."""
        most, self._most_in[self.phase] = self.peaks[self.phase], 0
        self._compare()
        return most

    def _compare(self) -> None:
        if self.held > self._most_in[self.phase]:
            self._most_in[self.phase] = self.held
            self.peaks[self.phase] = dict(self.held_by)


class MemoryBlock:
    """Memory behind a tensor and its views; counts from its construction until nothing refers to it.

    Attributes:
        borrowed: whether its giver still uses it, so that nothing may be added to it in place.
        category: what it is for.
    """

    __slots__ = ("_allocator", "borrowed", "bytes", "category")

    def __init__(self, allocator: Allocator, size: int) -> None:
        self._allocator = allocator
        self.borrowed = False
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
