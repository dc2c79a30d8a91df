"""With cuBLASLt's epilogues the predicted GEMMs and kept tensors are the same, and passes over memory are gone."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from reference_runs.catalog import reference_run
from reference_runs.run import Activation, Precision, ProductFormat, Workload
from suite.job.options import KernelChoice, Optimization, StepOptions
from suite.machine.gpu import Gpu
from suite.machine.half_precision import Kernels
from suite.predict.simulation.autograd_tape import OperatorCalls
from suite.predict.simulation.epilogue_operators import WORKSPACE_BYTES, cublaslt_workspace_bytes
from suite.predict.simulation.launched_options import device_options
from suite.predict.simulation.operator_calls import micro_batch_calls
from suite.predict.simulation.optimizations import RULES, PlannedLaunch
from suite.predict.simulation.step_memory import executed_activation_bytes, executed_peak_bytes

EPILOGUES, TUNED = Optimization.EPILOGUES, Optimization.TUNED_GEMMS
H100 = Kernels(cuda=True, gpu=Gpu(capability=(9, 0)))
LAYERS = 2


def workload() -> Workload:
    run = reference_run("gpt2-124m")
    return Workload(msgspec.structs.replace(run.architecture, layers=LAYERS), run.recipe, run.layout)


def options(*names: Optimization) -> StepOptions:
    training = device_options(workload(), "cuda", compiled=True, kernels=KernelChoice.TORCH, optimizations=names)
    return StepOptions(kernels=H100, compiled=True, training_options=training)


def calls(*names: Optimization) -> OperatorCalls:
    """Calls of the device in a micro-batch."""
    (chunk,) = micro_batch_calls(workload(), options(*names), stage=0)
    host = ("view", "node", "module", "call", "weight_read")
    return Counter({call: times for call, times in chunk.calls.items() if call[1].operation not in host})


def test_the_calls_that_are_gone_are_gelu_its_gradient_and_sums_over_tokens() -> None:
    architecture, _, layout = workload()
    tokens, hidden = layout.micro_batch * architecture.sequence, architecture.hidden
    gone = calls() - calls(EPILOGUES)
    assert calls(EPILOGUES) - calls() == Counter()
    found = Counter({(call.operation, call.sizes, backward): times for (backward, call), times in gone.items()})
    width = architecture.ffn_hidden
    assert found == {
        ("gelu_tanh", (tokens * width,), False): LAYERS,
        ("gelu_tanh", (tokens * width,), True): LAYERS,
        ("column_sum", (tokens, 3 * hidden), True): LAYERS,
        ("column_sum", (tokens, width), True): LAYERS,
        ("column_sum", (tokens, hidden), True): 2 * LAYERS,
    }


def test_of_tuned_gemms_no_gain_is_predicted() -> None:
    assert calls(TUNED) == calls()
    assert calls(EPILOGUES, TUNED) == calls(EPILOGUES)


@pytest.mark.parametrize("names", [(EPILOGUES,), (TUNED,), (EPILOGUES, TUNED)])
def test_activations_stay_and_the_peak_grows_by_the_workspace_at_most(names: tuple[Optimization, ...]) -> None:
    plain, fused = options(), options(*names)
    assert (cublaslt_workspace_bytes(plain), cublaslt_workspace_bytes(fused)) == (0, WORKSPACE_BYTES)
    kept = [executed_activation_bytes(workload(), each, stage=0) for each in (plain, fused)]
    assert kept[0] == kept[1]
    peaks = [executed_peak_bytes(workload(), each, stage=0, replica=0) for each in (plain, fused)]
    assert peaks[1] <= peaks[0] + WORKSPACE_BYTES


def why_not(name: Optimization, changed: Workload, device: str = "cuda") -> str:
    return RULES[name].why_not(PlannedLaunch(changed, device, True, KernelChoice.TORCH))


def test_launches_that_cannot_have_them_have_a_reason() -> None:
    architecture, recipe, layout = usual = workload()
    bare = msgspec.structs.replace(architecture, biases=False, activation=Activation.SWIGLU)
    assert why_not(EPILOGUES, usual) == why_not(TUNED, usual) == ""
    assert why_not(TUNED, usual._replace(architecture=bare)) == ""
    assert why_not(EPILOGUES, usual._replace(architecture=bare)) == "neither a bias nor GELU by tanh's approximation"
    others = {
        "no CUDA device": why_not(TUNED, usual, "cpu"),
        "fp32": why_not(TUNED, usual._replace(recipe=msgspec.structs.replace(recipe, precision=Precision.FP32))),
        "8 bits": why_not(
            TUNED, usual._replace(recipe=msgspec.structs.replace(recipe, product_format=ProductFormat.FP8_CURRENT))
        ),
        "tensor parallelism": why_not(TUNED, usual._replace(layout=msgspec.structs.replace(layout, tensor_parallel=2))),
        "fully sharded": why_not(TUNED, usual._replace(layout=msgspec.structs.replace(layout, zero_stage=3))),
    }
    assert all(words in reason for words, reason in others.items())
