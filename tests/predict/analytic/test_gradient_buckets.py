"""Gradient buckets: PyTorch's own assignment, a walk over all tensors, buffers filled byte for byte."""

from __future__ import annotations

import msgspec
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.layout import Layout
from reference_runs.run import Architecture
from suite.predict.analytic.gradient_buckets import (
    filled_buckets,
    fused_messages,
    gradient_bucket_count,
    stage_gradient_buckets,
)
from suite.predict.analytic.parameters import rank_parameters, total_elements
from suite.predict.simulation.state import unlearned_tensors_of_rank
from tests.support.gradient_buckets import gradient_buckets, walked_buckets
from tests.support.strategies import architectures, described_architectures, parameter_tensors, routed_architectures

CAPS = st.integers(1, 20_000)


@given(architectures(), CAPS)
def test_buckets_equal_the_assignment_of_torch(architecture: Architecture, cap: int) -> None:
    gradients = [torch.empty(tensor.elements, device="meta") for tensor in reversed(parameter_tensors(architecture))]
    assignment, _ = dist._compute_bucket_assignment_by_size(gradients, [cap])
    expected = [4 * sum(gradients[place].numel() for place in bucket) for bucket in assignment]
    assert gradient_buckets(architecture, bucket_bytes=cap) == expected


@given(st.data(), st.sampled_from([1, 2, 4]), st.integers(1, 4), st.integers(1, 60), st.integers(1, 400_000))
def test_buckets_of_a_stage_equal_a_walk_over_all_its_tensors(
    data: st.DataObject, tensor_parallel: int, stages: int, layers: int, cap: int
) -> None:
    described = described_architectures(tensor_parallel=tensor_parallel)
    shape = data.draw(described | routed_architectures(tensor_parallel=tensor_parallel))
    architecture = msgspec.structs.replace(shape, layers=max(layers, shape.dense_layers + 1))
    layout = Layout(tensor_parallel=tensor_parallel, pipeline_stages=stages, bucket_bytes=cap)
    for stage in range(stages):
        for element in (2, 4):
            buckets = stage_gradient_buckets(architecture, layout, stage=stage, element_bytes=element)
            assert buckets == walked_buckets(architecture, layout, stage, element)
            assert len(buckets) == gradient_bucket_count(architecture, layout, stage=stage, element_bytes=element)
            unlearned = total_elements(unlearned_tensors_of_rank(architecture, layout, stage=stage))
            assert sum(buckets) == element * (rank_parameters(architecture, layout, stage=stage).all - unlearned)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=30), st.integers(1, 3000), st.sampled_from([0, 2]))
def test_fused_messages_equal_buffers_that_are_filled_byte_for_byte(
    tensors: list[int], bucket: int, copies: int
) -> None:
    sizes = []
    room = 0
    moved = 0
    for tensor in tensors:
        moved += copies * (tensor + tensor)  # read and written
        while tensor:
            if not room:
                sizes.append(0)
                room = bucket
            taken = min(tensor, room)
            sizes[-1] += taken
            room -= taken
            tensor -= taken
    fused = fused_messages(sum(tensors), bucket_bytes=bucket, copies=copies)
    assert fused == (len(sizes), sizes[0], sizes[-1], moved)


def test_a_bucket_is_closed_by_the_tensor_that_fills_it() -> None:
    buckets = {(): [], (3, 4, 5, 6): [7, 11], (3, 4, 5): [7, 5], (9, 1): [9, 1], (6, 7): [13]}
    assert {tensors: filled_buckets(list(tensors), 7) for tensors in buckets} == buckets
