from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import layout_mistakes
from reference_runs.layout import Layout, Schedule, StageAssignment
from reference_runs.placement import chunk_layers
from reference_runs.run import Architecture, Workload
from suite.predict.analytic.stage_layers import chunk_layer_kinds, layer_kinds, stage_layer_kinds, stage_layers
from tests.support.strategies import BLOOM, routed_architectures

SIXTEEN = Layout(pipeline_stages=16, virtual_stages=8, stage_assignment=StageAssignment.LAYERS_AND_TABLES)


def shape(layers: int) -> Architecture:
    return msgspec.structs.replace(BLOOM.architecture, layers=layers)


@given(st.integers(1, 60), st.integers(1, 6), st.integers(1, 5), st.sampled_from(StageAssignment))
def test_a_stage_has_the_layers_of_its_chunks(layers: int, stages: int, virtual: int, how: StageAssignment) -> None:
    layout = Layout(pipeline_stages=stages, virtual_stages=virtual, stage_assignment=how)
    if stages > layers or stages * virtual > layers + 2 * (how is StageAssignment.LAYERS_AND_TABLES):
        return
    dealt = [len(chunk) for chunk in chunk_layers(layers, layout)]
    counted = msgspec.structs.replace(layout, stage_layer_counts=tuple(dealt))
    for stage in range(stages):
        assert stage_layers(shape(layers), layout, stage=stage) == sum(dealt[stage::stages])
        assert stage_layers(shape(layers), counted, stage=stage) == sum(dealt[stage::stages])


@given(routed_architectures(), st.integers(1, 4), st.integers(1, 3))
def test_kinds_of_layers_on_all_stages_are_those_of_the_model(shape: Architecture, stages: int, virtual: int) -> None:
    layout = Layout(pipeline_stages=min(stages, shape.layers), virtual_stages=virtual)
    totals = [0] * len(layer_kinds(shape))
    for stage in range(layout.pipeline_stages):
        kinds = stage_layer_kinds(shape, layout, stage=stage)
        assert sum(layers for _, layers in kinds) == stage_layers(shape, layout, stage=stage)
        totals = [total + layers for total, (_, layers) in zip(totals, kinds, strict=True)]
    assert totals == [layers for _, layers in layer_kinds(shape)]
    assert sum(totals) == shape.layers


def test_126_layers_are_a_layer_less_on_the_first_and_the_last_of_16_stages() -> None:
    """Llama 3 405B: the first chunk has the embedding alone, the last one the head alone."""
    assert [stage_layers(shape(126), SIXTEEN, stage=stage) for stage in range(16)] == [7, *14 * [8], 7]
    dealt = [len(chunk) for chunk in chunk_layers(126, SIXTEEN)]
    assert dealt == [0, *126 * [1], 0]
    counted = Layout(pipeline_stages=16, virtual_stages=8, stage_layer_counts=tuple(dealt))
    assert [stage_layers(shape(126), counted, stage=stage) for stage in range(16)] == [7, *14 * [8], 7]


def test_a_list_of_layers_has_an_entry_a_stage_and_all_layers_and_a_chunk_has_a_layer_or_table() -> None:
    def mistakes(layers: int, layout: Layout) -> list[str]:
        return [str(mistake) for mistake in layout_mistakes(Workload(shape(layers), BLOOM.recipe, layout), "here")]

    two = Layout(pipeline_stages=2)
    for counts, complaint in (
        ((30, 40), None),
        ((70, 0), None),
        ((30, 39), "stage_layer_counts: 2 entries with 69 layers; got [30, 39], allowed: one for each of 2 stages, 70"),
        ((30, 30, 10), "stage_layer_counts: 3 entries with 70 layers"),
    ):
        found = mistakes(70, msgspec.structs.replace(two, stage_layer_counts=counts))
        assert [complaint in mistake for mistake in found] == ([] if complaint is None else [True]), counts
    four = msgspec.structs.replace(SIXTEEN, pipeline_stages=4)
    assert mistakes(30, four) == []
    assert "more pipeline stages than layers; got 32" in mistakes(29, four)[0]


def test_a_chunk_has_the_kinds_of_its_layers_alone() -> None:
    mixed = msgspec.structs.replace(BLOOM.architecture, layers=7, experts=4, experts_per_token=2, dense_layers=2)
    dense, sparse = layer_kinds(mixed)
    assert (dense.layers, sparse.layers) == (2, 5)
    for layers, of_dense, of_sparse in ((range(2), 2, 0), (range(1, 4), 1, 2), (range(2, 4), 0, 2), (range(7), 2, 5)):
        expected = [kind._replace(layers=count) for kind, count in ((dense, of_dense), (sparse, of_sparse)) if count]
        assert chunk_layer_kinds(mixed, layers) == expected


def test_in_a_v_the_first_chunks_have_one_more_layer_and_turn_back() -> None:
    """Chunks 0 and 3 stand on the first of two stages, 1 and 2 on the other."""
    layout = Layout(pipeline_stages=2, virtual_stages=2, schedule=Schedule.ZBV)
    on_stages = {4: [2, 2], 5: [3, 2], 6: [3, 3], 7: [3, 4], 8: [4, 4]}
    found = {n: [stage_layers(shape(n), layout, stage=stage) for stage in range(2)] for n in on_stages}
    assert found == on_stages
