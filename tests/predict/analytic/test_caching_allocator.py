from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from reference_runs.layout import Layout, Offload, Recomputation, Schedule, usual_virtual_stages
from reference_runs.run import Precision, Workload
from suite.predict.analytic.caching_allocator import block_bytes, reserved_bytes, reserved_peak_bytes
from suite.predict.analytic.stage_memory import stage_memory
from tests.support.strategies import BLOOM

MIB = 2**20


@dataclass
class CachingAllocator:
    """The search of CUDACachingAllocator.cpp for tensors that are never freed: best fit, split, else a new segment."""

    reserved: int = 0
    free: dict[bool, list[int]] = field(default_factory=lambda: {True: [], False: []})

    def allocate(self, size: int) -> None:
        size = max(512, -(-size // 512) * 512)
        small = size <= MIB
        fitting = [block for block in self.free[small] if block >= size]
        if fitting:
            block = min(fitting)
            self.free[small].remove(block)
        else:
            block = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            self.reserved += block
        rest = block - size
        if rest >= 512 if small else rest > MIB:
            self.free[small].append(rest)


def simulated(sizes: list[int]) -> int:
    allocator = CachingAllocator()
    for size in sizes:
        allocator.allocate(size)
    return allocator.reserved


def test_a_first_tensor_reserves_the_segment_of_its_size() -> None:
    segments = {1: 2, MIB: 2, MIB + 1: 20, 10 * MIB - 512: 20, 10 * MIB: 10, 10 * MIB + 1: 12, 64 * MIB: 64}
    assert {size: reserved_bytes([(size, 1)]) / MIB for size in segments} == segments
    assert {size: simulated([size]) / MIB for size in segments} == segments


@given(st.integers(1, 10**12))
def test_a_block_is_the_least_multiple_of_512_that_holds_the_tensor(size: int) -> None:
    assert block_bytes(size) % 512 == 0
    assert 0 <= block_bytes(size) - size < 512


SMALL, LARGE, OWN = st.integers(1, MIB), st.integers(MIB + 1, 10 * MIB - 512), st.integers(10 * MIB, 200 * MIB)


@given(st.one_of(st.lists(SMALL, max_size=60), st.lists(LARGE, max_size=20), st.lists(OWN, max_size=20)))
def test_tensors_of_one_size_class_reserve_at_least_the_prediction(sizes: list[int]) -> None:
    predicted = reserved_bytes((size, 1) for size in sizes)
    assert sum(block_bytes(size) for size in sizes) <= predicted <= simulated(sizes)


@given(st.sampled_from([512, 4096, 65536, MIB]), st.integers(1, 300), st.integers(0, 40), st.lists(OWN, max_size=9))
def test_the_prediction_is_exact_where_blocks_divide_their_segments(
    small: int, count: int, large: int, own: list[int]
) -> None:
    # tensors of their own first, and of 2 MiB multiples, so that none lands in the rest of another's segment
    own = [size // (2 * MIB) * 2 * MIB for size in own]
    sizes = [*own, *[5 * MIB] * large, *[small] * count]
    assert reserved_bytes([*((size, 1) for size in own), (5 * MIB, large), (small, count)]) == simulated(sizes)


@given(st.permutations([3 * MIB, 11 * MIB, 5 * MIB, 700 * 1024, 12 * MIB, 9 * MIB, MIB // 2, 30 * MIB]))
def test_large_tensors_save_at_most_one_segment_of_theirs_in_each_shared_one(sizes: list[int]) -> None:
    predicted = reserved_bytes((size, 1) for size in sizes)
    # three tensors between 1 and 10 MiB lie in at most three segments of 20 MiB, each with room for 18 MiB at most
    assert simulated(sizes) >= predicted - 3 * 18 * MIB


def test_nothing_reserves_nothing_and_whole_tensors_whole_segments() -> None:
    assert reserved_bytes([]) == reserved_bytes([(0, 7)]) == reserved_bytes([(123, 0)]) == 0
    assert {type(reserved_bytes([(size, 3)])) for size in (1, MIB, 5 * MIB, 30 * MIB)} == {int}


LAYOUTS = st.builds(
    Layout,
    micro_batch=st.sampled_from([2, 4]),
    data_parallel=st.sampled_from([1, 8]),
    tensor_parallel=st.sampled_from([1, 2, 4]),
    pipeline_stages=st.sampled_from([1, 2, 6, 12]),
    sequence_parallel=st.booleans(),
    zero_stage=st.integers(0, 3),
    schedule=st.sampled_from(Schedule),
    recomputation=st.sampled_from(Recomputation),
    checkpoint_layers=st.integers(1, 5),
    partitioned_checkpoints=st.booleans(),
    offload=st.sampled_from(Offload),
).map(
    lambda drawn: msgspec.structs.replace(
        drawn, virtual_stages=usual_virtual_stages(drawn.schedule, pipeline_stages=drawn.pipeline_stages)
    )
)


@example(Layout(micro_batch=4, pipeline_stages=12, recomputation=Recomputation.FROM_INPUT), Precision.BF16, 1, 64)
@given(LAYOUTS, st.sampled_from(Precision), st.integers(0, 11), st.sampled_from([1, 4, 64]))
def test_a_rank_reserves_its_peak_and_less_than_a_rounding_for_each_flat_tensor(
    layout: Layout, precision: Precision, stage: int, micro_batches: int
) -> None:
    stage %= layout.pipeline_stages
    recipe = msgspec.structs.replace(BLOOM.recipe, precision=precision)
    # every activation of this shape is a multiple of 2 MiB: s h is 28 MiB, one head's dropout mask 4 MiB
    architecture = msgspec.structs.replace(BLOOM.architecture, layers=12, padded_vocabulary=250_880 // 2048 * 2048)
    memory = stage_memory(Workload(architecture, recipe, layout), stage=stage, micro_batches=micro_batches)
    reserved = reserved_peak_bytes(
        Workload(architecture, recipe, layout), memory, stage=stage, micro_batches=micro_batches
    )
    peak = memory.peak
    # weights, gradients, their copy, master weights, moments, buffers or temporary; small ones share 22 MiB
    assert 0 <= reserved - peak < 6 * 2 * MIB + 22 * MIB


def test_arrays_of_layouts_reserve_each_layouts_bytes() -> None:
    def reserved(t: object, b: object, stages: object, micro_batches: object) -> object:
        layout = msgspec.structs.replace(BLOOM.layout, tensor_parallel=t, micro_batch=b, pipeline_stages=stages)
        last = stages - 1  # type: ignore[operator]  # a number or an array
        of_stage: Any = {"stage": last, "micro_batches": micro_batches}
        memory = stage_memory(Workload(BLOOM.architecture, BLOOM.recipe, layout), **of_stage)
        return reserved_peak_bytes(Workload(BLOOM.architecture, BLOOM.recipe, layout), memory, **of_stage)

    rows = [(1, 1, 1, 1), (2, 4, 7, 8), (4, 2, 12, 128), (8, 1, 72, 1)]
    together = reserved(*(np.array(column, dtype=np.float64) for column in zip(*rows, strict=True)))
    assert list(together) == [reserved(*row) for row in rows]  # type: ignore[call-overload]  # an array
