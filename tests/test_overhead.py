"""The overhead benchmark: its interval, its verdict, and that it would see unequal work."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from benchmarks.bare_loop import BareLoop
from benchmarks.overhead import (
    Interval,
    Overhead,
    SuiteLoop,
    Turn,
    UnequalWorkError,
    check_equal_work,
    exit_code,
    main,
    median_interval,
)
from reference_runs.layout import Recomputation
from reference_runs.run import Precision
from suite.execute.measure.pace import LAP_SECONDS
from suite.execute.precision import prepare_arithmetic
from suite.job import Job
from suite.plan import corpus_for, job_for
from tests.launches import TEXT, small_plan

CPU = torch.device("cpu")
RECIPES: dict[Precision, dict[str, Any]] = {
    precision: {"precision": precision, "initial_loss_scale": 4096.0, "loss_scale_window": 1000}
    if precision.scaled
    else {"precision": precision}
    for precision in Precision
}


@pytest.fixture
def _alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    numbers, threads = torch.get_rng_state(), torch.get_num_threads()
    yield
    torch.set_rng_state(numbers)
    torch.set_num_threads(threads)
    dist.destroy_process_group()


def job(scratch: Path, **changes: Any) -> Job:
    plan = small_plan(ranks=1, recipe=changes, layout={"recomputation": Recomputation.FULL})
    return job_for(plan, corpus_for(plan, TEXT), str(scratch))


def turns(asked: Job, bare: Job | None = None) -> tuple[Turn, Turn]:
    prepare_arithmetic(asked.recipe.precision, CPU)
    return Turn(lambda: SuiteLoop(asked, CPU), CPU, 5), Turn(lambda: BareLoop(bare or asked, CPU), CPU, 5)


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("precision", Precision)
def test_both_loops_train_the_same(precision: Precision, tmp_path: Path) -> None:
    ours, bare = turns(job(tmp_path, **RECIPES[precision]))
    check_equal_work(ours, bare)
    assert isinstance(bare.loop, BareLoop)
    assert bare.loop.optimizer.state  # the first update was not skipped
    for _ in range(2):
        (_, our_loss), (_, bare_loss) = ours.step(), bare.step()
        # the weights that it depends on have been rounded twice: an eps of the dtype each
        assert our_loss == pytest.approx(bare_loss, rel=2 * torch.finfo(torch.bfloat16).eps)


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(
    "changes",
    [{"learning_rate": 7e-4}, {"weight_decay": 50.0}, {"hidden_dropout": 0.0}, {"beta1": 0.5, "beta2": 0.5}],
    ids=str,
)
def test_other_work_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    usual = {"learning_rate": 6e-4, "warmup": 0, "weight_decay": 0.1, "hidden_dropout": 0.1}
    other = job(tmp_path, **(usual | changes))
    if "beta1" in changes:  # the first update does not depend on them: what the check cannot see
        check_equal_work(*turns(job(tmp_path, **usual), other))
        return
    with pytest.raises(UnequalWorkError):
        check_equal_work(*turns(job(tmp_path, **usual), other))


@pytest.mark.parametrize("values", [6, 9, 12])
def test_the_interval_misses_the_median_as_rarely_as_it_says(values: int) -> None:
    # every pattern of signs around a true median of 0 is as likely as any other
    missed = 0
    for signs in product((-1.0, 1.0), repeat=values):
        interval = median_interval([sign * (place + 1) for place, sign in enumerate(signs)])
        missed += not interval.low <= 0 <= interval.high
    assert missed / 2**values <= 0.05
    # and no narrower interval would do: the next ranks inward miss too often
    rank = sorted(range(values)).index(round(median_interval([float(value) for value in range(values)]).low))
    assert 2 * sum(math.comb(values, below) for below in range(rank + 2)) / 2**values > 0.05


def test_too_few_pairs_leave_everything_open() -> None:
    assert median_interval([1.0] * 5) == Interval(1.0, -math.inf, math.inf)
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == Interval(3.5, 1.0, 6.0)


@pytest.mark.parametrize(
    ("low", "high", "peak", "code"),
    [(0.99, 1.02, 101, 0), (1.04, 1.09, 101, 1), (1.01, 1.05, 101, 3), (0.99, 1.01, 103, 1), (0.9, 1.03, 102, 0)],
)
def test_the_verdict_leaves_open_what_the_interval_leaves_open(low: float, high: float, peak: int, code: int) -> None:
    assert exit_code(Overhead(Interval((low + high) / 2, low, high), 0.1, peak, 100, 0.0)) == code


@pytest.mark.usefixtures("_alone")
def test_processor_time_is_that_of_the_step_alone(tmp_path: Path) -> None:
    (ours, _) = turns(job(tmp_path))
    seconds, _ = ours.step()
    asleep = Turn(lambda: _Sleeper(), CPU, 5)  # type: ignore[arg-type,return-value]  # a loop by its step alone
    slept, _ = asleep.step()
    assert ours.processor_seconds > 0
    assert seconds > 0
    assert slept >= 0.2 > 10 * asleep.processor_seconds


class _Sleeper:
    def step(self) -> tuple[float, float]:
        time.sleep(0.2)
        return 0.0, 0.0


def test_an_unknown_name_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-mini"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: unknown run")
    assert captured.err.count("\n") == 1


@pytest.mark.usefixtures("_alone")
def test_laps_are_taken_around_steps_of_the_suite_and_are_no_part_of_them(tmp_path: Path) -> None:
    ours, bare = turns(job(tmp_path))
    ours.step()
    bare.step()
    assert (ours.laps_seconds >= 4 * LAP_SECONDS, bare.laps_seconds) == (True, 0.0)
    begin = time.perf_counter()
    ours_seconds, _ = ours.step()
    assert ours_seconds <= time.perf_counter() - begin - 4 * LAP_SECONDS
