"""More ranks than cores compute as long as one for each core, times ranks over cores; messages as measured."""

from __future__ import annotations

import msgspec
import pytest

from reference_runs.run import Precision
from suite.ladder.plan import planned
from suite.ladder.rung import RungSetting
from suite.machine.operations import COLLECTIVES
from suite.machine.timing_tables import Line, Oversubscribed, Subject, scaled
from suite.reproduce import step_time
from suite.reproduce.step_time import peaks
from tests.support.ladder_machine import CPU, TEXTS
from tests.support.profiles import profile

PRODUCT = Subject(operation="product", variant="NT", ranks=2)
ALL_REDUCE = Subject(operation="all_reduce", ranks=2)


def of(subject: Subject, ranks: int) -> Subject:
    return Subject(operation=subject.operation, variant=subject.variant, ranks=ranks)


def test_ranks_compute_as_long_as_one_for_each_core_times_ranks_over_cores() -> None:
    for ranks, cores, turns in ((1, 2, 1.0), (2, 2, 1.0), (3, 2, 1.5), (4, 2, 2.0), (8, 1, 8.0)):
        shared = Oversubscribed(profile(), cores=cores)
        alone = profile().seconds(of(PRODUCT, min(ranks, cores)), 64, 64, 64)
        assert shared.seconds(of(PRODUCT, ranks), 64, 64, 64) == pytest.approx(turns * alone)


def test_messages_take_what_was_measured_with_as_many_ranks_and_host_calls_their_turns() -> None:
    shared = Oversubscribed(profile(), cores=1)
    assert shared.seconds(ALL_REDUCE, 1000) == profile().seconds(ALL_REDUCE, 1000)
    assert shared.line(ALL_REDUCE) == profile().line(ALL_REDUCE)
    one = Subject(operation="view", variant="forward")
    line = msgspec.structs.replace(profile().line(ALL_REDUCE), subject=one)
    shared = Oversubscribed(msgspec.structs.replace(profile(), lines=[line]), cores=1)
    assert shared.line(of(one, 2)) == scaled(line, 2.0)


def test_all_times_of_a_line_are_scaled_by_the_factor() -> None:
    line = profile().line(ALL_REDUCE)
    twice = scaled(line, 2.0)
    assert (twice.fixed_seconds, twice.seconds_per_unit) == (2 * line.fixed_seconds, 2 * line.seconds_per_unit)
    for one, own in zip(twice.timings, line.timings, strict=True):
        assert (one.seconds, one.low, one.high) == (2 * own.seconds, 2 * own.low, 2 * own.high)
        assert one.repetitions == own.repetitions
    assert twice.seconds(5000) == pytest.approx(2 * line.seconds(5000))


def test_ranks_share_the_rate_that_cores_reach_and_gpus_take_no_turns_on_cores() -> None:
    """Products of the profile run at 1 Gflop/s on one of two cores, and at half of that on each of both at once."""
    for ranks in (1, 2, 4, 6):
        (one,) = peaks(profile(), Precision.FP32, ranks=ranks, cores=2)
        assert one.flop_per_second == pytest.approx(1e9 / ranks)
    fingerprint = msgspec.structs.replace(profile().fingerprint, device="cuda", hardware={"gpus": "2 x unknown"})
    on_gpus = msgspec.structs.replace(profile(), fingerprint=fingerprint)
    (*_, with_more) = peaks(on_gpus, Precision.FP32, ranks=2, cores=1)
    assert with_more.flop_per_second == profile().achievable_flop_per_second("fp32", ranks=2)


class Asked:
    """A profile that takes 1 ms for everything, and remembers of how many ranks it was asked."""

    def __init__(self) -> None:
        self.computing: set[int] = set()
        self.messages: set[int] = set()

    def seconds(self, subject: Subject, *_sizes: float) -> float:
        (self.messages if subject.operation in COLLECTIVES else self.computing).add(subject.ranks)
        return 1e-3

    def line(self, subject: Subject) -> Line:
        self.seconds(subject)
        return msgspec.structs.replace(profile().line(ALL_REDUCE), subject=subject)


def test_a_step_of_more_ranks_than_cores_is_predicted_from_one_rank_for_each_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_time, "usable_cores", lambda: 2)
    plan = planned(CPU, RungSetting(data_parallel=4, fully_sharded=True, micro_batch=8), "", TEXTS)
    for host_names, computing in (((), {2}), (("a", "b"), {4})):
        asked = Asked()
        step_time.time_figures_of(msgspec.structs.replace(plan, host_names=host_names), asked)
        assert (asked.computing, asked.messages) == (computing, {4})
