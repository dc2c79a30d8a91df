"""The overhead benchmark: its interval, its verdict, and that it would see unequal work."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist

from benchmarks import overhead
from benchmarks.bare_loop import BareLoop
from benchmarks.equal_work import EQUAL_STEPS, UnequalWorkError, check_equal_work, check_losses, is_exact, untied
from benchmarks.overhead import Interval, Overhead, exit_code, interval, line, main, worst
from benchmarks.turns import SuiteLoop, Turn
from reference_runs.layout import Recomputation
from reference_runs.run import Precision
from suite.execute.measure import cpu_speed
from suite.execute.measure.cpu_speed import MOST_SAMPLES_IN_A_ROW, SAMPLE_SECONDS
from suite.execute.precision import DTYPES, prepare_arithmetic
from suite.job.training_job import Job
from suite.reproduce.plan import corpus_for, job_for
from tests.support.launches import TEXT, small_plan

CPU = torch.device("cpu")
RECIPES: dict[Precision, dict[str, Any]] = {
    precision: {"precision": precision, "initial_loss_scale": 4096.0, "loss_scale_window": 1000}
    if precision.scaled
    else {"precision": precision}
    for precision in DTYPES
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
@pytest.mark.parametrize(("place", "precision"), [*enumerate(RECIPES)])
def test_both_loops_train_the_same(place: int, precision: Precision, tmp_path: Path) -> None:
    asked = job(tmp_path, **RECIPES[precision], gradient_clip=(1.0, 1e-3)[place % 2])
    ours, bare = turns(asked)
    check_equal_work(ours, bare)
    assert isinstance(bare.loop, BareLoop)
    assert bare.loop.optimizer.state  # the first update was not skipped
    rates = [0.0]
    for _ in range(3):
        (_, our_loss), (_, bare_loss) = ours.step(), bare.step()
        check_losses(our_loss, bare_loss, bare, rates)
        rates.append(bare.loop.optimizer.param_groups[0]["lr"])
    if not is_exact(asked, CPU):
        assert is_exact(untied(asked), CPU)
        check_equal_work(*turns(untied(asked)))


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(
    ("changes", "precision"),
    [
        ({"learning_rate": 6.0001e-4}, Precision.FP32),
        ({"weight_decay": 0.11}, Precision.BF16),
        ({"hidden_dropout": 0.0}, Precision.FP32),
        ({"beta1": 0.89}, Precision.BF16),
        ({"beta2": 0.96}, Precision.FP32),
        ({"epsilon": 1e-7}, Precision.BF16),
        ({"gradient_clip": 0.5}, Precision.FP32),
    ],
    ids=str,
)
def test_other_work_is_refused(changes: dict[str, Any], precision: Precision, tmp_path: Path) -> None:
    usual = {"learning_rate": 6e-4, "warmup": 0, "weight_decay": 0.1, "hidden_dropout": 0.1, "precision": precision}
    with pytest.raises(UnequalWorkError):
        check_equal_work(*turns(untied(job(tmp_path, **usual)), untied(job(tmp_path, **(usual | changes)))))


@pytest.mark.usefixtures("_alone")
def test_a_loop_that_has_gone_on_to_other_samples_is_refused_by_its_loss(tmp_path: Path) -> None:
    ours, bare = turns(job(tmp_path))
    check_equal_work(ours, bare)
    rates = [6e-8] * EQUAL_STEPS
    (_, our_loss), (_, bare_loss) = ours.step(), bare.step()
    check_losses(our_loss, bare_loss, bare, rates)
    _, next_loss = bare.step()
    with pytest.raises(UnequalWorkError, match="losses after 3 updates"):
        check_losses(our_loss, next_loss, bare, rates)
    with pytest.raises(UnequalWorkError, match="nan under the suite"):
        check_losses(math.nan, next_loss, bare, rates)


@pytest.mark.parametrize("values", [6, 9, 12])
def test_the_interval_misses_the_median_as_rarely_as_it_says(values: int) -> None:
    assert interval([1.0] * 5) == Interval(1.0, -math.inf, math.inf)  # too few leave everything open
    # every pattern of signs around a true median of 0 is as likely as any other
    missed = 0
    for signs in product((-1.0, 1.0), repeat=values):
        found = interval([sign * (place + 1) for place, sign in enumerate(signs)])
        missed += not found.low <= 0 <= found.high
    assert missed / 2**values <= 0.05
    # and no narrower interval would do: the next ranks inward miss too often
    rank = sorted(range(values)).index(round(interval([float(value) for value in range(values)]).low))
    assert 2 * sum(math.comb(values, below) for below in range(rank + 2)) / 2**values > 0.05


@pytest.mark.parametrize(
    ("low", "high", "peak", "code"),
    [(0.99, 1.02, 101, 0), (1.04, 1.09, 101, 1), (1.01, 1.05, 101, 3), (0.99, 1.01, 103, 1), (0.9, 1.03, 102, 0)],
)
def test_the_verdict_leaves_open_what_the_interval_leaves_open(low: float, high: float, peak: int, code: int) -> None:
    time = Interval((low + high) / 2, low, high)
    alone = Interval(1.0, 0.99, 1.01)  # without its share of the speed samples, which is printed and not judged
    found = Overhead(time, 0.1, peak, 100, 0.0, processor=time, sampling_seconds=0.0025, alone=alone)
    assert exit_code(found) == code
    assert "speed samples 2.5 ms  alone 1.000 [0.990, 1.010]" in line("gpt2-mini", found)


@pytest.mark.parametrize(
    ("codes", "code"),
    [([0, -9], 4), ([0, 137], 4), ([1, 255], 4), ([2, 4], 4), ([1, 2], 2), ([3, 1], 1), ([0, 3], 3), ([0, 0], 0)],
)
def test_a_miniature_that_was_killed_has_failed(codes: list[int], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter(codes)
    monkeypatch.setattr(subprocess, "run", lambda *_: subprocess.CompletedProcess([], next(left)))
    assert main(["gpt2-mini", "opt-mini"]) == worst(codes) == code


def test_an_error_of_the_program_is_no_ratio_beyond_its_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> Overhead:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(overhead, "measured", broken)
    assert main(["gpt2-mini"]) == 4
    assert "RuntimeError: out of memory" in capsys.readouterr().err


def test_an_unknown_name_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-mini"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: unknown run")
    assert captured.err.count("\n") == 1


@pytest.mark.usefixtures("_alone")
def test_every_start_is_checked_for_equal_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = untied(job(tmp_path, warmup=0))
    faster = msgspec.structs.replace(asked.recipe, learning_rate=1.01 * asked.recipe.learning_rate)
    starts: list[Job] = []

    class LaterOther(BareLoop):
        def __init__(self, own: Job, device: torch.device) -> None:
            starts.append(own)
            other = len(starts) == 3  # the first has its peak counted, the second takes the first pairs
            super().__init__(msgspec.structs.replace(own, recipe=faster) if other else own, device)

    monkeypatch.setattr(overhead, "PAIRS_A_START", 2)
    monkeypatch.setattr(overhead, "BareLoop", LaterOther)
    prepare_arithmetic(asked.recipe.precision, CPU)
    with pytest.raises(UnequalWorkError, match="losses of step 1"):
        overhead.overhead(asked, CPU, pairs=4, progress=lambda _: None)
    assert len(starts) == 3


@pytest.mark.usefixtures("_alone")
def test_speed_samples_are_taken_between_steps_of_the_suite_and_are_no_part_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_speed, "SAMPLES_SHARE", 100)  # as many as there may be
    ours, bare = turns(job(tmp_path))
    ours.step()
    bare.step()
    assert (ours.sampling_seconds >= MOST_SAMPLES_IN_A_ROW * SAMPLE_SECONDS, bare.sampling_seconds) == (True, 0.0)
    begin = time.perf_counter()
    ours_seconds, _ = ours.step()
    assert ours_seconds <= time.perf_counter() - begin - MOST_SAMPLES_IN_A_ROW * SAMPLE_SECONDS
