"""Seconds of a counted step on an H100, by the machine model that was fitted to published step times."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from benchmarks.mfu_design.launch_log import CountedStep
from reference_runs.run import Workload
from suite.predict.analytic.flop_conventions import palm_flop
from suite.predict.analytic.gemm import gemm_seconds
from suite.predict.analytic.layer_time import fused_attention_seconds
from suite.predict.analytic.machine import Machine
from suite.predict.machine_model.model import run_machine

ACCELERATOR = "h100-sxm"
STACK = "megatron-core"  # of whose switches only the attention counts here, cuDNN's
ELEMENT_BYTES = 2


class PredictedStep(NamedTuple):
    """Seconds of one step on the device; `binding` is the longest term.

    Args:
        mfu: model flop of the step over its seconds and the dense peak.
        mfu_at_rate: Tflop/s of all products, whatever their shape -> the same. The rates are those that known-good
            accelerators keep up at the power limit, and reach in bursts.
    """

    terms: dict[str, float]
    mfu: float
    mfu_at_rate: dict[int, float]

    @property
    def seconds(self) -> float:
        return sum(self.terms.values())

    @property
    def binding(self) -> str:
        return max(self.terms, key=lambda term: self.terms[term])


def predicted_step(workload: Workload, counted: CountedStep) -> PredictedStep:
    """The step by what was counted of it.

    products     each launched product of M x K by K x N (`gemm_seconds`), with the model's efficiency and saturation
    attention    the kernel's forward and backward pass (`fused_attention_seconds`), a layer and micro-batch
    operators    bytes of all other kernels over the bandwidth that programs reach
    kernels      of each launch, what the model gives to filling and draining the device
    """
    found = run_machine(None, workload.recipe.precision, ranks=1, accelerator_name=ACCELERATOR, stack_name=STACK)
    assert found is not None
    assert found.machine is not None
    machine, passes = found.machine, counted.layers * counted.micro_batches
    terms = {
        "products": sum(count * _product_seconds(machine, M, N, K) for M, N, K, count in counted.step.products),
        "attention": passes * sum(fused_attention_seconds(workload, machine)),
        "operators": (counted.compiled_bytes + counted.operator_bytes) / machine.achievable_memory_bytes_per_second,
        "kernels": counted.step.kernels * machine.kernel_seconds,
    }
    architecture = msgspec.structs.replace(workload.architecture, layers=counted.layers)
    tokens = counted.micro_batches * workload.layout.micro_batch * architecture.sequence
    least_seconds = palm_flop(architecture, tokens=tokens) / machine.peak_flop_per_second
    flop = sum(2 * M * N * K * count for M, N, K, count in counted.step.products)
    others = sum(terms.values()) - terms["products"]
    known = found.accelerator.sustained
    rates = [rate for rate in (known.product_flop_per_second, known.burst_flop_per_second) if rate is not None]
    at_rate = {round(rate / 1e12): least_seconds / (others + flop / rate) for rate in rates}
    return PredictedStep(terms, least_seconds / sum(terms.values()), at_rate)


def _product_seconds(machine: Machine, M: int, N: int, K: int) -> float:
    return gemm_seconds(
        M,
        N,
        K,
        ELEMENT_BYTES,
        machine.matrix_efficiency,  # type: ignore[arg-type]  # of the fitted model it is one table
        machine.peak_flop_per_second,
        machine.achievable_memory_bytes_per_second,
        machine.matrix_saturation,
    )
