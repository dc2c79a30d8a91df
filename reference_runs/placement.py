"""Where ranks and layers stand: the coordinate of a rank on every axis, and the layers of every chunk of the model."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from reference_runs.layout import Layout, StageAssignment
from reference_runs.run import Architecture


def axis_sizes(layout: Layout) -> dict[str, int]:
    """Axis -> ranks on it; stages have the same number of replicas."""
    return {
        "dp": layout.data_parallel,
        "tp": layout.tensor_parallel,
        "pp": layout.pipeline_stages,
        "cp": layout.context_parallel,
        "ep": layout.expert_parallel,
    }


def coordinates(layout: Layout, rank: int) -> dict[str, int]:
    """Axis -> coordinate of `rank` on it, from 0; the first axis of `layout.rank_order` has consecutive ranks.

    rank = i_1 + n_1 (i_2 + n_2 (i_3 + ...)) with coordinates i and sizes n of the axes in the layout's order. Where
    stages have different numbers of replicas: those of the first stage, then those of the second one, and so on.
    """
    if layout.stage_replicas is not None:
        ends = list(accumulate(layout.stage_replicas))
        stage = bisect_right(ends, rank)
        replica = rank - ends[stage] + layout.stage_replicas[stage]
        return dict.fromkeys(layout.axis_order, 0) | {"dp": replica, "pp": stage}
    sizes = axis_sizes(layout)
    by_axis: dict[str, int] = {}
    for axis in layout.axis_order:
        rank, by_axis[axis] = divmod(rank, sizes[axis])
    return by_axis


def context_parts(rank: int, ranks: int) -> tuple[int, int]:
    """Which two of 2 c equal parts of every sequence context-parallel rank i of c has: i and 2 c - 1 - i.

    Under a causal mask all ranks then have as many scores to compute: part j has those of j + 1 parts of keys.
    Source: Llama team 2024, arXiv 2407.21783, section 3.3.2 (2 x CP chunks).
    """
    return rank, 2 * ranks - 1 - rank


def chunk_layers(layers: int, layout: Layout) -> list[range]:
    """The layers, numbered from 0 in the whole model, of each of the p v chunks, which `stage_chunks` places.

    With p pipeline stages and v virtual stages a rank:
        layers             L / (p v) each; the first L mod p v chunks have one more
        layers and tables  as if embedding and head were a layer each, less one on the first and one on the last chunk
        counted            `layout.stage_layer_counts`, where they are given
    """
    if layout.stage_layer_counts is not None:
        ends = list(accumulate(layout.stage_layer_counts, initial=0))
        return [range(first, end) for first, end in pairwise(ends)]
    chunks = layout.pipeline_stages * layout.virtual_stages
    with_tables = layout.stage_assignment is StageAssignment.LAYERS_AND_TABLES
    each, more = divmod(layers + (2 if with_tables else 0), chunks)
    dealt: list[range] = []
    start = 0
    for chunk in range(chunks):
        stop = start + each + (chunk < more)
        if with_tables:
            stop = stop - (chunk == 0) - (chunk == chunks - 1)
        dealt.append(range(start, stop))
        start = stop
    return dealt


def stage_chunks(layout: Layout, *, stage: int) -> tuple[int, ...]:
    """Numbers of the chunks of a pipeline stage, in the order of the model.

    With p stages, v virtual stages a rank:
        loop    chunk c stands on stage c mod p: k, p + k, ...
        V       k and 2 p - 1 - k (zbv and dualpipev): the last stage's chunks follow each other

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2 (figure 4: consecutive chunks on consecutive stages);
    Qi et al. 2023, arXiv 2401.10241, section 6.
    """
    chunks = layout.pipeline_stages * layout.virtual_stages
    if layout.schedule.shape_of_v and chunks > 1:
        return stage, chunks - 1 - stage
    return tuple(range(stage, chunks, layout.pipeline_stages))


def stage_chunk_layers(layers: int, layout: Layout, *, stage: int) -> list[range]:
    """Layers of each chunk of a pipeline stage, as `chunk_layers` deals them."""
    dealt = chunk_layers(layers, layout)
    return [dealt[chunk] for chunk in stage_chunks(layout, stage=stage)]


def head_stage(layout: Layout) -> int:
    """The pipeline stage with the last chunk, and so with final norm and head; the first stage has the embedding.

    In a V it is the first stage too.
    """
    return 0 * layout.pipeline_stages if layout.schedule.shape_of_v else layout.pipeline_stages - 1


class Blocks(NamedTuple):
    """Layers and tables of one stage."""

    layers: int
    embedding: bool
    norm: bool
    head: bool


@lru_cache(maxsize=64)
def balanced_stages(architecture: Architecture, *, stages: int) -> tuple[Blocks, ...]:
    """Blocks of each of p stages when a stage takes blocks until it has its share of the cost.

    Embedding, layers, norm and head stand in this order; a layer costs its matrices' elements, the head V h, the others
    nothing. Stage k (from 0) ends with the first block at which the cost from the beginning is (k + 1) / p of all, or
    more. Where the head costs more than a stage's share, the last stages have the head alone, or nothing.

    Llama 1B with V = 131072, whose head costs four layers of 16: 10 + 6, 5 + 5 + 5 + 1, 3 + 2 + 3 + 2 + 3 + 2 + 1 + 0.
    Source: nanotron 0.4, models/base.py, build_model. Differs from it where a cost equals the share exactly: 0.4 takes
    one block more there. The 42 published peaks with t = 1 and p = 2 or 4 say otherwise: in the median they are 10 %
    below a prediction with the block more, and 2 % below and 4 % above this one.
    """
    h = architecture.hidden
    matrices = 3 if architecture.activation.gated else 2
    attention = 2 * h * architecture.query_width + 2 * h * architecture.kv_heads * architecture.head_dim
    layer = attention + matrices * h * architecture.ffn_hidden
    head = architecture.padded_vocabulary * h
    costs = [("embedding", 0), *[("layer", layer)] * architecture.layers, ("norm", 0), ("head", head)]
    total, done = architecture.layers * layer + head, 0
    names: list[list[str]] = [[] for _ in range(stages)]
    stage = 0
    for name, cost in costs:
        done += cost
        names[stage].append(name)
        if done * stages >= total * (stage + 1) and stage < stages - 1:
            stage += 1
    return tuple(Blocks(of.count("layer"), "embedding" in of, "norm" in of, "head" in of) for of in names)
