"""1-bit Adam on simulated GPUs: signs packed by the Triton kernels and sent over NCCL's stand-in, values and all."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from suite.job.events import Status
from suite.job.options import Averaging
from suite.metrics.comparison import Verdict
from tests.simulated_cuda.environment import simulated_environment
from tests.support.launches import FP32_WITHOUT_DROPOUT, exact_rows, launched, small_plan

EXACT_STEPS = 2


@pytest.mark.ranks
@pytest.mark.long
@pytest.mark.timeout(600)
def test_packed_kernels_over_nccl_train_as_the_reference_does_over_gloo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = msgspec.structs.replace(
        small_plan(ranks=2, recipe=FP32_WITHOUT_DROPOUT, layout={"zero_stage": 0}),
        averaging=Averaging.ONE_BIT,
        exact_steps=EXACT_STEPS,
        steps=8,
    )
    on_cpu = launched(plan, tmp_path / "cpu")
    log = tmp_path / "log"
    for name, value in simulated_environment(2, values=1 << 30, log=log).items():
        monkeypatch.setenv(name, value)
    on_gpus = launched(msgspec.structs.replace(plan, device="cuda"), tmp_path / "cuda")
    assert (on_cpu.status, on_gpus.status) == (Status.OK, Status.OK), on_gpus.message
    assert on_gpus.losses == pytest.approx(on_cpu.losses, rel=1e-4)
    assert [row for row in exact_rows(on_gpus.rows) if row.verdict is Verdict.FAIL] == []
    calls = log.read_text(encoding="utf-8")
    assert "_pack_kernel" in calls
    assert "_unpack_kernel" in calls
