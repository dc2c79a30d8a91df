"""Seconds of a traced step, by part and by module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from suite.job.events import CountedCollective
from suite.job.operators import OperatorKind, TracedOperator, TracePhase
from suite.predict.analytic.collective_time import collective_seconds, group
from suite.predict.analytic.machine import Machine
from suite.predict.traced_run.operator_time import operator_seconds

_UPDATE = (TracePhase.UPDATE,)


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
    operators: Sequence[TracedOperator],
    collectives: Sequence[CountedCollective],
    machine: Machine,
    *,
    ranks: int,
    layers: int,
    causal: bool,
) -> TracedTime:
    """Seconds of a step whose operators run one after the other, with messages beside them.

    operators       sum of `operator_seconds`
    launches        of each phase, what the host's seconds for its launches exceed the accelerator's
    messages        what exceeds the share of the computation that hides them; the first of each layer's gathers, and
                    the last reduction, are hidden by nothing

    Args:
        layers: units of messages; 0: one message hides nothing.
        causal: whether attention sees the past alone.
    """
    seconds = defaultdict[tuple[TracePhase, OperatorKind], float](float)
    modules = defaultdict[str, float](float)
    launches = defaultdict[TracePhase, float](float)
    for call in operators:
        spent = call.calls * operator_seconds(call, machine, causal=causal)
        seconds[call.phase, call.kind] += spent
        modules[call.module] += spent
        launches[call.phase] += call.calls * machine.launch_seconds
    busy = defaultdict[TracePhase, float](float)
    for (phase, _), spent in seconds.items():
        busy[phase] += spent
    waited = sum(max(0.0, launches[phase] - busy[phase]) for phase in launches)
    links = group(machine, ranks=ranks, ranks_in_node=min(ranks, machine.accelerators_per_node))
    messages = defaultdict[str, float](float)
    for each in collectives:
        messages[each.operation] += collective_seconds(
            each.operation, links, payload_bytes=each.payload_bytes, messages=each.messages
        )
    return TracedTime(
        operators=dict(seconds),
        modules=dict(modules),
        launch_seconds=waited,
        message_seconds=_exposed(sum(messages.values()), busy, machine, layers),
        messages=dict(messages),
        overhead_seconds=machine.step_overhead_seconds,
    )


def _exposed(messages: float, busy: Mapping[TracePhase, float], machine: Machine, layers: int) -> float:
    hidden = machine.overlap_share * sum(spent for phase, spent in busy.items() if phase not in _UPDATE)
    first = messages / max(1, layers)
    return max(first, messages - hidden) if messages else 0.0
