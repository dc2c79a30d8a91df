"""Low-rank adapters: their published numbers, and laws of the memory that training them takes."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import reference_run
from suite.predict.analytic.adapters import adapted_matrices, adapted_memory, adapter_parameters
from suite.predict.analytic.weight_formats import WeightFormat, matrices_bytes, scale_bytes, weight_parts
from tests.support.strategies import routed_architectures, varied_architectures

RECIPE = reference_run("llama2-7b").recipe
BASES = (WeightFormat.BF16, WeightFormat.NF4)
SHAPES = varied_architectures() | routed_architectures()
# As peft prints "trainable params" of every linear layer with rank 16 (widely posted logs)
PUBLISHED = {"llama2-7b": 39_976_960, "llama3.1-8b": 41_943_040}


def test_adapters_of_every_linear_layer_have_the_published_parameters() -> None:
    found = {name: adapter_parameters(reference_run(name).architecture, rank=16) for name in PUBLISHED}
    assert found == PUBLISHED


@given(SHAPES, st.integers(1, 9), st.sampled_from(BASES))
def test_a_parameter_of_an_adapter_takes_16_bytes_beside_frozen_weights(shape, rank: int, base: WeightFormat) -> None:
    found = adapted_memory(shape, RECIPE, base=base, rank=rank)
    parts = weight_parts(shape)
    stored = [matrices_bytes(WeightFormat.BF16 if each.stacked else base, each) for each in parts.linear]
    assert found.base == parts.whole_bytes + sum(stored)
    assert found.adapters == 16 * adapter_parameters(shape, rank=rank)
    assert adapter_parameters(shape, rank=rank) == rank * adapter_parameters(shape, rank=1)
    assert found.outside == found.unit == 0
    assert found.unpacked == 0 or base is WeightFormat.NF4
    assert shape.experts is not None or (found.unpacked > 0) is (base is WeightFormat.NF4)
    gradients = found.adapters // 4
    state, moment = found.base + found.adapters, found.layer + found.unpacked
    first = moment - found.coming  # of the layers, and the last whose gradients come
    fullest = (found.kept + found.loss - gradients, found.kept + moment - gradients, first, gradients)
    assert found.peak == state + max(fullest)


@given(SHAPES, st.integers(1, 9), st.integers(2, 16), st.sampled_from(BASES))
def test_ranks_share_weights_and_adapters_and_nothing_else(shape, rank: int, ranks: int, base: WeightFormat) -> None:
    one, shared = (adapted_memory(shape, RECIPE, base=base, rank=rank, ranks=number) for number in (1, ranks))
    parts = weight_parts(shape)
    scales = sum(scale_bytes(base, each) for each in parts.linear if not each.stacked)  # which every rank has
    assert one.base - scales <= ranks * (shared.base - scales) < one.base - scales + ranks
    # in 16 bits in place of 32
    assert one.adapters <= 2 * ranks * shared.adapters < one.adapters + 2 * ranks
    assert (shared.kept, shared.loss) == (one.kept, one.loss)
    assert shared.layer < one.layer
    assert shared.unit > 0
    assert shared.outside == 2 * parts.tables


@given(SHAPES, st.integers(1, 9), st.sampled_from(BASES))
def test_longer_sequences_take_more_of_everything_but_weights(shape, rank: int, base: WeightFormat) -> None:
    longer = msgspec.structs.replace(shape, sequence=2 * shape.sequence, position=shape.position)
    short, long = (adapted_memory(each, RECIPE, base=base, rank=rank) for each in (shape, longer))
    assert long.kept == 2 * short.kept
    assert long.loss == 2 * short.loss
    fixed = sum(2 * each.matrices.elements for each in adapted_matrices(shape, shape.other_kind) if each.merged)
    assert long.layer == 2 * short.layer if not fixed else fixed < long.layer < 2 * short.layer
    assert long.adapters == short.adapters
