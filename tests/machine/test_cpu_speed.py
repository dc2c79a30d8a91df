"""CPU speed: samples of reference kernels on real processors, and a machine profile corrected for a slowdown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from suite.execute.measure import cpu_speed as sampling
from suite.execute.measure.cpu_speed import SAMPLE_SECONDS, SpeedSampler
from suite.job.events import Status
from suite.job.options import StepOptions
from suite.machine.cpu_speed import AtCpuSpeed, SpeedSample, middle, over_ranks, slowdown
from suite.machine.profile import Profile, decode, encode
from suite.machine.reference_step import TimedReferenceStep, reference_step
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


def test_a_step_has_work_of_three_kinds_and_half_the_speed_makes_every_term_twice_as_long() -> None:
    slow = step(AtCpuSpeed(MACHINE, SpeedSample(host=2.0, product=2.0, elementwise=2.0, memory=2.0)))
    assert slow == pytest.approx([2 * term for term in step(MACHINE)])
    ones = SpeedSample(host=1.0, product=1.0, elementwise=1.0, memory=1.0)
    usual = step(MACHINE).step
    longer = {
        name: step(AtCpuSpeed(MACHINE, msgspec.structs.replace(ones, **{name: 2.0}))).step - usual
        for name in msgspec.structs.asdict(ones)
    }
    assert longer.pop("memory") == pytest.approx(0)
    assert min(longer.values()) > 0
    assert sum(longer.values()) == pytest.approx(usual)


def test_what_a_backward_operator_has_of_the_host_scales_with_host_calls() -> None:
    """Its timing has a start of autograd's engine and a node in it, which do not scale with the operator."""
    scaled = {"host": 3.0, "start": 3.0, "latency": 3.0, "per_byte": 3.0, "fixed": 0.5, "per_unit": 0.5}
    values = msgspec.structs.asdict(MACHINE)
    other = Machine(**{name: factor * values[name] for name, factor in scaled.items()})
    assert step(AtCpuSpeed(MACHINE, SpeedSample(host=3.0, product=0.5, elementwise=0.5, memory=9.0))) == pytest.approx(
        step(other)
    )


def test_each_operation_scales_with_the_reference_kernel_of_its_kind() -> None:
    corrected = AtCpuSpeed(MACHINE, SpeedSample(host=3.0, product=5.0, elementwise=7.0, memory=9.0))
    sizes = (8.0, 8.0, 8.0)
    assert corrected.seconds(Subject(operation="product"), *sizes) == 5 * MACHINE.seconds(
        Subject(operation="product"), *sizes
    )
    assert corrected.seconds(Subject(operation="all_reduce"), 8.0) == pytest.approx(3 * (1e-5 + 8e-10))
    assert corrected.seconds(Subject(operation="gelu"), 8.0) == pytest.approx(7 * (1e-6 + 8e-12))
    assert corrected.line(Subject(operation="calls")).seconds_per_unit == pytest.approx(3e-7)
    assert corrected.line(Subject(operation="calls")).timings[0].seconds == pytest.approx(3e-7)


def test_samples_are_joined_by_their_median_and_ranks_by_their_mean() -> None:
    stalled = msgspec.structs.replace(EVEN, host=1.0)
    assert middle([EVEN, stalled, EVEN]) == EVEN
    assert over_ranks([EVEN, msgspec.structs.replace(EVEN, host=3e-6)]) == msgspec.structs.replace(EVEN, host=2e-6)
    assert middle([]) is over_ranks([]) is None
    assert slowdown(stalled, EVEN) == SpeedSample(host=1e6, product=1.0, elementwise=1.0, memory=1.0)


def test_a_sample_takes_its_time_draws_no_random_numbers_and_leaves_its_first_repetition_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = torch.get_rng_state()
    sampler = SpeedSampler(torch.device("cpu"))
    sampler.take_sample()
    real = sampler.median
    assert real is not None
    assert min(msgspec.structs.asdict(real).values()) > 0
    assert torch.equal(torch.get_rng_state(), before)
    clock: Iterator[float] = iter([0.0, *[1.0] * 4, *[3.0] * 4, SAMPLE_SECONDS + 1])
    monkeypatch.setattr(sampling, "seconds_of", lambda _: next(clock))
    monkeypatch.setattr(sampling.time, "perf_counter", lambda: next(clock))
    again = SpeedSampler(torch.device("cpu"))
    again.take_sample()
    assert again.median == SpeedSample(host=3.0, product=3.0, elementwise=3.0, memory=3.0)


def test_samples_between_steps_take_their_share_of_the_time_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    monkeypatch.setattr(SpeedSampler, "take_samples", lambda _, count: counted.append(count))
    expected = {0.125: [0, 0, 0, 0, 1, 0], 0.92: [1, 2, 1, 2], 60.0: [4, 4], 0.001: [0] * 100}
    for seconds, taken in expected.items():
        counted.clear()
        sampler = SpeedSampler(torch.device("cpu"))
        sampler.expect(seconds)
        for _ in taken:
            sampler.after_step()
        assert counted == taken


def test_the_memory_kernel_goes_through_twice_what_the_caches_hold_or_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    for mebibytes, most in ((5, 128), (100, 128)):
        monkeypatch.setattr(sampling.cpu_caches, "share_bytes", lambda size=mebibytes: size * 2**20)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
        parts = sampling._parts()
        assert sum(part.nbytes for part in parts) == min(2 * 2 * mebibytes, most) * 2**20
        assert len({part.data_ptr() for part in parts}) == len(parts)


class NoOperator(TorchDispatchMode):
    def __torch_dispatch__(self, func: object, types: object, args: object = (), kwargs: object = None) -> Any:
        pytest.fail(f"{func} was called")


def test_a_sampler_holds_no_memory_before_its_first_sample_and_a_gpu_has_no_cpu_speed() -> None:
    with NoOperator():
        SpeedSampler(torch.device("cpu"))
    sampler = SpeedSampler(torch.device("cuda"))
    sampler.take_sample()
    assert sampler.median is None


def test_a_profile_keeps_its_cpu_speed_and_answers_for_fewer_ranks() -> None:
    own = profile()
    assert own.cpu_speed(ranks=1) is None
    with_speed = msgspec.structs.replace(own, conditions=msgspec.structs.replace(own.conditions, cpu_speed={2: EVEN}))
    assert decode(encode(with_speed), "file") == with_speed
    assert with_speed.cpu_speed(ranks=1) == with_speed.cpu_speed(ranks=2) == EVEN
    assert with_speed.cpu_speed(ranks=3) is None


class WithCpuSpeed(Machine, frozen=True, kw_only=True):
    """A profile with a CPU speed, and what `at_cpu_speed` needs."""

    calibrated: SpeedSample | None
    reference_steps: tuple[TimedReferenceStep, ...] = ()

    def cpu_speed(self, *, ranks: int) -> SpeedSample | None:
        assert ranks == 1
        return self.calibrated


def test_a_launch_at_half_the_calibrated_speed_is_predicted_twice_as_long() -> None:
    plan = small_plan(ranks=1)
    timed = TimedReferenceStep(
        step=reference_step(1, compiled=False, threads=1), timing=Timing(9.0, 9.0, 9.0, 9.0, 3, 0)
    )
    known = WithCpuSpeed(**msgspec.structs.asdict(MACHINE), calibrated=EVEN, reference_steps=(timed,))
    slow = SpeedSample(host=2e-6, product=2e-4, elementwise=2e-5, memory=2e-4)
    took = [Figure(quantity=Quantity.STEP_SECONDS, value=0.5)]
    expected, measured = step_time.at_cpu_speed(plan, cast("Profile", known), slow, took)
    usual = step_time.at_cpu_speed(plan, cast("Profile", known), EVEN, took).predicted
    assert [(figure.term, figure.value) for figure in measured] == [
        ("host", pytest.approx(2.0)),
        ("product", pytest.approx(2.0)),
        ("elementwise", pytest.approx(2.0)),
        ("memory", pytest.approx(2.0)),
        (None, 0.5),
    ]
    assert [figure.key for figure in expected] == [figure.key for figure in measured]
    assert expected[-1].value == pytest.approx(2 * usual[-1].value)
    without_steps = msgspec.structs.replace(known, reference_steps=())
    factor = step_time.correction_factor(plan, cast("Profile", known))
    parts = step_time.at_cpu_speed(plan, cast("Profile", without_steps), EVEN, took).predicted
    assert factor > 1
    assert usual[-1].value == pytest.approx(factor * parts[-1].value)
    unknown = msgspec.structs.replace(known, calibrated=None)
    assert step_time.at_cpu_speed(plan, cast("Profile", unknown), slow, took) == ([], [])


@pytest.mark.ranks
@pytest.mark.usefixtures("warm_ranks")
def test_every_rank_of_a_launch_reports_its_cpu_speed(tmp_path: Path) -> None:
    result = launched(small_plan(ranks=2), tmp_path)
    assert result.status is Status.OK, result.message
    speeds = [report.cpu_speed for report in result.finished]
    assert all(speed is not None and speed.product > 0 for speed in speeds)
