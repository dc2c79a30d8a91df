"""The most memory that PyTorch's allocators held within a window of a rank's run."""

from __future__ import annotations

import resource
import sys
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile


class Allocation(NamedTuple):
    """A block's address, and its bytes: negative where it is freed."""

    address: int
    bytes: int


class AllocatedPeak:
    """Follows what is allocated on `device` from its construction until `finish`.

    On CUDA the allocator counts itself. On the CPU the profiler's memory events are counted. They have the size of a
    freed block only if its allocation was seen, so this must be constructed before anything that a window is to count.

    Attributes:
        bytes: the largest sum of blocks allocated at a time within the last window.
        reserved_bytes: the most that CUDA's allocator reserved in it; None on the CPU, whose allocator keeps nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self.bytes = 0
        self.reserved_bytes: int | None = None
        self._device = device
        self._before: list[Allocation] = []
        self._settled: int | None = None
        self._last: tuple[int, list[Allocation], int] = 0, [], 0
        self._recording = None if device.type == "cuda" else _started()

    def settle(self) -> None:
        """From now on, what is allocated before a window is freed before it ends, even if the free is not seen."""
        if self._recording is not None:
            self._before += _changes(self._recording)
            self._recording = _started()
            self._settled = len(self._before)

    @contextmanager
    def window(self) -> Iterator[None]:
        if self._recording is None:
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            yield
            torch.cuda.synchronize(self._device)
            self.bytes = int(torch.cuda.max_memory_allocated(self._device))
            self.reserved_bytes = int(torch.cuda.max_memory_reserved(self._device))
            return
        self._before += _changes(self._recording)
        self._recording = _started()
        yield
        within = _changes(self._recording)
        self._recording = _started()
        settled = len(self._before) if self._settled is None else self._settled
        since = [*self._before[settled:], *within]
        self._last = settled, since, len(since) - len(within)
        self.bytes = largest_sum(self._before[:settled], since, window=self._last[2])
        self._before += within

    def finish(self, *, later: bool = False) -> None:
        """Stop following: no window comes after.

        Args:
            later: whether what the last window allocated may have been freed since it ended, and counts until then.
        """
        if self._recording is None:
            return
        if later:
            settled, since, window = self._last
            self.bytes = largest_sum(self._before[:settled], since, window=window, after=_changes(self._recording))
        else:
            self._recording.stop()
        self._before.clear()


def resident_bytes() -> int | None:
    """The largest resident set of this process so far, with libraries and caches of allocators; Linux only."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if sys.platform == "linux" else None


def largest_sum(
    before: Iterable[Allocation], since: list[Allocation], *, window: int = 0, after: Iterable[Allocation] = ()
) -> int:
    """The largest sum of blocks that live at a time within a window.

    The free of a block is not seen if a communication thread is the last to release it (gloo's messages). Such a block
    counts until another one overlaps it; one allocated in `since` that is not freed in `after` either, until the next
    change.

    Args:
        before: changes until allocations settled; these blocks may live on.
        since: later changes, to the end of the window.
        window: index of the window's first change in `since`.
        after: changes after the window.
    """
    sizes: dict[int, int] = {}
    addresses: list[int] = []
    total = 0

    def free(address: int) -> int:
        del addresses[bisect_left(addresses, address)]
        return sizes.pop(address)

    def apply(change: Allocation) -> int:
        difference = 0
        if change.bytes < 0:
            return -free(change.address) if change.address in sizes else 0
        index = bisect_left(addresses, change.address)
        if index and addresses[index - 1] + sizes[addresses[index - 1]] > change.address:
            difference -= free(addresses[index - 1])
        while (index := bisect_left(addresses, change.address)) < len(addresses) and addresses[index] < sum(change):
            difference -= free(addresses[index])
        insort(addresses, change.address)
        sizes[change.address] = change.bytes
        return difference + change.bytes

    for change in before:
        total += apply(change)
    unseen = _never_freed([*since, *after])
    largest = 0 if window else total
    for index, change in enumerate(since):
        if index == window:
            largest = max(largest, total)
        total += apply(change)
        if index >= window:
            largest = max(largest, total)
        if index in unseen and change.address in sizes:
            total -= free(change.address)
    return largest


def _never_freed(changes: list[Allocation]) -> set[int]:
    """Indices of the allocations that no later change frees."""
    open_at: dict[int, int] = {}
    never: set[int] = set()
    for index, change in enumerate(changes):
        previous = open_at.pop(change.address, None)
        if change.bytes > 0:
            open_at[change.address] = index
            if previous is not None:
                never.add(previous)
    return never | set(open_at.values())


def _started() -> profile:
    """A running profiler that records allocations and no operators."""
    recording = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    recording.start()
    recording.toggle_collection_dynamic(False, [ProfilerActivity.CPU])
    return recording


def _changes(recording: profile) -> list[Allocation]:
    """End the recording; return what was allocated and freed on the CPU, in order."""
    recording.stop()
    assert recording.profiler is not None
    results = recording.profiler.kineto_results
    assert results is not None
    changes = []
    pending = list(results.experimental_event_tree())
    for event in pending:
        fields = event.extra_fields
        if isinstance(fields, torch._C._profiler._ExtraFields_Allocation) and fields.device.type == "cpu":
            changes.append((event.start_time_ns, fields.ptr, fields.alloc_size))
        pending += event.children
    changes.sort(key=lambda timed: timed[0])
    return [Allocation(address, size) for _, address, size in changes]
