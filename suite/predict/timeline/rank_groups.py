"""The ranks of each group that communicates, by number."""

from __future__ import annotations

from collections.abc import Mapping

from reference_runs.layout import Layout
from reference_runs.placement import axis_sizes, coordinates, head_stage

_AXES = {"tp": ("tp",), "cp": ("cp",), "dp": ("dp", "ep", "cp"), "edp": ("dp", "cp")}


def rank_at(layout: Layout, places: Mapping[str, int]) -> int:
    """The rank at these coordinates: the inverse of `coordinates`."""
    rank, stride, sizes = 0, 1, axis_sizes(layout)
    for axis in layout.axis_order:
        rank += stride * places[axis]
        stride *= sizes[axis]
    return rank


def group_of(layout: Layout, rank: int, axis: str, *, head_copies: int = 1) -> tuple[int, ...]:
    """Ranks of the group in which `rank` communicates over an axis of traffic, in order; see `group_ranks`.

    Args:
        head_copies: see `key_value_copies`.
    """
    if axis == "kv":
        return _part(_joined(layout, rank, ("tp",)), rank, head_copies)
    if axis == "ep":
        return _joined(layout, rank, ("ep", "tp") if layout.whole_experts else ("ep",))
    if axis == "embedding":
        ends = {0, head_stage(layout)}
        return tuple(each for each in _joined(layout, rank, ("pp",)) if coordinates(layout, each)["pp"] in ends)
    if axis in ("shard", "replicate"):
        whole, sharding = _joined(layout, rank, _AXES["dp"]), layout.sharding_ranks
        if axis == "shard":
            return _part(whole, rank, sharding)
        return whole[whole.index(rank) % sharding :: sharding]
    return _joined(layout, rank, _AXES[axis])


def _part(ranks: tuple[int, ...], rank: int, size: int) -> tuple[int, ...]:
    """The part of so many neighbours that has `rank`."""
    first = ranks.index(rank) // size * size
    return ranks[first : first + size]


def _joined(layout: Layout, rank: int, axes: tuple[str, ...]) -> tuple[int, ...]:
    """All ranks that differ from `rank` on these axes alone."""
    found = [coordinates(layout, rank)]
    for axis in axes:
        if axis in layout.axis_order:
            found = [places | {axis: place} for places in found for place in range(axis_sizes(layout)[axis])]
    return tuple(sorted(rank_at(layout, places) for places in found))
