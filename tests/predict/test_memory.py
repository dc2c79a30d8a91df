from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.layout import Layout
from reference_runs.run import Architecture, Precision, Recipe
from suite.predict.memory import gradient_bytes, group_elements, optimizer_bytes, shard_elements, weight_bytes
from suite.predict.parameters import parameter_count, parameter_tensors
from tests.strategies import BLOOM, architectures, data_parallel_layouts, recipes

COUNTER = 4  # bytes of the step counter of an optimizer group


def state_bytes(architecture: Architecture, recipe: Recipe, layout: Layout) -> int:
    return (
        weight_bytes(architecture, recipe, layout)
        + gradient_bytes(architecture)
        + optimizer_bytes(architecture, recipe, layout)
    )


def with_ranks(ranks: int, *, zero_stage: int) -> Layout:
    return Layout(data_parallel=ranks, zero_stage=zero_stage)


@given(architectures(), recipes(), st.integers(1, 64))
def test_unsharded_state_is_18_bytes_a_parameter_in_bf16_and_16_in_fp32(
    architecture: Architecture, recipe: Recipe, ranks: int
) -> None:
    counters = COUNTER * len(group_elements(architecture, recipe))
    each = {Precision.BF16: 18, Precision.FP32: 16}[recipe.precision]
    state = state_bytes(architecture, recipe, with_ranks(ranks, zero_stage=0))
    assert state == each * parameter_count(architecture) + counters


@given(architectures(), recipes())
def test_the_groups_are_matrices_and_vectors_and_together_everything(
    architecture: Architecture, recipe: Recipe
) -> None:
    groups = group_elements(architecture, recipe)
    assert sum(groups) == parameter_count(architecture)
    vectors = sum(tensor.elements for tensor in parameter_tensors(architecture) if not tensor.matrix)
    assert groups[1:] == ([] if recipe.decay_of_vectors else [vectors])


@given(architectures(), recipes(), data_parallel_layouts())
def test_sharding_over_one_rank_changes_nothing(architecture: Architecture, recipe: Recipe, layout: Layout) -> None:
    one, plain = (msgspec.structs.replace(layout, data_parallel=1, zero_stage=stage) for stage in (1, 0))
    assert weight_bytes(architecture, recipe, one) == weight_bytes(architecture, recipe, plain)
    assert optimizer_bytes(architecture, recipe, one) == optimizer_bytes(architecture, recipe, plain)


@given(architectures(), recipes(), st.integers(1, 64))
def test_unsharded_state_does_not_depend_on_ranks(architecture: Architecture, recipe: Recipe, ranks: int) -> None:
    one, many = (state_bytes(architecture, recipe, with_ranks(n, zero_stage=0)) for n in (1, ranks))
    assert one == many


@given(architectures(), recipes(), st.integers(1, 32))
def test_twice_the_ranks_halve_the_sharded_state_up_to_padding(
    architecture: Architecture, recipe: Recipe, ranks: int
) -> None:
    groups = group_elements(architecture, recipe)
    element = {Precision.BF16: 12, Precision.FP32: 8}[recipe.precision]

    def sharded(n: int) -> int:
        return optimizer_bytes(architecture, recipe, with_ranks(n, zero_stage=1)) - COUNTER * len(groups)

    # ceil(N / 2n) is ceil(N / n) / 2 rounded up: at most half an element a group too many
    assert 0 <= 2 * sharded(2 * ranks) - sharded(ranks) <= element * len(groups)


@given(architectures(), recipes(), st.integers(1, 64))
def test_all_shards_together_hold_each_element_once_and_less_than_one_padding_element_a_rank(
    architecture: Architecture, recipe: Recipe, ranks: int
) -> None:
    groups = group_elements(architecture, recipe)
    element = {Precision.BF16: 12, Precision.FP32: 8}[recipe.precision]
    layout = with_ranks(ranks, zero_stage=1)
    together = ranks * (optimizer_bytes(architecture, recipe, layout) - COUNTER * len(groups)) // element
    assert 0 <= together - parameter_count(architecture) <= (ranks - 1) * len(groups)
    stored = weight_bytes(architecture, recipe, layout) // {Precision.BF16: 2, Precision.FP32: 4}[recipe.precision]
    assert stored == together


@given(st.integers(0, 10**6), st.integers(1, 1000))
def test_shards_are_the_shortest_equal_runs_that_cover_the_elements(elements: int, shards: int) -> None:
    each = shard_elements(elements, shards)
    assert shards * each >= elements
    assert elements == 0 or shards * (each - 1) < elements


@given(architectures(), recipes(), st.integers(1, 63))
def test_sharded_optimizer_state_never_grows_with_ranks(architecture: Architecture, recipe: Recipe, ranks: int) -> None:
    fewer, more = (optimizer_bytes(architecture, recipe, with_ranks(n, zero_stage=1)) for n in (ranks, ranks + 1))
    assert more <= fewer


@given(architectures(), recipes(), data_parallel_layouts())
def test_state_grows_with_layers(architecture: Architecture, recipe: Recipe, layout: Layout) -> None:
    deeper = msgspec.structs.replace(architecture, layers=architecture.layers + 1)
    assert gradient_bytes(deeper) > gradient_bytes(architecture)
    assert state_bytes(deeper, recipe, layout) > state_bytes(architecture, recipe, layout)


def test_blooms_checkpoint_is_its_weights_and_optimizer_state() -> None:
    layout = Layout(data_parallel=1)
    written = weight_bytes(BLOOM.architecture, BLOOM.recipe, layout)
    written += optimizer_bytes(BLOOM.architecture, BLOOM.recipe, layout)
    # the chronicles print a checkpoint of 2.3 TB, to 0.05 TB, which in their TB = TiB or 10^12 spans 2.25 to 2.59 e12
    assert 2.25e12 <= written <= 2.35 * 2**40
    assert written == pytest.approx(14 * 176_247_271_424, abs=2 * COUNTER)
