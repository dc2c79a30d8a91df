"""When a step of a trace does what: spans of each kind of work, for a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SHORTEST_GAP = 1 / 1500  # of a step: about a pixel of a picture


class WorkLane(NamedTuple):
    """Spans of one kind of work, in seconds since the step began, those joined that are closer than `SHORTEST_GAP`.

    Args:
        busy_seconds: of the work itself.
    """

    name: str
    spans: list[tuple[float, float]]
    busy_seconds: float


def step_lanes(
    starts: Sequence[int], ends: Sequence[int], kinds: Sequence[int], names: Sequence[str], step: tuple[int, int]
) -> list[WorkLane]:
    """The lanes of a step, in the order of `names`, without those in which nothing runs.

    Args:
        starts, ends, kinds: of each span: nanoseconds, and the index of its name.
        step: where it begins and ends.
    """
    begin, end = step
    gap = (end - begin) * SHORTEST_GAP
    lanes: list[list[tuple[int, int]]] = [[] for _ in names]
    busy = [0] * len(names)
    inside = (index for index in range(len(starts)) if starts[index] < end and ends[index] > begin)
    for index in sorted(inside, key=starts.__getitem__):
        lane, until = lanes[kinds[index]], min(ends[index], end)
        since = max(starts[index], begin)
        busy[kinds[index]] += until - since
        if lane and since <= lane[-1][1] + gap:
            lane[-1] = (lane[-1][0], max(lane[-1][1], until))
        else:
            lane.append((since, until))
    return [
        WorkLane(name, [((since - begin) / 1e9, (until - begin) / 1e9) for since, until in lane], nanoseconds / 1e9)
        for name, lane, nanoseconds in zip(names, lanes, busy, strict=True)
        if lane
    ]
