from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import reference_run
from reference_runs.layout import AXES, Layout, StageAssignment
from reference_runs.placement import (
    chunk_layers,
    context_parts,
    coordinates,
    head_stage,
    stage_chunk_layers,
    stage_chunks,
)
from suite.predict.analytic.stage_layers import stage_layers
from tests.support.strategies import BLOOM, described_architectures

COUNTS = st.integers(1, 4)


@given(COUNTS, COUNTS, COUNTS, COUNTS, st.permutations(AXES))
def test_ranks_count_through_the_axes_with_the_first_one_fastest(
    dp: int, tp: int, pp: int, cp: int, order: list[str]
) -> None:
    layout = Layout(
        data_parallel=dp, tensor_parallel=tp, pipeline_stages=pp, context_parallel=cp, rank_order="-".join(order)
    )
    sizes = {"dp": dp, "tp": tp, "pp": pp, "cp": cp}
    # the last factor of a product varies fastest
    places = itertools.product(*(range(sizes[axis]) for axis in reversed(order)))
    expected = [dict(zip(reversed(order), place, strict=True)) for place in places]
    assert [coordinates(layout, rank) for rank in range(layout.ranks)] == expected


def test_blooms_tensor_parallel_ranks_are_neighbours_and_its_stages_farthest_apart() -> None:
    # 8 dp, 4 tp, 12 pp
    assert coordinates(BLOOM.layout, 1) == {"tp": 1, "cp": 0, "dp": 0, "pp": 0}
    assert coordinates(BLOOM.layout, 4) == {"tp": 0, "cp": 0, "dp": 1, "pp": 0}
    assert coordinates(BLOOM.layout, 383) == {"tp": 3, "cp": 0, "dp": 7, "pp": 11}


@given(st.integers(1, 20))
def test_context_parallel_ranks_share_out_all_parts_and_have_as_many_scores_each(ranks: int) -> None:
    parts = [context_parts(rank, ranks) for rank in range(ranks)]
    assert sorted(itertools.chain(*parts)) == list(range(2 * ranks))
    assert len({first + second for first, second in parts}) == 1  # part j sees j + 1 parts


def dealt(layers: int, chunks: int, assignment: StageAssignment) -> list[list[int]]:
    """Embedding, layers and head in a row, each chunk taking its share of what is left; tables then put aside."""
    row: list[int] = list(range(layers))
    if assignment is StageAssignment.LAYERS_AND_TABLES:
        row = [-1, *row, -1]
    shares = []
    for left in range(chunks, 0, -1):
        share = -(-len(row) // left)
        shares.append([layer for layer in row[:share] if layer >= 0])
        row = row[share:]
    return shares


@given(st.integers(1, 40), COUNTS, COUNTS, st.sampled_from(StageAssignment))
def test_chunks_take_their_share_of_what_is_left(
    layers: int, stages: int, virtual_stages: int, assignment: StageAssignment
) -> None:
    layers += stages * virtual_stages - 1
    layout = Layout(pipeline_stages=stages, virtual_stages=virtual_stages, stage_assignment=assignment)
    chunks = [list(chunk) for chunk in chunk_layers(layers, layout)]
    assert chunks == dealt(layers, stages * virtual_stages, assignment)
    assert list(itertools.chain(*chunks)) == list(range(layers))


@given(st.data(), st.integers(1, 9), st.integers(1, 4), st.sampled_from(StageAssignment))
def test_the_closed_form_of_a_stages_layers_counts_its_chunks(
    data: st.DataObject, stages: int, virtual_stages: int, assignment: StageAssignment
) -> None:
    architecture = data.draw(described_architectures())
    one_each = Layout(pipeline_stages=min(stages, architecture.layers), stage_assignment=assignment)
    chunks = chunk_layers(architecture.layers, one_each)
    assert [len(chunk) for chunk in chunks] == [
        stage_layers(architecture, one_each, stage=stage) for stage in range(one_each.pipeline_stages)
    ]
    # interleaved stages divide the layers, and then each chunk has as many
    shape = reference_run("gpt3-175b").architecture
    layout = Layout(pipeline_stages=4, virtual_stages=virtual_stages)
    for stage in range(4):
        own = chunk_layers(shape.layers, layout)[stage::4]
        assert sum(map(len, own)) == stage_layers(shape, layout, stage=stage) == 24


@pytest.mark.parametrize(
    ("assignment", "chunks"),
    [(StageAssignment.LAYERS, [3, 3, 2, 2]), (StageAssignment.LAYERS_AND_TABLES, [2, 3, 3, 2])],
)
def test_ten_layers_on_two_stages_of_two_chunks(assignment: StageAssignment, chunks: list[int]) -> None:
    layout = Layout(pipeline_stages=2, virtual_stages=2, stage_assignment=assignment)
    assert [len(chunk) for chunk in chunk_layers(10, layout)] == chunks
    # the first stage has chunks 0 and 2
    assert [len(chunk) for chunk in chunk_layers(10, layout)[0::2]] == [chunks[0], chunks[2]]


@given(st.integers(1, 20), COUNTS, COUNTS)
def test_every_chunk_stands_on_one_stage_and_the_last_one_with_the_head(layers: int, pp: int, virtual: int) -> None:
    layout = Layout(pipeline_stages=pp, virtual_stages=virtual)
    on_stages = [stage_chunks(layout, stage=stage) for stage in range(pp)]
    assert sorted(itertools.chain(*on_stages)) == list(range(pp * virtual))
    assert all(list(chunks) == sorted(chunks) and len(chunks) == virtual for chunks in on_stages)
    assert on_stages[head_stage(layout)][-1] == pp * virtual - 1
    assert on_stages[0][0] == 0
    by_stage = [stage_chunk_layers(layers, layout, stage=stage) for stage in range(pp)]
    assert sorted(layer for chunks in by_stage for chunk in chunks for layer in chunk) == list(range(layers))
