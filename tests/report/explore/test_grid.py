from __future__ import annotations

import base64
import gzip
import json
import random
import struct
from typing import Any

import pytest

from suite.report.explore.content import content
from suite.report.explore.grid import OUTSIDE, StateGrid, axes_of, combinations, computed_grid, packed, state_at

RUN = "gpt-neox-20b"


@pytest.fixture(scope="module")
def grid() -> StateGrid:
    return computed_grid(RUN, lambda *_: None, most=60)


def unpacked(data: dict[str, str], point: int) -> Any:
    """A content, as the browser unpacks it."""
    head = json.loads(gzip.decompress(base64.b64decode(data["head"])))
    planes = gzip.decompress(base64.b64decode(data["numbers"]))
    count = len(planes) // 4
    raw = bytes(planes[plane * count + index] for index in range(count) for plane in range(4))
    numbers = struct.unpack(f"<{count}f", raw)
    shape, row = head["points"][point]
    starts = [sum(head["sizes"][:column]) for column in head["columns"][shape]]
    taken = iter(numbers[start + row] for start in starts)

    def filled(value: Any) -> Any:
        if value == "\x00":
            return next(taken)
        if value in ("\x01", "\x02"):
            return head[{"\x01": "texts", "\x02": "lists"}[value]][int(next(taken))]
        if isinstance(value, dict):
            return {key: filled(inner) for key, inner in value.items()}
        return [filled(inner) for inner in value] if isinstance(value, list) else value

    return filled(head["shapes"][shape])


def same(left: Any, right: Any) -> bool:
    if isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], inner) for key, inner in right.items())
    if isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(same(one, other) for one, other in zip(left, right, strict=True))
    if isinstance(right, (int, float)) and not isinstance(right, bool):
        return bool(left == pytest.approx(right, rel=2**-23))  # float32 has 24 bits
    return bool(left == right)


def test_the_runs_own_state_and_those_around_it_are_computed(grid: StateGrid) -> None:
    assert len(grid.contents) == 60
    own = content(state_at(RUN, grid_own(grid), grid.held))
    assert same(own["views"], grid.contents[0]["views"])
    assert grid.points.count(OUTSIDE) == len(grid.points) - 60


def grid_own(grid: StateGrid) -> dict[str, Any]:
    return {
        "on": None,
        "dp": 12,
        "tp": 2,
        "pp": 4,
        "micro": 4,
        "zero": "zero1,all-reduce",
        "recompute": "full",
        "sp": False,
    }


def test_what_a_browser_unpacks_is_the_content_of_the_state(grid: StateGrid) -> None:
    data, every = packed(grid), list(combinations(grid.axes))
    inside = [index for index, point in enumerate(grid.points) if point != OUTSIDE]
    for index in random.Random(38).sample(inside, 6):
        assert same(unpacked(data, index), content(state_at(RUN, every[index], grid.held)))


def test_every_control_of_the_layout_varies_or_is_held() -> None:
    axes, held = axes_of(RUN)
    assert {*axes, *held} == {
        *("on", "dp", "tp", "pp", "cp", "ep", "interleave", "micro", "zero", "schedule", "recompute", "every"),
        *("sp", "switches"),
    }
