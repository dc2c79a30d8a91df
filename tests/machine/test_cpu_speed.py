"""CPU speed: laps of fixed work on real processors, and a machine that is as much slower as they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest
import torch

from suite.execute.measure import cpu_speed as laps
from suite.execute.measure.cpu_speed import LAP_SECONDS, SpeedSampler
from suite.job.events import Status
from suite.job.step_options import StepOptions
from suite.machine.cpu_speed import AtCpuSpeed, SpeedSample, middle, over_ranks, slowdown
from suite.machine.profile import Profile, decode, encode
from suite.machine.reference_step import TimedReferenceStep, trial
from suite.machine.timing_tables import MeasuredTimes, Subject
from suite.machine.timings import Timing
from suite.metrics.figures import Figure, Quantity
from suite.predict.simulation.step_time import StepSeconds, step_seconds
from suite.reproduce import step_time
from tests.support.launches import launched, small_plan
from tests.support.profiles import profile
from tests.support.step_machine import MINIS, Machine

EVEN = SpeedSample(host=1e-6, product=1e-4, elementwise=1e-5, memory=1e-4)
MACHINE = Machine(fixed=1e-6, per_unit=1e-12, host=1e-7, start=1e-5, latency=1e-5, per_byte=1e-10)


def step(machine: MeasuredTimes, name: str = "bloom-mini") -> StepSeconds:
    mini = MINIS[name]
    (stage,) = step_seconds(machine, mini.workload, StepOptions())
    return stage


def test_processors_at_half_the_pace_make_every_term_of_a_step_twice_as_long() -> None:
    slow = step(AtCpuSpeed(MACHINE, SpeedSample(host=2.0, product=2.0, elementwise=2.0, memory=2.0)))
    assert slow == pytest.approx([2 * term for term in step(MACHINE)])


@pytest.mark.parametrize("kind", ["host", "product", "elementwise"])
def test_a_step_has_work_of_each_kind_and_the_three_are_all_of_it(kind: str) -> None:
    ones = SpeedSample(host=1.0, product=1.0, elementwise=1.0, memory=1.0)
    usual = step(MACHINE).step
    longer = {
        name: step(AtCpuSpeed(MACHINE, msgspec.structs.replace(ones, **{name: 2.0}))).step - usual
        for name in msgspec.structs.asdict(ones)
    }
    assert longer[kind] > 0
    assert longer["memory"] == pytest.approx(0)
    assert sum(longer.values()) == pytest.approx(usual)


def test_what_a_backward_operator_has_of_the_host_follows_the_hosts_pace() -> None:
    """Its timing has a start of autograd's engine and a node in it, which the operator's own pace leaves alone."""
    scaled = {"host": 3.0, "start": 3.0, "latency": 3.0, "per_byte": 3.0, "fixed": 0.5, "per_unit": 0.5}
    values = msgspec.structs.asdict(MACHINE)
    other = Machine(**{name: factor * values[name] for name, factor in scaled.items()})
    assert step(AtCpuSpeed(MACHINE, SpeedSample(host=3.0, product=0.5, elementwise=0.5, memory=9.0))) == pytest.approx(
        step(other)
    )


def test_products_alone_follow_the_products_pace() -> None:
    at_pace = AtCpuSpeed(MACHINE, SpeedSample(host=3.0, product=5.0, elementwise=7.0, memory=9.0))
    sizes = (8.0, 8.0, 8.0)
    assert at_pace.seconds(Subject(operation="product"), *sizes) == 5 * MACHINE.seconds(
        Subject(operation="product"), *sizes
    )
    assert at_pace.seconds(Subject(operation="all_reduce"), 8.0) == pytest.approx(3 * (1e-5 + 8e-10))
    assert at_pace.seconds(Subject(operation="gelu"), 8.0) == pytest.approx(7 * (1e-6 + 8e-12))
    assert at_pace.line(Subject(operation="calls")).seconds_per_unit == pytest.approx(3e-7)
    assert at_pace.line(Subject(operation="calls")).timings[0].seconds == pytest.approx(3e-7)


def test_laps_are_joined_by_their_median_and_ranks_by_their_mean() -> None:
    stalled = msgspec.structs.replace(EVEN, host=1.0)
    assert middle([EVEN, stalled, EVEN]) == EVEN
    assert over_ranks([EVEN, msgspec.structs.replace(EVEN, host=3e-6)]) == msgspec.structs.replace(EVEN, host=2e-6)
    assert middle([]) is over_ranks([]) is None
    assert slowdown(stalled, EVEN) == SpeedSample(host=1e6, product=1.0, elementwise=1.0, memory=1.0)


def test_a_lap_takes_its_time_draws_no_random_numbers_and_leaves_its_first_round_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = torch.get_rng_state()
    pacer = SpeedSampler(torch.device("cpu"))
    pacer.lap()
    real = pacer.pace
    assert real is not None
    assert min(msgspec.structs.asdict(real).values()) > 0
    assert torch.equal(torch.get_rng_state(), before)
    clock: Iterator[float] = iter([0.0, *[1.0] * 4, *[3.0] * 4, LAP_SECONDS + 1])
    monkeypatch.setattr(laps, "_seconds", lambda _: next(clock))
    monkeypatch.setattr(laps.time, "perf_counter", lambda: next(clock))
    again = SpeedSampler(torch.device("cpu"))
    again.lap()
    assert again.pace == SpeedSample(host=3.0, product=3.0, elementwise=3.0, memory=3.0)


@pytest.mark.parametrize(
    ("step_seconds", "taken"), [(0.125, [0, 0, 0, 0, 1, 0]), (0.92, [1, 2, 1, 2]), (60.0, [4, 4]), (0.001, [0] * 100)]
)
def test_laps_between_steps_take_their_share_of_the_steps_and_no_more_than_so_many(
    step_seconds: float, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    monkeypatch.setattr(SpeedSampler, "laps", lambda _, count: counted.append(count))
    pacer = SpeedSampler(torch.device("cpu"))
    pacer.expect(step_seconds)
    for _ in taken:
        pacer.behind_a_step()
    assert counted == taken


def test_the_memorys_piece_goes_through_twice_what_the_caches_hold_or_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    for mebibytes, most in ((5, 128), (100, 128)):
        monkeypatch.setattr(laps.cpu_caches, "share_bytes", lambda size=mebibytes: size * 2**20)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
        parts = laps._parts()
        assert sum(part.nbytes for part in parts) == min(2 * 2 * mebibytes, most) * 2**20
        assert len({part.data_ptr() for part in parts}) == len(parts)


def test_a_pacer_holds_no_memory_before_its_first_lap() -> None:
    with torch.profiler.profile(profile_memory=True) as seen:
        SpeedSampler(torch.device("cpu"))
    assert not any(event.self_cpu_memory_usage for event in seen.events() or [])


def test_a_gpu_has_no_pace() -> None:
    pacer = SpeedSampler(torch.device("cuda"))
    pacer.lap()
    assert pacer.pace is None


def test_a_profile_keeps_its_pace_and_answers_for_fewer_ranks() -> None:
    own = profile()
    assert own.pace(ranks=1) is None
    paced = msgspec.structs.replace(own, conditions=msgspec.structs.replace(own.conditions, pace={2: EVEN}))
    assert decode(encode(paced), "file") == paced
    assert paced.pace(ranks=1) == paced.pace(ranks=2) == EVEN
    assert paced.pace(ranks=3) is None


class Paced(Machine, frozen=True, kw_only=True):
    """A profile that knows its pace, and as much as `at_cpu_speed` asks for."""

    calibrated: SpeedSample | None
    trials: tuple[TimedReferenceStep, ...] = ()

    def pace(self, *, ranks: int) -> SpeedSample | None:
        assert ranks == 1
        return self.calibrated


def test_a_launch_at_half_the_calibrated_pace_is_predicted_twice_as_long() -> None:
    plan = small_plan(ranks=1)
    tried = TimedReferenceStep(trial=trial(1, compiled=False, threads=1), timing=Timing(9.0, 9.0, 9.0, 9.0, 3, 0))
    known = Paced(**msgspec.structs.asdict(MACHINE), calibrated=EVEN, trials=(tried,))
    slow = SpeedSample(host=2e-6, product=2e-4, elementwise=2e-5, memory=2e-4)
    took = [Figure(quantity=Quantity.STEP_SECONDS, value=0.5)]
    expected, measured = step_time.at_cpu_speed(plan, cast("Profile", known), slow, took)
    usual = step_time.at_cpu_speed(plan, cast("Profile", known), EVEN, took)[0]
    assert [(figure.term, figure.value) for figure in measured] == [
        ("host", pytest.approx(2.0)),
        ("product", pytest.approx(2.0)),
        ("elementwise", pytest.approx(2.0)),
        ("memory", pytest.approx(2.0)),
        (None, 0.5),
    ]
    assert [figure.key for figure in expected] == [figure.key for figure in measured]
    assert expected[-1].value == pytest.approx(2 * usual[-1].value)
    untried = msgspec.structs.replace(known, trials=())
    factor = step_time.correction_factor(plan, cast("Profile", known))
    parts = step_time.at_cpu_speed(plan, cast("Profile", untried), EVEN, took)[0]
    assert factor > 1
    assert usual[-1].value == pytest.approx(factor * parts[-1].value)
    unknown = msgspec.structs.replace(known, calibrated=None)
    assert step_time.at_cpu_speed(plan, cast("Profile", unknown), slow, took) == ([], [])


def test_every_rank_of_a_launch_tells_its_pace(tmp_path: Path) -> None:
    result = launched(small_plan(ranks=2), tmp_path)
    assert result.status is Status.OK, result.message
    paces = [report.pace for report in result.finished]
    assert all(pace is not None and pace.product > 0 for pace in paces)
