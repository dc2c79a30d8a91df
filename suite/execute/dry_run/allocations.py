"""Bytes that tensors without memory would have allocated: now, at most in a step, and for what."""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from torch import Tensor, UntypedStorage
from torch.utils._pytree import tree_leaves

from suite.job.dry_run_job import Moment

INPUTS = "inputs"  # the category of what a model is given
MOST_MOMENTS = 400  # of a history: as many as a picture has columns


class _Held:
    """A storage's bytes, what they are for, and the module that they belong to."""

    __slots__ = ("bytes", "category", "owner")

    def __init__(self, size: int, category: str, owner: str = "") -> None:
        self.bytes = size
        self.category = category
        self.owner = owner


class _Change(NamedTuple):
    """So many bytes more of a block; of none: in passing."""

    block: _Held
    bytes: int
    phase: str


class Allocations:
    """Follows storages from the first operator that returns them until nothing refers to them.

    Memory that a kernel takes and frees within an operator is not seen.

    Args:
        phase: the part of a step that runs now. What is allocated in it has its name as its category, until `name`
            says what it is for.

    Attributes:
        owner: the module that runs now; what is allocated in it belongs to it, until `name` says another.
        peak: the largest sum of bytes that lived at a time since `record`.
    """

    def __init__(self, phase: Callable[[], str]) -> None:
        self.owner: Callable[[], str] = str
        self.peak = 0
        self._now = 0
        self._phase = phase
        self._alive: dict[int, _Held] = {}
        self._followed: dict[int, weakref.ref[object]] = {}
        self._changes: list[_Change] = []
        self._before = 0  # of the changes, those that say what lived at `record`
        self._begun = ""

    def see(self, returned: object) -> None:
        """Follow the storages of the tensors in what an operator returned."""
        leaves = (returned,) if isinstance(returned, Tensor) else tree_leaves(returned)  # there are thousands
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                self._follow(leaf.untyped_storage())

    def _follow(self, storage: UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._alive:
            block = self._alive[key] = _Held(0, self._phase(), self.owner())
            self._followed[key] = weakref.ref(storage, lambda _: self._free(key))
            self._grow(block, storage.nbytes())

    def _free(self, key: int) -> None:
        del self._followed[key]
        block = self._alive.pop(key)
        self._grow(block, -block.bytes)

    def resized(self, storage: UntypedStorage) -> None:
        """The storage has another size now."""
        if (block := self._alive.get(storage._cdata)) is not None:
            self._grow(block, storage.nbytes() - block.bytes)

    def pass_through(self, size: int, category: str) -> None:
        """So many bytes more are allocated and freed at once."""
        block = _Held(0, category)
        self._grow(block, size)
        self._grow(block, -size)

    def _grow(self, block: _Held, size: int) -> None:
        block.bytes += size
        self._now += size
        self.peak = max(self.peak, self._now)
        self._changes.append(_Change(block, size, self._phase()))

    def name(self, category: str, tensors: Iterable[Tensor], *, owner: str | None = None) -> None:
        """Say what the storages of `tensors` are for, and whose, from their allocation on."""
        for tensor in tensors:
            if (block := self._alive.get(tensor.untyped_storage()._cdata)) is not None:
                block.category = category
                block.owner = block.owner if owner is None else owner

    def name_emptied(self, category: str) -> None:
        """Say what storages are for that live and have no bytes now: those that are filled and emptied at each use."""
        for block in self._alive.values():
            if not block.bytes:
                block.category = category

    def keep(self, category: str, tensor: Tensor) -> None:
        """Say for whom the tensor's storage is kept, if it has no other purpose: the first one who keeps it."""
        block = self._alive.get(tensor.untyped_storage()._cdata)
        if block is not None and block.category in (INPUTS, self._phase()):
            block.category = category

    def bytes(self) -> Counter[str]:
        """Bytes that live now, by category."""
        held = Counter[str]()
        for block in self._alive.values():
            held[block.category] += block.bytes
        return held

    def category(self, tensor: Tensor) -> str | None:
        """Purpose of the storage of `tensor`; None where no operator returned it."""
        block = self._alive.get(tensor.untyped_storage()._cdata)
        return None if block is None else block.category

    def record(self) -> None:
        """Begin anew with the peak and the history."""
        self._begun = self._phase()
        self.peak = self._now
        self._changes = [_Change(block, block.bytes, self._begun) for block in self._alive.values()]
        self._before = len(self._changes)

    def owners(self) -> dict[str, dict[str, int]]:
        """Bytes at the peak since `record` by owner, and by category within it."""
        held: defaultdict[str, Counter[str]] = defaultdict(Counter)
        total = 0
        for number, (block, size, _) in enumerate(self._changes, 1):
            held[block.owner][block.category] += size
            total += size
            if number >= self._before and total == self.peak:
                break
        return {owner: found for owner, each in held.items() if (found := _bytes(each))}

    def history(self) -> tuple[list[Moment], list[Moment]]:
        """The fullest moment of each phase since `record`, and a history: the fullest of every few changes."""
        held = Counter[str]()
        for block, size, _ in self._changes[: self._before]:
            held[block.category] += size
        since = self._changes[self._before :]
        together = len(since) // MOST_MOMENTS + 1
        moments = [Moment(self._begun, _bytes(held))]
        fullest = {self._begun: moments[0]}
        most = {self._begun: moments[0].total}
        for first in range(0, len(since), together):
            moment, largest = moments[-1], -1
            for block, size, phase in since[first : first + together]:
                held[block.category] += size
                if (total := held.total()) > largest:
                    moment, largest = Moment(phase, _bytes(held)), total
                if total > most.get(phase, -1):
                    fullest[phase], most[phase] = Moment(phase, _bytes(held)), total
            moments.append(moment)
        return list(fullest.values()), moments


def _bytes(held: Counter[str]) -> dict[str, int]:
    return {category: size for category, size in held.items() if size}
