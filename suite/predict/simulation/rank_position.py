"""Which ranks of a layout execute the same."""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.layout import Layout
from reference_runs.placement import coordinates


class RankPosition(NamedTuple):
    """What sets a rank's sizes apart: its pipeline stage, and its index on the data-parallel axis."""

    stage: int
    replica: int


def rank_position(layout: Layout, rank: int) -> RankPosition:
    """The position of the first rank that executes the same as `rank`.

    Data-parallel ranks are alike, except where weights are fully sharded: their shards have different sizes then.
    """
    place = coordinates(layout, rank)
    return RankPosition(place["pp"], place["dp"] if layout.zero_stage >= 2 else 0)
