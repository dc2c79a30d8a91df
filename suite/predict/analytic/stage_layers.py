"""Layers of a pipeline stage: how many, and of which kind."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from reference_runs.layout import Layout, StageAssignment
from reference_runs.placement import head_stage, stage_chunk_layers, stage_chunks
from reference_runs.run import Architecture
from suite.predict.analytic.elementwise import by_row, ceil_division, larger, smaller


class LayerKind(NamedTuple):
    """So many layers, all like those of `architecture`, whose other layers do not count."""

    architecture: Architecture
    layers: int


def stage_layers(architecture: Architecture, layout: Layout, *, stage: int) -> int:
    """Layers on pipeline stage `stage` (counted from 0) of p stages, each with v virtual stages (chunks).

    layers             L / (p v) a chunk; the first L mod p v chunks have one more (`stage_chunks` places them)
    layers and tables  as if embedding and head were a layer each: (L + 2) / (p v) slots, the first (L + 2) mod p v
                       chunks have one more, less one on the first and one on the head's stage
    counted            `layout.stage_layer_counts`, where they are given, summed over the stage's chunks

    Source of the second: BigScience, train/tr11-176B-ml/README.md (--pp-partition-method type:transformer|embedding);
    Zeng et al. 2022, arXiv 2210.02414, section 2.3 (9 * 8 - 2 layers); Llama team 2024, arXiv 2407.21783, section
    3.3.2 (16 * 8 - 2 layers).
    """
    stages, virtual = layout.pipeline_stages, layout.virtual_stages
    if layout.stage_layer_counts is not None:
        return sum(layout.stage_layer_counts[chunk] for chunk in stage_chunks(layout, stage=stage))
    with_tables = layout.stage_assignment is StageAssignment.LAYERS_AND_TABLES
    slots = architecture.layers + (2 if with_tables else 0)
    each, more = slots // (stages * virtual), slots % (stages * virtual)
    if layout.schedule.shape_of_v:
        turned = (virtual > 1) * 1
        layers = (1 + turned) * each + (stage < more) + turned * (stages * virtual - 1 - stage < more)
    elif virtual.__class__ is int and virtual == 1:
        layers = each + (stage < more)
    else:
        layers = virtual * each + larger(smaller(ceil_division(more - stage, stages), virtual), 0)
    if with_tables:
        layers = layers - (stage == 0) - (stage == head_stage(layout))
    return layers


def layer_kinds(architecture: Architecture) -> list[LayerKind]:
    """The kinds of layers of a model: one, or those of `Architecture.first_kind` and the others."""
    first = architecture.first_kind_layers
    others = LayerKind(architecture.other_kind, architecture.layers - first)
    return [LayerKind(architecture.first_kind, first), others] if first else [others]


def chunk_layer_kinds(architecture: Architecture, layers: range) -> list[LayerKind]:
    """The kinds of `layer_kinds` among layers with these numbers, those of which there are any."""
    first = sum(map(architecture.is_of_first_kind, layers))
    kinds = LayerKind(architecture.first_kind, first), LayerKind(architecture.other_kind, len(layers) - first)
    return [kind for kind in kinds if kind.layers]


def stage_layer_kinds(architecture: Architecture, layout: Layout, *, stage: int) -> list[LayerKind]:
    """The kinds of `layer_kinds` with the layers of each that stand on a pipeline stage, also where there are none."""
    layers = stage_layers(architecture, layout, stage=stage)
    if not architecture.first_kind_layers:
        return [LayerKind(architecture.other_kind, layers)]

    def first_kind_layers(stages: int, virtual: int, stage: int) -> int:
        one = Layout(
            schedule=layout.schedule,
            pipeline_stages=int(stages),
            virtual_stages=int(virtual),
            stage_assignment=layout.stage_assignment,
            stage_layer_counts=layout.stage_layer_counts,
        )
        return _first_kind_layers(architecture, one, int(stage))

    first = by_row(first_kind_layers, layout.pipeline_stages, layout.virtual_stages, stage)
    return [LayerKind(architecture.first_kind, first), LayerKind(architecture.other_kind, layers - first)]


@lru_cache(maxsize=4096)  # a search asks for a few hundred of them, each hundreds of times
def _first_kind_layers(architecture: Architecture, layout: Layout, stage: int) -> int:
    chunks = stage_chunk_layers(architecture.layers, layout, stage=stage)
    return sum(architecture.is_of_first_kind(layer) for chunk in chunks for layer in chunk)
