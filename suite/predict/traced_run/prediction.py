"""A traced step on an accelerator: does it fit, and how long does it take?"""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.run import Precision
from suite.job.trace_job import NumberFormat, StepTrace, TraceJob
from suite.machine.profile import Profile
from suite.predict.analytic.memory_uncertainty import Fitting, PeakKind, peak_uncertainty
from suite.predict.analytic.usable_memory import UsableMemory, usable_memory
from suite.predict.machine_model.from_profile import profiled_operators
from suite.predict.machine_model.model import RunMachine, run_machine
from suite.predict.traced_run.figures import step_flop
from suite.predict.traced_run.operator_time import OperatorRates
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
        model_flop: of the passes of all ranks, without recomputation; of fused attention the full square.
        hardware_flop: with it, and with the update.
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
    def fitting(self) -> Fitting:
        """Whether it fits."""
        return peak_uncertainty(PeakKind.WALKED).fitting(self.trace.peak_bytes, self.memory.usable)

    @property
    def room(self) -> float:
        """Bytes of the largest peak that fits."""
        return peak_uncertainty(PeakKind.WALKED).room(self.memory.usable)

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
    job: TraceJob, trace: StepTrace, *, on: str, network_bytes_per_second: float | None, profile: Profile | None = None
) -> TracedPrediction:
    """The prediction of a traced step on accelerators of this name, or on ranks of the machine that `profile` measured.

    Raises:
        InputError: no such accelerator, it does not compute in the job's format, or the profile lacks a measurement.
    """
    precision = PRECISION[job.number_format]
    passes: dict[str, float] = {}
    if profile is not None:
        machine, passes = profiled_operators(
            profile, precision, ranks=job.ranks, network_bytes_per_second=network_bytes_per_second, stack_name=STACK
        )
    else:
        named = run_machine(
            None,
            precision,
            ranks=job.ranks,
            accelerator_name=on,
            network_bytes_per_second=network_bytes_per_second,
            stack_name=STACK,
        )
        assert named is not None  # an accelerator is named
        machine = named
    model, hardware = (job.ranks * flop for flop in step_flop(trace))
    time = None
    if machine.machine is not None:
        peak = machine.machine.peak_flop_per_second
        rates = OperatorRates(
            machine.machine,
            fp32_flop_per_second=machine.accelerator.peak_flop_per_second.get("fp32", peak / 2),
            is_fp32=job.number_format is NumberFormat.FP32,
            causal=bool(job.source.configuration),
            tokens=job.micro_batch * trace.sequence,
            passes=passes,
        )
        time = traced_time(trace.operators, trace.collectives, rates, job)
    memory = usable_memory(machine.accelerator.board)
    return TracedPrediction(job, trace, machine, memory, model, hardware, time)
