"""Which launches can have which optimization."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from reference_runs.catalog import reference_run
from reference_runs.layout import Schedule
from reference_runs.run import Optimizer, Precision
from suite.job.options import KernelChoice, Optimization
from suite.predict.simulation.optimizations import RULES, PlannedLaunch

ONE_PASS = RULES[Optimization.ONE_PASS_UPDATE]


def launched(device: str = "cuda", *, flushes: bool = True, **recipe: Any) -> PlannedLaunch:
    workload = reference_run("gpt2-124m").workload
    workload = workload._replace(recipe=msgspec.structs.replace(workload.recipe, **recipe))
    if not flushes:
        layout = msgspec.structs.replace(workload.layout, pipeline_stages=2, schedule=Schedule.PIPEDREAM)
        workload = workload._replace(layout=layout)
    return PlannedLaunch(workload, device, compiled=True, kernels=KernelChoice.TORCH)


@pytest.mark.parametrize("optimizer", [Optimizer.ADAM, Optimizer.ADAMW])
@pytest.mark.parametrize("precision", [precision for precision in Precision if precision is not Precision.BF16_PURE])
def test_adam_updates_in_one_pass_on_a_gpu_by_default(precision: Precision, optimizer: Optimizer) -> None:
    assert ONE_PASS.why_not(launched(precision=precision, optimizer=optimizer)) == ""
    assert (ONE_PASS.is_default, ONE_PASS.package) == (True, "triton")


def test_other_launches_update_as_before() -> None:
    others = [other for other in Optimizer if other not in (Optimizer.ADAM, Optimizer.ADAMW)]
    for launch, why in (
        (launched("cpu"), "no CUDA device"),
        (launched(precision=Precision.BF16_PURE), "moments in bf16"),
        (launched(flushes=False), "a pipeline that keeps versions of its weights"),
        *((launched(optimizer=other), "another optimizer than Adam") for other in others),
    ):
        assert ONE_PASS.why_not(launch) == why
