"""Latent attention over tensor-parallel ranks: what all of them compute, and what they sum."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.layout import Layout, Recomputation
from reference_runs.run import Architecture, Workload
from suite.predict.analytic.activations import layer_activation_bytes
from suite.predict.analytic.flop import layer_forward_flop, redundant_flop
from suite.predict.analytic.latent_attention import latent_products, more_attention_inputs
from suite.predict.analytic.layer_products import layer_products
from suite.predict.analytic.traffic import step_traffic
from tests.support.strategies import BLOOM, routed_architectures

HIDDEN, POSITIONS, SAMPLES = 96, 8, 2
LATENT = msgspec.structs.replace(
    BLOOM.architecture,
    layers=3,
    hidden=HIDDEN,
    heads=4,
    kv_heads=4,
    head_dim=12,
    rotary_dim=4,
    key_value_rank=10,
    value_head_dim=6,
    sequence=POSITIONS,
)


def compression_rows(architecture: Architecture) -> int:
    return (architecture.query_rank or 0) + (architecture.key_value_rank or 0) + (architecture.rotary_dim or 0)


@given(
    st.integers(1, 4).flatmap(lambda t: st.tuples(st.just(t), routed_architectures(tensor_parallel=t))),
    st.integers(1, 3),
    st.booleans(),
)
def test_ranks_together_compute_what_one_does_and_every_compression_but_with_sequence_parallelism(
    drawn: tuple[int, Architecture], samples: int, by_sequence: bool
) -> None:
    t, shape = drawn
    if shape.key_value_rank is None:
        return
    shape = msgspec.structs.replace(shape, sequence=t * shape.sequence)
    layout = Layout(tensor_parallel=t, micro_batch=samples, sequence_parallel=by_sequence)
    products = layer_products(Workload(shape, BLOOM.recipe, layout))
    before = ("query", "query compression", "query expansion", "key, value compression", "key, value expansion")
    of_rank = sum(2 * count * M * N * K for part, (count, M, N, K) in products.items() if part in before)
    every_rank = 0 if by_sequence else 2 * samples * shape.sequence * shape.hidden * compression_rows(shape) * (t - 1)
    one = layer_forward_flop(shape, samples=samples)["query, key, value"]
    assert t * of_rank == one + every_rank
    routers = msgspec.structs.replace(shape, key_value_rank=None)
    more = [redundant_flop(kind, layout, samples=samples, at_once=samples) for kind in (shape, routers)]
    assert more[0] - more[1] == every_rank


@pytest.mark.parametrize("query_rank", [None, 14])
@pytest.mark.parametrize("by_sequence", [False, True])
def test_ranks_sum_narrow_states_before_the_heads(query_rank: int | None, by_sequence: bool) -> None:
    """As many messages as tensors enter the products of a rank's heads, of as many columns as these have."""
    shape = msgspec.structs.replace(LATENT, query_rank=query_rank)
    layout = Layout(
        tensor_parallel=2, micro_batch=SAMPLES, sequence_parallel=by_sequence, recomputation=Recomputation.NONE
    )
    here, there = (
        {
            entry.operation: entry
            for entry in step_traffic(Workload(one, BLOOM.recipe, layout), stage=0, micro_batches=5)
        }
        for one in (shape, msgspec.structs.replace(shape, key_value_rank=None))
    )
    passes, each = 5 * shape.layers, 2 * SAMPLES * POSITIONS  # bytes of a column in 16 bit
    columns = (HIDDEN if query_rank is None else query_rank) + 10 + 4 - HIDDEN
    backward = "reduce_scatter" if by_sequence else "all_reduce"
    assert here[backward].payload_bytes - there[backward].payload_bytes == passes * each * columns
    assert here[backward].messages - there[backward].messages == 2 * passes
    if by_sequence:  # forward, and for the weights' gradients
        assert here["all_gather"].payload_bytes - there["all_gather"].payload_bytes == 2 * passes * each * columns
        assert here["all_gather"].messages - there["all_gather"].messages == 4 * passes


def test_a_worked_example_of_matrices_inputs_and_what_is_kept() -> None:
    """4 heads of 12 columns, 4 of them rotated, and values of 6; from 96 columns over 10, on two ranks."""
    shared = {"key, value compression": (10 + 4, 96), "key, value expansion": (4 * (12 - 4 + 6) // 2, 10)}
    assert latent_products(LATENT, tensor_parallel=2) == {"query": (24, 96), **shared}
    assert more_attention_inputs(LATENT) == (96 + 10 + 4 - 96, 2)
    split = Layout(tensor_parallel=2, sequence_parallel=True)
    kept = layer_activation_bytes(Workload(LATENT, BLOOM.recipe, split))
    assert kept["compressed states"] == kept["normed compressed states"] == 2 * POSITIONS * 10 // 2
    assert (kept["query"], kept["key"], kept["value"]) == tuple(2 * POSITIONS * 2 * width for width in (12, 12, 6))
    compressed = msgspec.structs.replace(LATENT, query_rank=20)
    queries = {"query compression": (20, 96), "query expansion": (24, 20)}
    assert latent_products(compressed, tensor_parallel=2) == {**queries, **shared}
    assert more_attention_inputs(compressed) == (20 + 10 + 4 - 96, 2)
    with_queries = layer_activation_bytes(Workload(compressed, BLOOM.recipe, split))
    assert with_queries["compressed states"] == 2 * POSITIONS * 30 // 2
    assert more_attention_inputs(msgspec.structs.replace(LATENT, rotary_dim=None)) == (10, 2)
    assert more_attention_inputs(BLOOM.architecture) == (0, 0)
