from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.execute.measure.peak_memory import AllocatedPeak, Allocation, largest_sum

CPU = torch.device("cpu")


@given(st.lists(st.integers(1, 100), max_size=8), st.lists(st.integers(1, 100), min_size=1, max_size=8))
def test_the_largest_sum_is_that_of_the_running_total(before: list[int], since: list[int]) -> None:
    earlier = [Allocation(1000 * place, size) for place, size in enumerate(before)]
    later = [Allocation(-1000 * (place + 1), size) for place, size in enumerate(since)]
    freed = [Allocation(change.address, -change.bytes) for change in later]
    assert largest_sum(earlier, later + freed) == sum(before) + sum(since)
    # what was before the window does not count, but what is left of it does
    assert largest_sum(earlier, later + freed, window=2 * len(since) - 1) == sum(before) + since[-1]


def test_a_block_whose_free_nobody_saw_is_gone_when_another_one_overlaps_it() -> None:
    assert largest_sum([Allocation(0, 100)], [Allocation(50, 30), Allocation(50, -30)]) == 100
    assert largest_sum([Allocation(0, 100)], [Allocation(50, 130), Allocation(50, -130)]) == 130


def test_a_block_of_a_step_whose_free_nobody_saw_lives_until_the_next_change() -> None:
    step = [Allocation(0, 100), Allocation(200, 10), Allocation(200, -10)]
    assert largest_sum([], step) == 100
    assert largest_sum([], [*step, *step], window=len(step)) == 100
    assert largest_sum([], [*step, Allocation(300, 20), Allocation(300, -20)], window=len(step)) == 20


def test_a_block_that_is_freed_after_the_window_lives_to_its_end() -> None:
    step = [Allocation(0, 100), Allocation(200, 30), Allocation(200, -30), Allocation(300, 50), Allocation(300, -50)]
    assert largest_sum([], step) == 100
    assert largest_sum([], step, after=[Allocation(0, -100)]) == 150
    assert largest_sum([], step, after=[Allocation(0, 100), Allocation(0, -100)]) == 100  # another one's


def test_a_free_of_what_nobody_saw_allocated_counts_nothing() -> None:
    assert largest_sum([Allocation(0, 10)], [Allocation(500, -400), Allocation(20, 5), Allocation(20, -5)]) == 15


@pytest.mark.parametrize("settles", [False, True])
def test_the_peak_of_a_window_is_what_tensors_hold(settles: bool) -> None:
    peak = AllocatedPeak(CPU)
    state = torch.empty(1000, dtype=torch.float32)
    if settles:
        peak.settle()
    other = torch.empty(50_000, dtype=torch.float32)
    del other
    peaks = []
    for elements in (3000, 2000):
        with peak.window():
            first = torch.empty(elements, dtype=torch.float32)
            second = torch.empty(elements, dtype=torch.bfloat16)
            del first
            third = torch.empty(elements, dtype=torch.float32)
            del second, third
        peaks.append(peak.bytes)
    peak.finish()
    assert state.numel() == 1000
    # state, and a block of 2 bytes and one of 4 bytes an element at a time
    assert peaks == [4 * 1000 + 6 * 3000, 4 * 1000 + 6 * 2000]
