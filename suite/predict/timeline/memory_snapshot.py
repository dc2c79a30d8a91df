"""A predicted step's allocations in the form of `torch.cuda.memory._snapshot`, which PyTorch's memory viewer opens."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suite.paths import whole_file
from suite.predict.timeline.allocations import BlockEvent

GRANULE = 512  # bytes, to which PyTorch's allocator rounds places
FIRST_ADDRESS = 0x7F0000000000


def memory_snapshot(made: Sequence[BlockEvent], where: str) -> dict[str, Any]:
    """The snapshot: one segment for each category and kind, the blocks that are left, and every event in order.

    A block's size is the predicted one; only its place is rounded. Frames are, from the innermost on: kind, category,
    when it was made. `time_us` counts events.

    Args:
        where: the rank, as the frames' file.

    Source: PyTorch 2.13, torch/cuda/memory.py, _snapshot and _record_memory_history; torch/cuda/_memory_viz.py (read).
    """
    segments = _segments(made)
    free = {key: list(range(number))[::-1] for key, (_, _, number) in segments.items()}
    places: dict[int, tuple[int, int]] = {}
    events: list[dict[str, Any]] = []
    alive: dict[int, BlockEvent] = {}
    for key, (address, slot, number) in segments.items():
        frames = _frames(key[1], key[0], "reserved", where)
        events.append(_event("segment_alloc", address, slot * number, len(events), frames))
    for each in made:
        key = each.category, each.kind
        first, size, _ = segments[key]
        frames = _frames(each.kind, each.category, each.when, where)
        if each.is_freed:
            address, slot = places.pop(each.block)
            free[key].append(slot)
            del alive[each.block]
            for action in ("free_requested", "free_completed"):
                events.append(_event(action, address, each.bytes, len(events), frames))
        else:
            slot = free[key].pop()
            places[each.block] = first + slot * size, slot
            alive[each.block] = each
            events.append(_event("alloc", first + slot * size, each.bytes, len(events), frames))
    left = {key: [(places[block][1], each) for block, each in alive.items() if _key(each) == key] for key in segments}
    return {
        "segments": [_segment(segments[key], left[key], where) for key in segments],
        "device_traces": [events],
        "allocator_settings": {},
        "external_annotations": [],
    }


def write_snapshot(path: Path, made: Sequence[BlockEvent], where: str) -> None:
    """Write `memory_snapshot`.

    Raises:
        OSError: the file cannot be written.
    """
    with whole_file(path) as temporary, temporary.open("wb") as file:
        pickle.dump(memory_snapshot(made, where), file, protocol=4)


_SegmentKey = tuple[str, str]  # category and kind


def _key(each: BlockEvent) -> _SegmentKey:
    return each.category, each.kind


def _segments(made: Sequence[BlockEvent]) -> dict[_SegmentKey, tuple[int, int, int]]:
    """Address, bytes of a slot, and slots of each category and kind: as many as live at a time."""
    now: Counter[_SegmentKey] = Counter()
    most: Counter[_SegmentKey] = Counter()
    largest: Counter[_SegmentKey] = Counter()
    for each in made:
        key = _key(each)
        now[key] += -1 if each.is_freed else 1
        most[key] = max(most[key], now[key])
        largest[key] = max(largest[key], each.bytes)
    found, address = {}, FIRST_ADDRESS
    for key, number in most.items():
        slot = -(-largest[key] // GRANULE) * GRANULE
        found[key] = address, slot, number
        address += slot * number
    return found


def _event(action: str, address: int, size: int, number: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": number, "frames": frames}


def _frames(kind: str, category: str, when: str, where: str) -> list[dict[str, Any]]:
    return [{"filename": where, "line": 0, "name": name} for name in dict.fromkeys((kind, category, when))]


def _segment(segment: tuple[int, int, int], alive: list[tuple[int, BlockEvent]], where: str) -> dict[str, Any]:
    """A segment with a block for each slot."""
    address, slot, number = segment
    by_slot = dict(alive)
    blocks = []
    for index in range(number):
        each = by_slot.get(index)
        blocks.append(
            {
                "address": address + index * slot,
                "size": slot,
                "requested_size": each.bytes if each else 0,
                "state": "active_allocated" if each else "inactive",
                "frames": _frames(each.kind, each.category, each.when, where) if each else [],
            }
        )
    requested = sum(each.bytes for _, each in alive)
    return {
        "device": 0,
        "address": address,
        "total_size": slot * number,
        "allocated_size": slot * len(alive),
        "active_size": slot * len(alive),
        "requested_size": requested,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }
