"""Bytes of weights by format: all parameters are in them, once on each rank that stores them."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import reference_run, run_names
from reference_runs.layout import Layout
from suite.predict.analytic.parameters import parameter_count, rank_parameters
from suite.predict.analytic.weight_formats import Matrices, WeightFormat, matrices_bytes, weight_parts
from tests.support.strategies import routed_architectures, varied_architectures


def test_the_parts_of_every_recorded_run_are_all_of_its_parameters() -> None:
    wrong = {}
    for name in run_names():
        architecture = reference_run(name).architecture
        if weight_parts(architecture).bytes(WeightFormat.BF16) != 2 * parameter_count(architecture):
            wrong[name] = weight_parts(architecture)
    assert wrong == {}


@given(
    st.integers(1, 4).flatmap(
        lambda t: st.tuples(
            st.just(t), varied_architectures(tensor_parallel=t) | routed_architectures(tensor_parallel=t)
        )
    )
)
def test_a_rank_stores_what_training_by_tensor_parallelism_stores(drawn) -> None:
    ranks, shape = drawn
    stored = rank_parameters(shape, Layout(tensor_parallel=ranks), stage=0).all
    assert weight_parts(shape, tensor_parallel=ranks).bytes(WeightFormat.BF16) == 2 * stored


def test_bytes_of_a_matrix_are_those_of_its_tensors() -> None:
    rows, columns = 96, 320  # three groups a row, of which the last is half full; 480 blocks of 64 in two superblocks
    expected = {
        WeightFormat.BF16: 2 * 96 * 320,
        WeightFormat.FP8: 96 * 320 + 96 * 4,
        WeightFormat.INT8: 96 * 320 + 96 * (4 + 1),
        WeightFormat.INT4: 96 * 160 + 96 * 3 * (2 + 2),
        WeightFormat.NF4: 96 * 160 + 480 + 2 * 4 + 4,
    }
    assert {each: matrices_bytes(each, Matrices(rows, columns)) for each in WeightFormat} == expected
    assert {each: matrices_bytes(each, Matrices(rows, columns, 3)) for each in WeightFormat} == {
        each: 3 * size for each, size in expected.items()
    }


def test_qlora_stores_the_published_bits_an_element() -> None:
    """Dettmers et al. 2023, section 3: 0.127 bits of scales with double quantisation, and 4 of the element."""
    large = Matrices(8192, 8192)
    assert round(8 * matrices_bytes(WeightFormat.NF4, large) / large.elements, 3) == 4.127


def test_routers_tables_and_norms_stay_in_16_bits() -> None:
    run = reference_run("mixtral-8x7b").architecture
    parts = weight_parts(run)
    routers = run.layers * run.experts * run.hidden
    norms = (2 * run.layers + 1) * run.hidden
    assert parts.whole_bytes == 2 * (2 * run.padded_vocabulary * run.hidden + routers + norms)
    dense = msgspec.structs.replace(run, layers=2 * run.layers)
    assert weight_parts(dense).linear_elements == 2 * parts.linear_elements
