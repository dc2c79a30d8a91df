"""Workers at a parameter store on simulated GPUs: shards in streams of their own, messages over NCCL's stand-in."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from suite.job.events import Status
from suite.job.synchronisation import parse_slow_ranks, parse_synchronisation
from suite.metrics.comparison import Verdict
from tests.simulated_cuda.environment import simulated_environment
from tests.support.launches import FP32_WITHOUT_DROPOUT, exact_rows, launched, small_plan


@pytest.mark.ranks
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("words", ["bsp", "ssp:2"])
def test_workers_over_nccl_train_as_over_gloo(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = msgspec.structs.replace(
        small_plan(ranks=2, recipe=FP32_WITHOUT_DROPOUT, layout={"zero_stage": 0}),
        synchronisation=parse_synchronisation(words),
        slow_ranks=parse_slow_ranks("1:2:3"),
        steps=8,
    )
    on_cpu = launched(plan, tmp_path / "cpu")
    for name, value in simulated_environment(2, values=1 << 30, log=tmp_path / "log").items():
        monkeypatch.setenv(name, value)
    on_gpus = launched(msgspec.structs.replace(plan, device="cuda"), tmp_path / "cuda")
    assert (on_cpu.status, on_gpus.status) == (Status.OK, Status.OK), on_gpus.message
    assert [row for row in exact_rows(on_gpus.rows) if row.verdict is Verdict.FAIL] == []
    if words == "bsp":  # else the order of gradients is the machine's
        assert on_gpus.losses == pytest.approx(on_cpu.losses, rel=1e-4)
