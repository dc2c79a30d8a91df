"""Pipeline stages of which one is the slowest and one the fullest, and the time of all from theirs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from reference_runs.layout import Layout
from reference_runs.placement import chunk_layers, stage_chunks
from reference_runs.run import Architecture
from suite.predict.analytic.elementwise import by_row, chosen, larger, smaller
from suite.predict.analytic.stage_layers import stage_layer_kinds, stage_layers


def timed_stages(architecture: Architecture, layout: Layout) -> tuple[int, ...]:
    """Pipeline stages among which the slowest is, each once: the first, the second, the last.

    All others have no more layers than the second and, like it, neither embedding nor head. Where the first layers are
    dense and others have experts, two more of those between: the one with most experts, and one with another share of
    them than the second. In a V chunks of both halves may have the remainder: the one between with most layers besides.
    All stages where their layers are given.

    Of arrays of stages all three to five, of which some may name the same stage.
    """
    stages: Any = layout.pipeline_stages
    if layout.stage_layer_counts is not None or (isinstance(stages, int) and stages < 3):
        return tuple(range(stages))
    keys = _key_stages(architecture, layout)
    if layout.schedule.shape_of_v and len(keys) == 3:
        keys = (*keys, _stage_between(architecture, layout, 0))
    return tuple(sorted(set(keys))) if isinstance(stages, int) else keys


def _key_stages(architecture: Architecture, layout: Layout) -> tuple[int, ...]:
    """The first stage, the second and the last; with dense layers before others, two more: see `timed_stages`."""
    stages: Any = layout.pipeline_stages
    ends = (0 * stages, smaller(1, stages - 1), stages - 1)
    if not architecture.first_kind_layers:
        return ends
    return (*ends, _stage_between(architecture, layout, 0), _stage_between(architecture, layout, 1))


def _stage_between(architecture: Architecture, layout: Layout, which: int) -> int:
    """The first or second stage of `_between`, for each layout of arrays."""
    # with numbers in place of arrays, as a key
    one = msgspec.structs.replace(Layout(), schedule=layout.schedule, stage_assignment=layout.stage_assignment)

    def stage(stages: int, virtual: int) -> int:
        return _between(architecture, one, int(stages), int(virtual))[which]

    return by_row(stage, layout.pipeline_stages, layout.virtual_stages)


@lru_cache(maxsize=4096)
def _between(architecture: Architecture, layout: Layout, stages: int, virtual: int) -> tuple[int, int]:
    """Between the first stage and the last: the one with most layers beyond so many dense ones, and of those with
    another share of dense layers than the second the one with most layers, or else the same again.

    Of several the one with most dense layers, and the earliest of these; the last stage, where there is none between.
    """
    layout = msgspec.structs.replace(layout, pipeline_stages=stages, virtual_stages=virtual)
    dealt = chunk_layers(architecture.layers, layout)
    counts: dict[int, tuple[int, int]] = {}
    for stage in range(1, stages - 1):
        numbers = [layer for chunk in stage_chunks(layout, stage=stage) for layer in dealt[chunk]]
        of_dense = sum(map(architecture.is_of_first_kind, numbers))
        counts[stage] = (len(numbers) - of_dense, of_dense)
    if not counts:
        return stages - 1, stages - 1
    most = max(counts, key=lambda stage: (counts[stage], -stage))
    others, of_dense = counts[1]
    unlike = [stage for stage, (here, dense_here) in counts.items() if here * of_dense != dense_here * others]
    return most, max(unlike, key=lambda stage: (sum(counts[stage]), -stage), default=most)


def all_stages_seconds(
    architecture: Architecture, layout: Layout, passes: Sequence[float], sends: Sequence[float]
) -> float:
    """Seconds of one micro-batch in all stages one after the other, from passes and messages of `timed_stages`.

    Stages between the second and the last have layers alone, so they take the second's time for each of its layers, and
    send as often as it does; where they differ in dense layers, each kind takes the time that follows from both.
    (Recomputation from a stage's input grows with the square of its layers: a stage that has one less than the second
    then counts a little too much.)
    """
    stages: Any = layout.pipeline_stages
    if len(passes) < 3 or layout.stage_layer_counts is not None:
        return sum(passes) + sum(sends)
    timed, keys = timed_stages(architecture, layout), _key_stages(architecture, layout)
    # arrays may hold pipelines of one or two stages, whose second or last stage is named twice
    places = [timed.index(stage) for stage in keys] if isinstance(stages, int) else range(len(keys))
    of_keys, sends_of_keys = [passes[place] for place in places], [sends[place] for place in places]
    middle = _middle_seconds(architecture, layout, keys, of_keys) + (stages - 2) * sends_of_keys[1]
    ends_seconds = of_keys[0] + sends_of_keys[0] + of_keys[2] + sends_of_keys[2]
    several: float = ends_seconds + chosen(stages > 2, middle, 0.0 * middle)
    return chosen(stages > 1, several, of_keys[0] + sends_of_keys[0])


def _middle_seconds(architecture: Architecture, layout: Layout, keys: Sequence[int], passes: Sequence[float]) -> float:
    """Seconds of the passes of all stages between the first and the last."""
    first, second, last = keys[:3]
    layers = [stage_layers(architecture, layout, stage=stage) for stage in (first, second, last)]
    each = larger((architecture.layers - layers[0] - layers[2]) / larger(layers[1], 1), 0.0) * passes[1]
    if len(keys) == 3:
        return each
    of_kinds = [[number for _, number in stage_layer_kinds(architecture, layout, stage=stage)] for stage in keys]
    dense, others = zip(*of_kinds, strict=True)
    # the seconds of a dense layer and of one with experts are those with which the second stage and the last of the
    # keys take what they take
    apart = dense[1] * others[4] - dense[4] * others[1]
    divisor = chosen(apart == 0, 1, apart)
    of_dense = (passes[1] * others[4] - passes[4] * others[1]) / divisor
    of_other = (passes[4] * dense[1] - passes[1] * dense[4]) / divisor
    rest_dense = larger(architecture.first_kind_layers - dense[0] - dense[2], 0)
    rest = larger(architecture.layers - architecture.first_kind_layers - others[0] - others[2], 0)
    seconds: float = chosen(apart == 0, each, rest_dense * of_dense + rest * of_other)
    return seconds
