"""Where ranks and layers stand: the place of a rank on every axis, and the layers of every chunk of the model."""

from __future__ import annotations

from reference_runs.layout import Layout, StageAssignment


def coordinates(layout: Layout, rank: int) -> dict[str, int]:
    """Axis -> place of `rank` on it, from 0; the first axis of `layout.rank_order` has consecutive ranks.

    rank = i_1 + n_1 (i_2 + n_2 (i_3 + ...)) with places i and sizes n of the axes in the layout's order.
    """
    sizes = {
        "dp": layout.data_parallel,
        "tp": layout.tensor_parallel,
        "pp": layout.pipeline_stages,
        "cp": layout.context_parallel,
    }
    places: dict[str, int] = {}
    for axis in layout.rank_order.split("-"):
        rank, places[axis] = divmod(rank, sizes[axis])
    return places


def chunk_layers(layers: int, layout: Layout) -> list[range]:
    """The layers, numbered from 0 in the whole model, of each of the p v chunks; chunk c stands on stage c mod p.

    With p pipeline stages and v virtual stages a rank, so `chunk_layers(...)[k::p]` are the chunks of stage k.
        layers             L / (p v) each; the first L mod p v chunks have one more
        layers and tables  as if embedding and head were a layer each, less one on the first and one on the last chunk

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2 (figure 4: consecutive chunks on consecutive stages).
    """
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
