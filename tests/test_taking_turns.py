"""More ranks than cores compute as long as one for each core, times ranks over cores; messages as measured."""

from __future__ import annotations

import pytest

from reference_runs.run import Precision
from suite.measured_seconds import Subject, scaled
from suite.taking_turns import TakingTurns
from suite.utilisation import peaks
from tests.profiles import profile

PRODUCT = Subject(operation="product", variant="NT", ranks=2)
ALL_REDUCE = Subject(operation="all_reduce", ranks=2)


def of(subject: Subject, ranks: int) -> Subject:
    return Subject(operation=subject.operation, variant=subject.variant, ranks=ranks)


@pytest.mark.parametrize(("ranks", "cores", "turns"), [(1, 2, 1.0), (2, 2, 1.0), (3, 2, 1.5), (4, 2, 2.0), (8, 1, 8.0)])
def test_ranks_compute_as_long_as_one_for_each_core_times_ranks_over_cores(
    ranks: int, cores: int, turns: float
) -> None:
    shared = TakingTurns(profile(), cores=cores)
    alone = profile().seconds(of(PRODUCT, min(ranks, cores)), 64, 64, 64)
    assert shared.seconds(of(PRODUCT, ranks), 64, 64, 64) == pytest.approx(turns * alone)


def test_messages_take_what_was_measured_with_as_many_ranks() -> None:
    shared = TakingTurns(profile(), cores=1)
    assert shared.seconds(ALL_REDUCE, 1000) == profile().seconds(ALL_REDUCE, 1000)
    assert shared.line(ALL_REDUCE) == profile().line(ALL_REDUCE)


def test_a_scaled_line_has_every_time_as_often() -> None:
    line = profile().line(ALL_REDUCE)
    twice = scaled(line, 2.0)
    assert (twice.fixed_seconds, twice.seconds_per_unit) == (2 * line.fixed_seconds, 2 * line.seconds_per_unit)
    for one, own in zip(twice.timings, line.timings, strict=True):
        assert (one.seconds, one.low, one.high) == (2 * own.seconds, 2 * own.low, 2 * own.high)
        assert one.repetitions == own.repetitions
    assert twice.seconds(5000) == pytest.approx(2 * line.seconds(5000))


@pytest.mark.parametrize(("ranks", "share"), [(1, 1.0), (2, 0.5), (4, 0.25), (6, 1 / 6)])
def test_ranks_share_the_rate_that_cores_reach(ranks: int, share: float) -> None:
    """Products of the profile run at 1 Gflop/s on one of two cores, and at half of that on each of both at once."""
    (one,) = peaks(profile(), Precision.FP32, ranks=ranks, cores=2)
    assert one.flop_per_second == pytest.approx(1e9 * share)
