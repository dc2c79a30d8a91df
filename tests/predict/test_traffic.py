from __future__ import annotations

import msgspec
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.layout import Layout
from reference_runs.run import Architecture, Precision, Recipe
from suite.predict.parameters import parameter_count, parameter_tensors
from suite.predict.traffic import Traffic, data_parallel_traffic, gradient_buckets, ring_factor, ring_sent_bytes
from tests.strategies import BLOOM, architectures, data_parallel_layouts, recipes

CAPS = st.integers(1, 20_000)
LOSS = 4  # bytes of the loss, whose mean is reported


def traffic_by_operation(architecture: Architecture, recipe: Recipe, layout: Layout) -> dict[str, Traffic]:
    return {traffic.operation: traffic for traffic in data_parallel_traffic(architecture, recipe, layout)}


@given(architectures(), CAPS)
def test_buckets_equal_the_assignment_of_torch(architecture: Architecture, cap: int) -> None:
    gradients = [torch.empty(tensor.elements, device="meta") for tensor in reversed(parameter_tensors(architecture))]
    assignment, _ = dist._compute_bucket_assignment_by_size(gradients, [cap])
    expected = [4 * sum(gradients[place].numel() for place in bucket) for bucket in assignment]
    assert gradient_buckets(architecture, bucket_bytes=cap) == expected


@given(architectures(), st.data())
def test_a_bucket_that_holds_exactly_its_cap_is_closed(architecture: Architecture, data: st.DataObject) -> None:
    gradients = [4 * tensor.elements for tensor in reversed(parameter_tensors(architecture))]
    place = data.draw(st.integers(1, len(gradients) - 1))
    cap = sum(gradients[:place])
    assert gradient_buckets(architecture, bucket_bytes=cap)[0] == cap


@given(architectures(), CAPS)
def test_buckets_hold_every_gradient_once_in_fp32(architecture: Architecture, cap: int) -> None:
    buckets = gradient_buckets(architecture, bucket_bytes=cap)
    assert sum(buckets) == 4 * parameter_count(architecture)
    assert all(size >= cap for size in buckets[:-1])


@given(architectures(), CAPS, CAPS)
def test_larger_buckets_are_never_more(architecture: Architecture, first: int, second: int) -> None:
    smaller, larger = sorted((first, second))
    many, few = (gradient_buckets(architecture, bucket_bytes=cap) for cap in (smaller, larger))
    assert len(few) <= len(many) <= len(parameter_tensors(architecture))
    assert gradient_buckets(architecture, bucket_bytes=10**9) == [4 * parameter_count(architecture)]


@given(architectures(), recipes(), data_parallel_layouts(), CAPS)
def test_payload_does_not_depend_on_the_bucket_size(
    architecture: Architecture, recipe: Recipe, layout: Layout, cap: int
) -> None:
    other = msgspec.structs.replace(layout, bucket_bytes=cap)
    assert [traffic.payload_bytes for traffic in data_parallel_traffic(architecture, recipe, layout)] == [
        traffic.payload_bytes for traffic in data_parallel_traffic(architecture, recipe, other)
    ]


@given(architectures(), recipes(), st.integers(2, 16), st.integers(0, 1))
def test_the_gradient_and_the_loss_are_all_reduced_once_a_step(
    architecture: Architecture, recipe: Recipe, ranks: int, zero_stage: int
) -> None:
    for accumulation in (1, 8):
        layout = Layout(data_parallel=ranks, zero_stage=zero_stage, accumulation=accumulation)
        reduced = traffic_by_operation(architecture, recipe, layout)["all_reduce"]
        assert reduced.payload_bytes == 4 * parameter_count(architecture) + LOSS
        assert reduced.messages == len(gradient_buckets(architecture, bucket_bytes=layout.bucket_bytes)) + 1


@given(architectures(), recipes(), st.integers(2, 16))
def test_sharding_adds_one_gather_of_the_padded_weights_for_each_group(
    architecture: Architecture, recipe: Recipe, ranks: int
) -> None:
    plain, sharded = (
        traffic_by_operation(architecture, recipe, Layout(data_parallel=ranks, zero_stage=stage)) for stage in (0, 1)
    )
    assert plain == {"all_reduce": sharded["all_reduce"]}
    gathered = sharded["all_gather"]
    groups = 1 if recipe.decay_of_vectors else 2
    element = {Precision.BF16: 2, Precision.FP32: 4}[recipe.precision]
    padding = gathered.payload_bytes - element * parameter_count(architecture)
    assert gathered.messages == groups
    assert gathered.payload_bytes % (element * ranks) == 0
    assert 0 <= padding <= element * groups * (ranks - 1)


@given(architectures(), recipes(), st.integers(0, 1))
def test_one_rank_sends_nothing(architecture: Architecture, recipe: Recipe, zero_stage: int) -> None:
    assert data_parallel_traffic(architecture, recipe, Layout(data_parallel=1, zero_stage=zero_stage)) == []


def reduce_scattered(ranks: int) -> tuple[list[list[set[int]]], list[int]]:
    """Chunks of each rank as sets of the contributions they hold, and chunks sent: a ring's n - 1 steps."""
    held = [[{rank} for _ in range(ranks)] for rank in range(ranks)]
    sent = [0] * ranks
    for step in range(ranks - 1):
        messages = [(rank, (rank - step) % ranks, held[rank][(rank - step) % ranks]) for rank in range(ranks)]
        for rank, chunk, content in messages:
            held[(rank + 1) % ranks][chunk] = held[(rank + 1) % ranks][chunk] | content
            sent[rank] += 1
    return held, sent


def all_gathered(held: list[list[set[int]]], ranks: int, owned: int) -> list[int]:
    """Chunks sent while every rank passes on what it holds whole: at first chunk rank + owned, then what arrives."""
    sent = [0] * ranks
    for step in range(ranks - 1):
        messages = [
            (rank, (rank + owned - step) % ranks, held[rank][(rank + owned - step) % ranks]) for rank in range(ranks)
        ]
        for rank, chunk, content in messages:
            held[(rank + 1) % ranks][chunk] = set(content)
            sent[rank] += 1
    return sent


@pytest.mark.parametrize("ranks", range(1, 9))
def test_ring_factors_equal_a_ring_that_is_played_through(ranks: int) -> None:
    whole = set(range(ranks))
    held, scattered = reduce_scattered(ranks)
    # rank r ends with the whole sum of chunk r + 1
    assert all(held[rank][(rank + 1) % ranks] == whole for rank in range(ranks))
    gathered = all_gathered(held, ranks, owned=1)
    assert all(chunk == whole for chunks in held for chunk in chunks)
    for rank in range(ranks):
        # a chunk is 1 / n of the payload
        assert ring_factor("reduce_scatter", ranks=ranks) * ranks == scattered[rank]
        assert ring_factor("all_gather", ranks=ranks) * ranks == gathered[rank]
        assert ring_factor("all_reduce", ranks=ranks) * ranks == scattered[rank] + gathered[rank]


@given(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]), st.integers(1, 1000), st.integers(0, 10**13))
def test_sent_bytes_are_within_half_a_byte_of_the_factor(operation: str, ranks: int, payload: int) -> None:
    sent = ring_sent_bytes(operation, payload_bytes=payload, ranks=ranks)
    passes = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}[operation]
    assert abs(2 * ranks * sent - 2 * passes * (ranks - 1) * payload) <= ranks


@pytest.mark.parametrize("ranks", [0, -1])
def test_a_ring_of_no_ranks_is_refused(ranks: int) -> None:
    with pytest.raises(ValueError, match=f"ranks must be at least 1, got {ranks}"):
        ring_factor("all_reduce", ranks=ranks)


def test_an_operation_without_a_ring_is_refused() -> None:
    with pytest.raises(ValueError, match="no ring factor for 'broadcast'; allowed: all_reduce"):
        ring_factor("broadcast", ranks=2)


def test_blooms_shape_without_model_parallelism_reduces_705_gb_a_step() -> None:
    layout = msgspec.structs.replace(BLOOM.layout, tensor_parallel=1, pipeline_stages=1)
    reduced = traffic_by_operation(BLOOM.architecture, BLOOM.recipe, layout)["all_reduce"]
    assert reduced.payload_bytes == 4 * 176_247_271_424 + LOSS
