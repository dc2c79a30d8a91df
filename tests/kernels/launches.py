"""Launches that would be made, with their settings: nothing is computed."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest


class Launch(NamedTuple):
    """One launch: programs, and named arguments."""

    programs: int
    settings: dict[str, Any]


def recorded_launches(module: Any, monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Launches of a module's kernels from now on."""
    launches: list[Launch] = []

    class Recorded:
        def __getitem__(self, grid: tuple[int]) -> Any:
            return lambda *_, **settings: launches.append(Launch(grid[0], settings))

    monkeypatch.setattr(module, "launchable", lambda _: Recorded())
    return launches
