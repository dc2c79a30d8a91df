"""Seconds of a traced step, by part and by module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from reference_runs.layout import Layout
from suite.job.events import CountedCollective
from suite.job.operators import OperatorKind, TracedOperator, TracePhase
from suite.job.trace_job import Sharding, TraceJob
from suite.predict.analytic.collective_time import collective_seconds, group
from suite.predict.analytic.exposed_messages import exposed_data_parallel_seconds
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.stage_computation import COLLECTIVE_LAUNCHES, HOST_SHARPNESS
from suite.predict.traced_run.operator_time import OperatorRates, operator_seconds

GATHER = "all_gather"


class TracedTime(NamedTuple):
    """Seconds of one rank's step.

    Args:
        operators: of the accelerator, by phase and kind.
        modules: of the accelerator in all phases, by module.
        launch_seconds: that the accelerator waits for the host to launch operators.
        message_seconds: that are not hidden behind computation; `messages` all of them, by operation.
        overhead_seconds: of each step.
    """

    operators: dict[tuple[TracePhase, OperatorKind], float]
    modules: dict[str, float]
    launch_seconds: float
    message_seconds: float
    messages: dict[str, float]
    overhead_seconds: float

    @property
    def total_seconds(self) -> float:
        """Seconds of the step."""
        waited = self.launch_seconds + self.message_seconds + self.overhead_seconds
        return sum(self.operators.values()) + waited


def traced_time(
    operators: Sequence[TracedOperator], collectives: Sequence[CountedCollective], rates: OperatorRates, job: TraceJob
) -> TracedTime:
    """Seconds of a step whose operators run one after the other, with messages beside them.

    operators       sum of `operator_seconds`
    launches        the host's seconds a for all kernels (a collective takes two) beside the accelerator's b, of both
                    passes and of the update: (a^8 + b^8)^(1/8) - b, see `micro_batch_seconds`
    messages        as `exposed_data_parallel_seconds` has them: under DistributedDataParallel, what the last backward
                    pass does not hide; under FSDP2, what all passes do not. Gradients that wait for the last
                    micro-batch are hidden by its backward pass alone. Nothing hides the first gather and the last
                    reduction, each as long as the mean
    """
    machine = rates.machine
    seconds = defaultdict[tuple[TracePhase, OperatorKind], float](float)
    modules = defaultdict[str, float](float)
    launches = defaultdict[bool, float](float)
    busy = defaultdict[TracePhase, float](float)
    for call in operators:
        spent = call.calls * operator_seconds(call, rates)
        seconds[call.phase, call.kind] += spent
        modules[call.module] += spent
        busy[call.phase] += spent
        if call.kind is not OperatorKind.HOST:
            launches[call.phase is TracePhase.UPDATE] += call.calls
    launches[False] += COLLECTIVE_LAUNCHES * sum(each.messages for each in collectives)
    update = busy.pop(TracePhase.UPDATE, 0.0)
    passes = sum(busy.values())
    waited = _waited(passes, launches[False] * machine.launch_seconds)
    links = group(machine, ranks=job.ranks, ranks_in_node=min(job.ranks, machine.accelerators_per_node))
    messages = {
        each: collective_seconds(each.operation, links, payload_bytes=each.payload_bytes, messages=each.messages)
        for each in collectives
    }
    slowdown = 1 + waited / passes if passes else 1.0
    backward = busy[TracePhase.BACKWARD] + busy[TracePhase.RECOMPUTATION]
    return TracedTime(
        operators=dict(seconds),
        modules=dict(modules),
        launch_seconds=waited + _waited(update, launches[True] * machine.launch_seconds),
        message_seconds=_exposed(messages, slowdown * backward, slowdown * passes, machine, job),
        messages={each.operation: spent for each, spent in messages.items()},
        overhead_seconds=machine.step_overhead_seconds,
    )


def _waited(accelerator: float, host: float) -> float:
    """Seconds by which the host makes the accelerator's longer."""
    longer = max(accelerator, host)
    if not longer:
        return 0.0
    shorter = min(accelerator, host)
    return float(longer * (1 + (shorter / longer) ** HOST_SHARPNESS) ** (1 / HOST_SHARPNESS)) - accelerator


def _exposed(
    messages: Mapping[CountedCollective, float], backward: float, passes: float, machine: Machine, job: TraceJob
) -> float:
    """Seconds of messages that computation does not hide.

    Args:
        backward: seconds of the backward passes of all micro-batches; `passes` with the forward passes.
    """
    spent, ends = {}, 0.0
    for is_gather in (True, False):
        same = {each: seconds for each, seconds in messages.items() if (each.operation == GATHER) is is_gather}
        one = sum(same.values()) / max(1, sum(each.messages for each in same))
        spent[is_gather] = sum(same.values()) - one
        ends += one
    gathers, reductions = spent[True], spent[False]
    share = machine.overlap_share if machine.stack.overlaps_data_parallel else 0.0

    def exposed(stage: int, reduction: float, gather: float) -> float:
        return exposed_data_parallel_seconds(
            Layout(data_parallel=job.ranks, zero_stage=stage),
            reduction_seconds=reduction,
            gather_seconds=gather,
            backward_seconds=backward / job.micro_batches,
            computation_seconds=passes / job.micro_batches,
            micro_batches=job.micro_batches,
            overlap_share=share,
            overlap_cost=machine.overlap_cost,
        )

    if job.sharding is Sharding.REPLICATED:
        return ends + exposed(0, reductions, gathers)
    if job.synchronises_once:
        return ends + exposed(0, reductions, 0.0) + exposed(3, 0.0, gathers)
    return ends + exposed(3, reductions, gathers)
