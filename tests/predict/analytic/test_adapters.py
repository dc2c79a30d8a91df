"""Low-rank adapters: their published numbers, and laws of the memory that training them takes."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import reference_run
from suite.predict.analytic.adapters import adapted_memory, adapter_parameters
from suite.predict.analytic.weight_formats import WeightFormat, weight_parts
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
    assert found.base == weight_parts(shape).bytes(base)
    assert found.adapters == 16 * adapter_parameters(shape, rank=rank)
    assert adapter_parameters(shape, rank=rank) == rank * adapter_parameters(shape, rank=1)
    assert found.outside == found.unit == 0
    assert found.unpacked == 0 or base is WeightFormat.NF4
    gradients = found.adapters // 4
    state, moment = found.base + found.adapters, found.layer + found.unpacked
    fullest = (found.kept + found.loss - gradients, found.kept + moment - gradients, moment, gradients)
    assert found.peak == state + max(fullest)


@given(SHAPES, st.integers(1, 9), st.integers(2, 16), st.sampled_from(BASES))
def test_ranks_share_weights_and_adapters_and_nothing_else(shape, rank: int, ranks: int, base: WeightFormat) -> None:
    one, shared = (adapted_memory(shape, RECIPE, base=base, rank=rank, ranks=number) for number in (1, ranks))
    assert one.base <= ranks * shared.base < one.base + ranks
    # in 16 bits in place of 32
    assert one.adapters <= 2 * ranks * shared.adapters < one.adapters + 2 * ranks
    assert (shared.kept, shared.loss) == (one.kept, one.loss)
    assert shared.layer < one.layer
    assert shared.unit > 0
    assert (shared.unpacked > 0) is (base is WeightFormat.NF4)
    assert shared.outside == weight_parts(shape).whole_bytes


@given(SHAPES, st.integers(1, 9), st.sampled_from(BASES))
def test_longer_sequences_take_more_of_everything_but_weights(shape, rank: int, base: WeightFormat) -> None:
    longer = msgspec.structs.replace(shape, sequence=2 * shape.sequence, position=shape.position)
    short, long = (adapted_memory(each, RECIPE, base=base, rank=rank) for each in (shape, longer))
    assert long.kept == 2 * short.kept
    assert long.loss == 2 * short.loss
    assert long.layer == 2 * short.layer
    assert long.adapters == short.adapters
