"""With cuBLASLt's epilogues the predicted GEMMs and kept tensors are the same, and passes over memory are gone."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import reference_run
from reference_runs.run import Activation, Precision, ProductFormat, Workload
from suite.job.options import KernelChoice, Optimization, StepOptions
from suite.machine.gpu import Gpu
from suite.machine.half_precision import Kernels
from suite.machine.timing_tables import Subject
from suite.predict.executed_run.step_time import time_figures
from suite.predict.simulation.autograd_tape import OperatorCalls
from suite.predict.simulation.epilogue_operators import WORKSPACE_BYTES, cublaslt_workspace_bytes
from suite.predict.simulation.launched_options import device_options
from suite.predict.simulation.operator_calls import micro_batch_calls
from suite.predict.simulation.optimizations import RULES, PlannedLaunch
from suite.predict.simulation.step_memory import executed_activation_bytes, executed_peak_bytes
from suite.predict.simulation.step_time import epilogue_seconds, step_seconds
from tests.support.examples import examples
from tests.support.step_machine import Machine

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


def test_gelu_its_gradient_and_sums_over_tokens_are_gone_and_its_input_is_moved_by_gemms() -> None:
    architecture, _, layout = workload()
    tokens, hidden = layout.micro_batch * architecture.sequence, architecture.hidden
    gone, come = calls() - calls(EPILOGUES), calls(EPILOGUES) - calls()
    assert {(call.operation, call.sizes, backward): times for (backward, call), times in come.items()} == {
        ("epilogue", (tokens * architecture.ffn_hidden,), False): LAYERS,
        ("epilogue", (tokens * architecture.ffn_hidden,), True): LAYERS,
    }
    found = Counter({(call.operation, call.sizes, backward): times for (backward, call), times in gone.items()})
    width = architecture.ffn_hidden
    assert found == {
        ("gelu_tanh", (tokens * width,), False): LAYERS,
        ("gelu_tanh", (tokens * width,), True): LAYERS,
        ("column_sum", (tokens, 3 * hidden), True): LAYERS,
        ("column_sum", (tokens, width), True): LAYERS,
        ("column_sum", (tokens, hidden), True): 2 * LAYERS,
    }


class Copies(Machine, frozen=True):
    """Bytes alone take time, but those of GEMMs and other operators none."""

    def seconds(self, subject: Subject, *sizes: float) -> float:
        return self.per_unit * sizes[0] if subject.operation == "copy" else 0.0


@examples(20)
@given(
    layers=st.integers(1, 3),
    width=st.integers(1, 64).map(lambda eighth: 8 * eighth),
    micro_batch=st.sampled_from([1, 2, 4]),
    per_byte=st.floats(1e-13, 1e-9),
)
def test_epilogues_take_as_long_as_a_copy_of_gelu_s_input_written_forward_and_read_backward(
    layers: int, width: int, micro_batch: int, per_byte: float
) -> None:
    architecture, recipe, layout = workload()
    changed = Workload(
        msgspec.structs.replace(architecture, layers=layers, ffn_hidden=width),
        msgspec.structs.replace(recipe, global_batch=8),
        msgspec.structs.replace(layout, data_parallel=1, micro_batch=micro_batch, accumulation=None),
    )
    machine, bf16 = Copies(per_unit=per_byte), 2
    seconds = 2 * layers * 8 * architecture.sequence * width * bf16 * per_byte  # of the step's 8 samples, twice
    assert epilogue_seconds(machine, changed, options(EPILOGUES)) == pytest.approx(seconds)
    (step,) = step_seconds(machine, changed, options(EPILOGUES))
    assert (step.forward, step.backward, step.step) == pytest.approx((seconds / 2, seconds / 2, seconds))
    assert epilogue_seconds(machine, changed, options()) == 0
    of_step = time_figures(machine, changed, options(EPILOGUES))[0]
    assert f"{1e3 * seconds:,.1f} ms of the step are GELU's input" in of_step.why


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
