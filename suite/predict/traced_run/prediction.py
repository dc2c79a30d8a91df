"""A traced step on an accelerator: does it fit, and how long does it take?"""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.accelerator import accelerator
from reference_runs.run import Precision
from suite.job.operators import OperatorKind, TracePhase
from suite.job.trace_job import NumberFormat, StepTrace, TraceJob
from suite.predict.analytic.usable_memory import UsableMemory, usable_memory
from suite.predict.machine_model.intervals import MemoryVerdict, memory_verdict
from suite.predict.machine_model.model import RunMachine, run_machine
from suite.predict.traced_run.step_time import TracedTime, traced_time

STACK = "pytorch"  # eager operators, one by one: what a trace sees
PRECISION = {
    NumberFormat.FP32: Precision.FP32,
    NumberFormat.BF16: Precision.BF16,
    NumberFormat.BF16_PURE: Precision.BF16_PURE,
}


class TracedPrediction(NamedTuple):
    """Figures of a traced step on so many accelerators.

    Args:
        model_flop: of the step of all ranks, without recomputation; of fused attention the full square.
        hardware_flop: with it.
        time: None where the network between nodes is needed and not known.
    """

    job: TraceJob
    trace: StepTrace
    machine: RunMachine
    memory: UsableMemory
    model_flop: int
    hardware_flop: int
    time: TracedTime | None

    @property
    def verdict(self) -> MemoryVerdict:
        """Whether it fits."""
        return memory_verdict(self.trace.peak_bytes, self.memory.usable)

    @property
    def samples(self) -> int:
        """Samples of a step, of all ranks."""
        return self.job.ranks * self.job.micro_batches * self.job.micro_batch

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of all ranks a second."""
        return None if self.time is None else self.samples * self.trace.sequence / self.time.total_seconds

    @property
    def mfu(self) -> float | None:
        """Model flop over what the accelerators could compute in the step, at their dense peak."""
        if self.time is None:
            return None
        return self.model_flop / (self.job.ranks * self.time.total_seconds * self.machine.peak.flop_per_second)


def traced_prediction(
    job: TraceJob, trace: StepTrace, *, on: str, network_bytes_per_second: float | None
) -> TracedPrediction:
    """The prediction of a traced step on accelerators of this name.

    Raises:
        InputError: no such accelerator, or it does not compute in the job's format.
    """
    precision = PRECISION[job.number_format]
    machine = run_machine(
        None,
        precision,
        ranks=job.ranks,
        accelerator_name=on,
        network_bytes_per_second=network_bytes_per_second,
        stack_name=STACK,
    )
    assert machine is not None  # an accelerator is named
    hardware = again = 0
    for call in trace.operators:
        flop = job.ranks * call.calls * call.flop
        hardware += flop
        if call.phase is TracePhase.RECOMPUTATION:
            again += flop
        elif call.phase is TracePhase.BACKWARD and call.kind is OperatorKind.ATTENTION:
            again += flop // 5  # a fused backward pass computes the scores, one of its five products, again
    time = None
    if machine.machine is not None:
        time = traced_time(
            trace.operators,
            trace.collectives,
            machine.machine,
            ranks=job.ranks,
            layers=trace.layers,
            causal=bool(job.source.configuration),
        )
    memory = usable_memory(accelerator(on).board)
    return TracedPrediction(job, trace, machine, memory, hardware - again, hardware, time)
