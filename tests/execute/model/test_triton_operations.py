"""A miniature with Triton kernels, interpreted, is the miniature with PyTorch's operators."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from reference_runs.catalog import miniatures, reference_run
from reference_runs.run import Activation, Norm, QueryKeyNorm, Residual
from suite.execute.data.token_stream import token_stream
from suite.execute.measure.counters import KeptForBackward
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.parallel.chunks import operations
from suite.execute.precision import DTYPES, prepare_arithmetic
from suite.job.options import KernelChoice
from suite.machine.half_precision import kernels_for
from suite.predict.executed_run.figures import memory_options
from suite.predict.simulation.step_memory import executed_activation_bytes
from suite.reproduce.plan import Plan, corpus_for, job_for
from suite.reproduce.supported import without_triton_kernel
from tests.end_to_end.layouts.agreement import gradient_bound, loss_bound, of_other_choices
from tests.end_to_end.layouts.table import Case, small_run

SAMPLES = 1
WITH_KERNELS = [
    name for name, run in miniatures().items() if not without_triton_kernel(reference_run(run).architecture)
]
# each kind of norm, activation, position and mask; the others have no kernel that these have not
USUAL = {f"{name}-mini" for name in ("bloom", "codegeex", "glm", "gpt-neox", "gpt2", "llama3", "mixtral", "opt")}
SCALE = 1024.0  # of the loss, as with loss scaling: gradients in fp16 do not underflow


def loss_and_gradients(plan: Plan, kernels: KernelChoice, directory: Path) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of the first samples, from the same weights whatever the kernels."""
    prepare_arithmetic(plan.recipe.precision, torch.device("cpu"))
    decoder = Decoder(plan.architecture, plan.recipe, operations(plan.architecture, kernels))
    initialise(decoder, plan.recipe, seed=5)
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() == 1:  # biases and gains that are not 0 and 1 show where they are used
                parameter.add_(0.1 * torch.randn_like(parameter))
    decoder.to(DTYPES[plan.recipe.precision])
    batch = token_stream(job_for(plan, corpus_for(plan, None), str(directory))).micro_batch(0, SAMPLES)
    loss = decoder(batch.tokens_BT, **batch.arguments)
    (loss * SCALE).backward()
    return loss.item(), {name: leaf.grad.double() / SCALE for name, leaf in decoder.named_parameters()}


@pytest.mark.parametrize(
    ("name", "arithmetic"),
    [
        *(pytest.param(name, "fp32", marks=[] if name in USUAL else pytest.mark.rare) for name in WITH_KERNELS),
        ("bloom-mini", "16bit"),
        *(pytest.param(name, "16bit", marks=pytest.mark.rare) for name in WITH_KERNELS if name != "bloom-mini"),
    ],
)
def test_loss_and_gradients_are_those_of_pytorchs_operators(name: str, arithmetic: str, tmp_path: Path) -> None:
    plan = small_run(Case(name, arithmetic, "dp1"))
    shape = msgspec.structs.replace(plan.architecture, layers=2, sequence=16)
    plan = msgspec.structs.replace(plan, architecture=shape)
    assert_the_same(plan, tmp_path)


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "changes",
    [
        {"query_key_norm": QueryKeyNorm.HEAD},
        {"query_key_norm": QueryKeyNorm.PROJECTION},
        {"query_key_norm": QueryKeyNorm.HEAD, "kv_heads": 1, "activation": Activation.RELU_SQUARED},
        {"residual": Residual.PARALLEL, "activation": Activation.GEGLU_TANH},
        {"residual": Residual.PARALLEL, "shared_norm": True, "rotary_dim": 16},
        {"norm": Norm.OUTPUT_RMS_NORM, "query_key_norm": QueryKeyNorm.PROJECTION},
    ],
    ids=lambda changes: ", ".join(f"{name} {value}" for name, value in changes.items()),
)
@pytest.mark.parametrize("arithmetic", ["fp32", "16bit"])
def test_variants_of_a_llama_are_computed_too(arithmetic: str, changes: dict[str, Any], tmp_path: Path) -> None:
    plan = small_run(Case("llama2-mini", arithmetic, "dp1"))
    shape = msgspec.structs.replace(plan.architecture, layers=2, sequence=16, **changes)
    assert not without_triton_kernel(shape)
    assert_the_same(msgspec.structs.replace(plan, architecture=shape), tmp_path)


@pytest.mark.parametrize("name", ["mixtral-mini", "qwen3-moe-mini", "deepseek-v3-mini"])
def test_a_mixture_keeps_what_is_predicted_of_its_kernels(name: str, tmp_path: Path) -> None:
    plan = small_run(Case(name, "16bit", "dp1"))
    shape = msgspec.structs.replace(plan.architecture, layers=2, sequence=16)
    plan = msgspec.structs.replace(plan, architecture=shape, kernels=KernelChoice.TRITON)
    job = job_for(plan, corpus_for(plan, None), str(tmp_path))
    decoder = Decoder(shape, plan.recipe, operations(shape, plan.kernels))
    initialise(decoder, plan.recipe, seed=5)
    decoder.to(DTYPES[plan.recipe.precision])
    kept, batch = KeptForBackward(decoder.parameters), token_stream(job).micro_batch(0, job.layout.micro_batch)
    with kept.hooks():
        loss = decoder(batch.tokens_BT, **batch.arguments)
    assert loss.requires_grad
    options = memory_options(job.step_options(kernels_for(plan.recipe.precision, "cpu")), plan.kernels)
    assert kept.bytes() == executed_activation_bytes(job.workload, options, stage=0)


def assert_the_same(plan: Plan, tmp_path: Path) -> None:
    """Loss and gradients by either kernels."""
    expected, expected_gradients = loss_and_gradients(plan, KernelChoice.TORCH, tmp_path)
    loss, gradients = loss_and_gradients(plan, KernelChoice.TRITON, tmp_path)
    executed = SimpleNamespace(job=plan)
    assert loss == pytest.approx(expected, rel=loss_bound(executed), abs=0)
    assert gradients.keys() == expected_gradients.keys()
    whole = torch.cat([gradient.flatten() for gradient in expected_gradients.values()]).norm()
    difference = torch.cat([(gradients[own] - expected_gradients[own]).flatten() for own in gradients]).norm()
    bound = gradient_bound(executed) + of_other_choices(executed.job)  # kernels round otherwise than operators
    assert difference <= bound * whole
