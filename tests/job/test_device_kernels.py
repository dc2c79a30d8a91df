"""Kernels of a profiled step: added up by name, the longest kept."""

from __future__ import annotations

import msgspec
import pytest

from suite.job.device_kernels import MOST_KERNELS, NAME_LENGTH, device_kernels
from suite.records.record import RankOutcome
from suite.records.store import _RESERVED_BYTES_OF_KERNELS


def test_calls_and_seconds_are_those_of_a_step_and_the_longest_come_first() -> None:
    found = device_kernels([("gemm", 3_000), ("norm", 1_000), ("gemm", 5_000), ("norm", 2_000)], steps=2)
    assert [(kernel.name, kernel.calls, kernel.seconds) for kernel in found] == [
        ("gemm", 1.0, pytest.approx(4e-6)),
        ("norm", 1.0, pytest.approx(1.5e-6)),
    ]


def test_what_is_beyond_the_longest_is_added_up_and_nothing_is_lost() -> None:
    executed = [(f"kernel {number}", 10 * number) for number in range(1, MOST_KERNELS + 8)]
    found = device_kernels(executed, steps=1)
    assert len(found) == MOST_KERNELS + 1
    assert (found[-1].name, found[-1].calls) == ("others: 7 names", 7.0)
    assert sum(kernel.seconds for kernel in found) == pytest.approx(sum(spent for _, spent in executed) / 1e9)
    assert found[0].name == f"kernel {MOST_KERNELS + 7}"


def test_a_rank_s_kernels_fit_into_the_room_that_is_reserved_for_them() -> None:
    executed = [(f"{number:04}" + NAME_LENGTH * "x", 10**9 + number) for number in range(99)]
    kernels = device_kernels(executed, steps=3)
    whole, without = (
        msgspec.json.format(msgspec.json.encode([[[RankOutcome(rank=0, steps=[], last="", device_kernels=kept)]]]))
        for kept in (kernels, [])
    )
    assert 0 < len(whole) - len(without) < _RESERVED_BYTES_OF_KERNELS
