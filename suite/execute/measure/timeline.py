"""A profile's events as a timeline: compute, communication and copies in each phase of a step, and the step's terms.

Times are nanoseconds of one clock. `suite.execute.measure.profiler` makes the spans of the profiler's events.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from suite.execute.measure.phases import RANGE, Part
from suite.job.operators import only_dispatches
from suite.metrics.figures import StepTerm

StartEnd = tuple[int, int]

_COMPUTES = {Part.FORWARD: StepTerm.FORWARD, Part.BACKWARD: StepTerm.BACKWARD, Part.UPDATE: StepTerm.OPTIMIZER}
_COMMUNICATION = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::")
_COMPILED = "CompiledFxGraph"  # torch.compile's range around what inductor generated


class Span(NamedTuple):
    """One event on the thread that runs the step. `annotated`: a named range, not an operator."""

    name: str
    start: int
    end: int
    annotated: bool = False


class DeviceSpan(NamedTuple):
    """One kernel or copy of a device, and when the host launched it."""

    name: str
    start: int
    end: int
    launched: int


@dataclass
class Shares:
    """Nanoseconds of one phase in a profile.

    Attributes:
        communication: exposed: no compute runs meanwhile.
        copy: between host and device, exposed too.
        overhead: the rest.
    """

    compute: int = 0
    communication: int = 0
    copy: int = 0
    overhead: int = 0

    @property
    def whole(self) -> int:
        return self.compute + self.communication + self.copy + self.overhead


def host_shares(spans: Iterable[Span], in_flight: Iterable[StartEnd]) -> dict[Part, Shares]:
    """Shares of the thread that runs the step, by phase; nested phases (of a pipeline) apart from the outer one.

    At every moment the innermost span decides:
        an operator that computes (not one that makes views, allocates, or only calls others;
        generated code of compiled regions)                                  compute
        else anything within a collective's operator or its wait             communication
        else no operator, only ranges, while a message is in flight          communication
        else                                                                 overhead
    An operator that computes and calls others, as addmm does for its bias, computes in its own time. The time of one
    that calls another of its own name is overhead. Python between two operators counts as communication while a message
    is in flight: it looks like a wait.

    Args:
        spans: of one thread, nested, in any order.
        in_flight: when collectives of other threads were in flight, in any order.
    """
    shares = {part: Shares() for part in Part}
    messages = _union(in_flight)
    starts = [start for start, _ in messages]
    parts = {RANGE + part: part for part in Part}
    ordered = sorted(spans, key=lambda span: (span.start, -span.end))
    redispatched = _redispatched(ordered)
    stack: list[tuple[int, bool, bool, bool, Part | None]] = []  # end, computes, in a collective, idle, phase
    now = 0

    def advance(until: int) -> None:
        nonlocal now
        if stack and until > now:
            _, computes, collective, idle, part = stack[-1]
            if part is not None:
                share = shares[part]
                if computes:
                    share.compute += until - now
                elif collective:
                    share.communication += until - now
                else:
                    waited = _covered(messages, starts, now, until) if idle else 0
                    share.communication += waited
                    share.overhead += until - now - waited
        now = max(now, until)

    for number, span in enumerate(ordered):
        while stack and stack[-1][0] <= span.start:
            advance(stack[-1][0])
            stack.pop()
        advance(span.start)
        part = parts.get(span.name) if span.annotated else None
        collective = span.name.startswith(_COMMUNICATION)
        if stack:
            part = part or stack[-1][4]
            collective = collective or stack[-1][2]
            span = span._replace(end=min(span.end, stack[-1][0]))
        idle = span.annotated and (not stack or stack[-1][3] or span.name.startswith(("FSDP::", RANGE)))
        stack.append((span.end, computes(span) and number not in redispatched, collective, idle, part))
    while stack:
        advance(stack[-1][0])
        stack.pop()
    return shares


def computes(span: Span) -> bool:
    """Whether the span's own time is compute."""
    if _COMPILED in span.name:
        return True
    namespace, _, name = span.name.partition("::")
    return not span.annotated and namespace == "aten" and not only_dispatches(name)


def _redispatched(ordered: Sequence[Span]) -> set[int]:
    """Indices of the spans that have a direct child of the same name."""
    parents = set()
    stack: list[int] = []
    for number, span in enumerate(ordered):
        while stack and ordered[stack[-1]].end <= span.start:
            stack.pop()
        if stack and ordered[stack[-1]].name == span.name:
            parents.add(stack[-1])
        stack.append(number)
    return parents


def device_shares(phases: Iterable[tuple[Part, StartEnd]], spans: Iterable[DeviceSpan]) -> dict[Part, Shares]:
    """Shares of a device, by phase: compute, communication and copies that no compute hides. No overhead.

    A kernel belongs to the innermost phase in which the host launched it. NCCL's kernels are communication, copies
    between host and device are copies, all others are compute.

    Args:
        phases: when the host was in each.
    """
    ranges = sorted(phases, key=lambda phase: (phase[1][0], -phase[1][1]))
    kinds: dict[Part, tuple[list[StartEnd], list[StartEnd], list[StartEnd]]] = {part: ([], [], []) for part in Part}
    within: list[tuple[int, Part]] = []  # ends and names of the open phases, the innermost last
    begun = 0
    for span in sorted(spans, key=lambda span: span.launched):
        while begun < len(ranges) and ranges[begun][1][0] <= span.launched:
            part, (start, end) = ranges[begun]
            while within and within[-1][0] <= start:
                within.pop()
            within.append((end, part))
            begun += 1
        while within and within[-1][0] < span.launched:
            within.pop()
        if within:
            is_copy = span.name.startswith(("Memcpy HtoD", "Memcpy DtoH"))
            kind = 1 if span.name.startswith("nccl") else 2 if is_copy else 0
            kinds[within[-1][1]][kind].append((span.start, span.end))
    all_compute = _union(interval for compute, _, _ in kinds.values() for interval in compute)
    shares = {}
    for part, (compute, communication, copies) in kinds.items():
        messages = _union(communication)
        busy = sum(end - start for start, end in _union(compute))
        exposed = _uncovered(messages, all_compute)
        shares[part] = Shares(busy, exposed, _uncovered(_union(copies), _union([*all_compute, *messages])))
    return shares


def _union(intervals: Iterable[StartEnd]) -> list[StartEnd]:
    """The same moments as disjoint intervals in order."""
    joined: list[StartEnd] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _covered(intervals: Sequence[StartEnd], starts: Sequence[int], start: int, end: int) -> int:
    """How much of [start, end) disjoint intervals in order cover; `starts` are theirs."""
    covered = 0
    for index in range(max(0, bisect_right(starts, start) - 1), len(intervals)):
        if intervals[index][0] >= end:
            break
        covered += max(0, min(end, intervals[index][1]) - max(start, intervals[index][0]))
    return covered


def _uncovered(intervals: Iterable[StartEnd], others: Sequence[StartEnd]) -> int:
    """How much of disjoint intervals no other ones cover, which are disjoint and in order."""
    starts = [start for start, _ in others]
    return sum(end - start - _covered(others, starts, start, end) for start, end in intervals)


def term_seconds(
    step_seconds: Sequence[float],
    phase_seconds: Sequence[Mapping[Part, float]],
    shares: Mapping[Part, Shares],
    *,
    profiled_steps: int,
) -> dict[str, float]:
    """Seconds of every `StepTerm` of a rank; their sum is the median of `step_seconds`.

    A phase's seconds are its share of a step, mean over the steps, of that median: the medians of the phases do not add
    up to a step.

        data loading                 that phase
        host-device copy             that phase, and exposed copies of the others
        forward, backward            compute of the phase
        optimizer                    compute of the update: norm, clipping, Adam, casts
        exposed communication        of all phases, as below
        launch and host overhead     of all phases, as below
        bubble                       pipeline - forward - backward: a stage's waits, messages included, because the
                                     profiler does not show how long a message travels
        unexplained                  the median - all of these: between the phases

    A phase's compute is that of the profile. Profiling costs time: if the phase took longer under the profiler, its
    overhead is reduced by the difference, but not below 0. Then all parts are scaled to the phase's seconds, which were
    measured without a profiler.

    Args:
        step_seconds, phase_seconds: of each timed step.
        shares: over all profiled steps.
    """
    median = statistics.median(step_seconds)
    pairs = list(zip(step_seconds, phase_seconds, strict=True))
    seconds = {part: median * statistics.fmean(phases[part] / whole for whole, phases in pairs) for part in Part}
    terms = dict.fromkeys(StepTerm, 0.0)
    terms[StepTerm.DATA_LOADING] = seconds[Part.DATA_LOADING]
    terms[StepTerm.HOST_DEVICE_COPY] = seconds[Part.HOST_DEVICE_COPY]
    for part, term in _COMPUTES.items():
        compute, communication, copy, overhead = _scaled(shares[part], seconds[part], profiled_steps)
        terms[term] += compute
        terms[StepTerm.EXPOSED_COMMUNICATION] += communication
        terms[StepTerm.HOST_DEVICE_COPY] += copy
        terms[StepTerm.OVERHEAD] += overhead
    # without a pipeline its phase takes 0 s
    terms[StepTerm.BUBBLE] = max(0.0, seconds[Part.PIPELINE] - seconds[Part.FORWARD] - seconds[Part.BACKWARD])
    terms[StepTerm.UNEXPLAINED] = median - sum(terms.values())
    return {term.value: value for term, value in terms.items()}


def _scaled(share: Shares, seconds: float, steps: int) -> tuple[float, float, float, float]:
    """Compute, communication, copies and overhead, which together are `seconds`."""
    parts = (share.compute, share.communication, share.copy, share.overhead)
    compute, communication, copy, overhead = (nanoseconds / 1e9 / steps for nanoseconds in parts)
    profiling = max(0.0, compute + communication + copy + overhead - seconds)
    overhead = max(0.0, overhead - profiling)
    whole = compute + communication + copy + overhead
    if whole == 0:
        return 0.0, 0.0, 0.0, seconds
    scale = seconds / whole
    return compute * scale, communication * scale, copy * scale, overhead * scale
