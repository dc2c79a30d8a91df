"""When the host reads the numbers of a step: before its update, or once, after it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from benchmarks.turns import SuiteLoop
from reference_runs.layout import Offload
from reference_runs.run import Balancing, Gate, Precision
from suite.execute.parallel.mesh import device_mesh
from suite.execute.parallel.parallelize import parallelize
from suite.execute.rank import NotFiniteError
from suite.execute.training import step as step_module
from suite.execute.training.outcome import updates_before_reading
from suite.execute.training.step import Steps
from suite.job.options import Averaging
from suite.job.training_job import Job
from suite.reproduce.plan import corpus_for, job_for
from tests.support.launches import BATCH, FP32_WITHOUT_DROPOUT, TEXT, small_plan

CPU = torch.device("cpu")
STEPS = 4
RATE = 2.0**-9  # of which sums are exact


def job(scratch: Path, *, clip: float = 1.0) -> Job:
    plan = small_plan(ranks=1, recipe={"precision": Precision.FP32, "gradient_clip": clip})
    return job_for(plan, corpus_for(plan, TEXT), str(scratch))


def losses(asked: Job) -> list[float]:
    torch.manual_seed(1)  # of dropout
    loop = SuiteLoop(asked, CPU)
    return [loop.step()[0] for _ in range(STEPS)]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("clip", [1e3, 1e-3])  # nothing is clipped; everything is
def test_an_update_before_the_host_reads_is_the_same_update(
    clip: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = job(tmp_path, clip=clip)
    before = losses(asked)
    monkeypatch.setattr(step_module, "updates_before_reading", lambda *_args, **_kwargs: True)
    after = losses(asked)
    assert before[0] == after[0]
    assert before[0] != before[-1]
    # the factor differs by four roundings of 2^-24, and Adam carries each step's on
    assert after == pytest.approx(before, rel=4 * STEPS * 2.0**-24)


@pytest.mark.usefixtures("alone")
def test_a_gradient_that_is_not_finite_ends_the_run_after_the_update_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_module, "updates_before_reading", lambda *_args, **_kwargs: True)
    loop = SuiteLoop(job(tmp_path), CPU)
    loop.step()
    infinite = torch.tensor(math.inf)
    monkeypatch.setattr(step_module, "update_norm", lambda *_: lambda *_gradients, **_device: infinite)
    with pytest.raises(NotFiniteError, match="squared gradient norm is inf at step 1"):
        loop.step()


def steps_of(scratch: Path, **recipe: Any) -> Steps:
    plan = small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT | {"gradient_clip": 1e6} | recipe)  # no clipping
    asked = job_for(plan, corpus_for(plan, TEXT), str(scratch))
    mesh = device_mesh(asked.layout, "cpu")
    return Steps(asked, parallelize(asked, mesh=mesh, device=CPU), mesh, CPU)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("precision", [precision for precision in Precision if precision.scaled])
def test_an_overflow_skips_its_update_and_halves_the_scale(precision: Precision, tmp_path: Path) -> None:
    steps = steps_of(tmp_path, precision=precision, initial_loss_scale=2.0**30, loss_scale_window=100)
    weights = [leaf.local.clone() for leaf in steps.training.leaves]
    for number in range(30):
        (outcome,) = steps.update(steps.forward_and_backward())
        assert outcome.loss_scale == 2.0 ** (30 - number)
        same = all(torch.equal(leaf.local, weight) for leaf, weight in zip(steps.training.leaves, weights, strict=True))
        assert same is outcome.skipped is not math.isfinite(outcome.gradient_norm)
        if not outcome.skipped:
            break
    assert 4 < number < 29  # 2^30 is far beyond fp16


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("precision", [precision for precision in Precision if precision.scaled])
def test_training_under_a_growing_scale_follows_fp32(precision: Precision, tmp_path: Path) -> None:
    losses = []
    for changes in ({"precision": Precision.FP32}, {"precision": precision, "initial_loss_scale": 16.0}):
        steps = steps_of(tmp_path, **changes, loss_scale_window=1, learning_rate=1e-2, warmup=0)
        done = [steps.update(steps.forward_and_backward())[0] for _ in range(6)]
        assert not any(outcome.skipped for outcome in done)
        losses.append([outcome.loss for outcome in done])
    assert done[-1].loss_scale == 16 * 2.0**5
    plain, scaled = losses
    assert plain[0] - plain[-1] > 0.1
    # From tokens to loss some 30 operators round one after the other, each by 2^-11 at most. (Without division by the
    # scale, Adam's moments would weigh later gradients 2, 4, 8, ... times, and the losses be apart by more.)
    assert all(abs(a - b) < 30 * 2**-11 * a for a, b in zip(plain, scaled, strict=True))


def test_no_update_is_before_reading_on_a_processor_or_where_it_may_be_skipped(tmp_path: Path) -> None:
    asked, gpu = job(tmp_path), torch.device("cuda", 0)
    offloaded = msgspec.structs.replace(asked.layout, offload=Offload.STATE)
    one_bit = msgspec.structs.replace(asked, averaging=Averaging.ONE_BIT)
    assert updates_before_reading(asked, gpu, scaled=False)
    assert not updates_before_reading(asked, CPU, scaled=False)
    assert not updates_before_reading(asked, gpu, scaled=True)
    assert not updates_before_reading(msgspec.structs.replace(asked, layout=offloaded), gpu, scaled=False)
    assert not updates_before_reading(one_bit, gpu, scaled=False)


@pytest.mark.usefixtures("alone")
def test_each_step_moves_the_biases_of_experts_by_the_rows_of_all_its_micro_batches(tmp_path: Path) -> None:
    asked = job(tmp_path)
    mixture = msgspec.structs.replace(
        asked.architecture,
        biases=False,
        experts=4,
        experts_per_token=2,
        gate=Gate.SIGMOID,
        balancing=Balancing.BIAS,
        balancing_rate=RATE,
    )
    loop = SuiteLoop(msgspec.structs.replace(asked, architecture=mixture), CPU)
    rows = BATCH * mixture.sequence * 2
    expected = {layer: [0.0] * 4 for layer in range(mixture.layers)}
    moved = False
    for _ in range(STEPS):
        loop.step()
        for layer, router in loop.training.chunks[0].routers.items():
            loads = router.statistics.loads
            assert sum(loads) == rows
            signs = [(load < rows / 4) - (load > rows / 4) for load in loads]
            expected[layer] = [bias + RATE * sign for bias, sign in zip(expected[layer], signs, strict=True)]
            assert router.bias is not None
            assert router.bias.tolist() == expected[layer]
            moved |= any(signs)
    assert moved
