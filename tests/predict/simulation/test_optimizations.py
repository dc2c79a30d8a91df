"""Which launches can have an optimization, and why others cannot."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from reference_runs.catalog import reference_run
from reference_runs.layout import Recomputation, Schedule
from reference_runs.run import Norm, Optimizer, Precision, Residual
from suite.job.options import KernelChoice, Optimization
from suite.machine.gpu import H100, SdpaBackend
from suite.predict.analytic.cuda_temporaries import attention_workspace_bytes
from suite.predict.simulation.optimizations import RULES, PlannedLaunch, default_optimizations

OF_ATTENTION = (
    Optimization.PACKED_GRADIENTS,
    Optimization.ACROSS_BLOCKS,
    Optimization.FLASH_ATTENTION_3,
    Optimization.MICRO_BATCH_GRAPH,
    Optimization.DEPENDENT_LAUNCH,
)
RECORDED = reference_run("gpt2-124m").workload
ON_ONE = RECORDED._replace(layout=msgspec.structs.replace(RECORDED.layout, data_parallel=1, accumulation=None))
GPT2 = PlannedLaunch(ON_ONE, "cuda", compiled=True, kernels=KernelChoice.TORCH)
AMPERE = H100._replace(capability=(8, 0))
OF = {name.value: name for name in Optimization}


def changed(**changes: Any) -> PlannedLaunch:
    """GPT-2's launch with other fields of its architecture, recipe, layout, or of the launch."""
    workload, launch = GPT2.workload, {}
    for name, value in changes.items():
        part = next((part for part in workload._fields if hasattr(getattr(workload, part), name)), None)
        if part is None:
            launch[name] = value
        else:
            workload = workload._replace(**{part: msgspec.structs.replace(getattr(workload, part), **{name: value})})
    return GPT2._replace(workload=workload, **launch)


@pytest.mark.parametrize("name", OF_ATTENTION)
def test_gpt_2_on_one_hopper_gpu_can_have_each_and_a_cpu_none(name: Optimization) -> None:
    assert RULES[name].why_not(GPT2) == ""
    assert RULES[name].why_not(changed(device="cpu")) == "no CUDA device"


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("across-blocks", {"norm": Norm.DEEP_NORM}, "no norm at the start of blocks"),
        ("across-blocks", {"residual": Residual.PARALLEL}, "in parallel"),
        ("across-blocks", {"recomputation": Recomputation.FULL}, "keeps the sum"),
        ("across-blocks", {"pipeline_stages": 2}, "stages send the sum"),
        ("across-blocks", {"compiled": False}, "neither a compiler nor Triton"),
        ("packed-gradients", {"rotary_dim": 32}, "rotated"),
        ("packed-gradients", {"kv_heads": 4}, "share keys"),
        ("packed-gradients", {"attention_dropout": 0.1}, "dropout"),
        ("packed-gradients", {"gpu": AMPERE}, "than cuDNN's"),
        ("packed-gradients", {"precision": Precision.FP32}, "than cuDNN's"),
        ("flash-attention-3", {"gpu": AMPERE}, "Hopper"),
        ("flash-attention-3", {"precision": Precision.FP32}, "fp32"),
        ("flash-attention-3", {"fused_attention": False}, "stores its scores"),
        ("micro-batch-graph", {"data_parallel": 2}, "several ranks"),
        ("micro-batch-graph", {"recomputation": Recomputation.FULL}, "generator"),
        ("micro-batch-graph", {"rotary_dim": 32}, "angles"),
        ("micro-batch-graph", {"precision": Precision.FP16}, "loss scale"),
        ("micro-batch-graph", {"compiled": False}, "no compiled block"),
        ("dependent-launch", {"gpu": AMPERE}, "older than Hopper"),
    ],
)
def test_a_launch_that_cannot_have_one_says_why(name: str, changes: dict[str, Any], why: str) -> None:
    assert why in RULES[OF[name]].why_not(changed(**changes))


def test_a_compiled_launch_on_a_gpu_computes_sums_with_norms_by_default() -> None:
    assert Optimization.ACROSS_BLOCKS in default_optimizations(GPT2)
    assert Optimization.ACROSS_BLOCKS not in default_optimizations(changed(compiled=False))
    assert default_optimizations(changed(device="cpu")) == ()


def test_flash_attention_3_needs_fp32_sums_of_the_queries_gradient_and_two_numbers_a_row() -> None:
    found = attention_workspace_bytes(SdpaBackend.FLASH_3, heads=768, length=1000, head_dim=64)
    assert found == 4 * 768 * 1024 * (64 + 2)
    assert attention_workspace_bytes(SdpaBackend.FLASH_3, heads=1, length=65, head_dim=72) == 4 * 128 * (96 + 2)


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
