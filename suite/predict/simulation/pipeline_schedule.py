"""The order in which PyTorch's pipeline schedules run the passes of each rank, and how long ranks wait in it."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple, Protocol

from reference_runs.layout import Layout, Schedule
from reference_runs.placement import chunk_layers
from reference_runs.run import Workload
from suite.job.pipeline_passes import Pass, PassKind
from suite.predict.analytic.flop import head_forward_flop, layer_forward_flop, repeated_flop
from suite.predict.analytic.pipeline_schedule import micro_batches_in_flight
from suite.predict.analytic.stage_layers import chunk_layer_kinds

STEPS_TO_STEADY = 4  # for each stage: until the slowest one decides when every other passes


class Durations(NamedTuple):
    """How long a micro-batch takes through each chunk, in any unit; `weight` is that half of `backward`."""

    forward: list[float]
    backward: list[float]
    weight: list[float]

    @property
    def chunks(self) -> int:
        """Of the whole model."""
        return len(self.forward)

    def of(self, done: Pass) -> float:
        """How long a pass takes. The first chunk has no input to find gradients of: its weights' half is all.

        Source: torch/distributed/pipelining/stage.py, backward_one_chunk, backward_weight_one_chunk.
        """
        chunk = done.chunk
        if done.kind is PassKind.FORWARD:
            return self.forward[chunk]
        whole, weight = self.backward[chunk], self.weight[chunk] if chunk else self.backward[chunk]
        return {PassKind.BACKWARD: whole, PassKind.INPUT: whole - weight, PassKind.WEIGHT: weight}[done.kind]


def passes(layout: Layout, *, micro_batches: int, stage: int) -> list[Pass]:
    """Passes of a rank of pipeline stage `stage` in the order of its schedule.

    With p stages, v chunks a stage, m micro-batches, k this stage:
        gpipe              all forward, then all backward
        1f1b               min(m, p - k) forward; then backward and forward in turns; the other backward
        interleaved 1f1b   min(v m, (v - 1) r + 2 (p - 1 - k)) forward; then forward and backward in turns; the other
                           backward; chunks change after r micro-batches, r = m / max(1, m // p)
        zero-bubble        min(v m, (v - 1) r + p - 1 - k) forward; then forward and input half in turns, and from the
                           k-th turn on a weight half each; the other input and weight halves in turns; the other weight
                           halves
        without flush      in the steady state: a forward pass and a backward pass in turns, the first of a micro-batch
                           that is further by those in flight (`micro_batches_in_flight`) but one; counted from the
                           step's first backward pass

    Source: torch/distributed/pipelining/schedules.py, ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble.
    """
    if not layout.flushes:
        ahead = int(micro_batches_in_flight(layout, micro_batches=micro_batches, stage=stage)) - 1
        turn = Pass(PassKind.FORWARD, stage, ahead), Pass(PassKind.BACKWARD, stage, 0)
        return [_later(done, number) for number in range(micro_batches) for done in turn]
    stages, virtual = layout.pipeline_stages, layout.virtual_stages
    total = micro_batches * virtual
    each_round = micro_batches // max(1, micro_batches // stages)
    halves = layout.schedule is Schedule.ZERO_BUBBLE
    if halves:
        ahead = (virtual - 1) * each_round + stages - 1 - stage
    elif virtual > 1:
        ahead = min(total, (virtual - 1) * each_round + 2 * (stages - 1 - stage)) + 1
    else:
        ahead = micro_batches if layout.schedule is Schedule.GPIPE else stages - stage
    ahead = min(total, ahead)
    seen: Counter[tuple[PassKind, int]] = Counter()

    def numbered_pass(number: int, kind: PassKind) -> Pass:
        local = number // each_round % virtual
        chunk = stage + stages * (local if kind is PassKind.FORWARD else virtual - 1 - local)
        seen[kind, chunk] += 1
        return Pass(kind, chunk, seen[kind, chunk] - 1)

    order = [numbered_pass(number, PassKind.FORWARD) for number in range(ahead)]
    if halves:
        for number in range(total + stage):
            if ahead + number < total:
                order.append(numbered_pass(ahead + number, PassKind.FORWARD))
            if number < total:
                order.append(numbered_pass(number, PassKind.INPUT))
            if number >= stage:
                order.append(numbered_pass(number - stage, PassKind.WEIGHT))
        return order
    for number in range(total):
        order.append(numbered_pass(number, PassKind.BACKWARD))
        if ahead + number < total:
            order.append(numbered_pass(ahead + number, PassKind.FORWARD))
    return order


def flop_durations(workload: Workload) -> Durations:
    """Flop of one sample through each chunk: layers, head, and in the backward pass twice that and recomputation.

    Half of the backward pass's products with weights are of the weights; attention's own products have none.
    """
    architecture = workload.architecture
    chunks = chunk_layers(architecture.layers, workload.layout)
    forward: list[float] = []
    weight: list[float] = []
    for layers in chunks:
        kinds = chunk_layer_kinds(architecture, layers)
        parts = [(number, layer_forward_flop(kind, samples=1)) for kind, number in kinds]
        forward.append(sum(number * sum(flop.values()) for number, flop in parts))
        without = sum(number * (flop["attention scores"] + flop["attention context"]) for number, flop in parts)
        weight.append(forward[-1] - without)
    head = head_forward_flop(architecture, samples=1)
    forward[-1], weight[-1] = forward[-1] + head, weight[-1] + head
    again = [repeated_flop(workload, samples=1, layers=layers) for layers in chunks]
    return Durations(forward, [2 * once + repeated for once, repeated in zip(forward, again, strict=True)], weight)


def idle_fraction(layout: Layout, durations: Durations, *, micro_batches: int) -> float:
    """Share of the pipeline's time, from its first pass to its last, in which a stage computes nothing; mean of stages.

    Equal chunks wait for `bubble_fraction`, where the stages divide the micro-batches of an interleaved schedule.

    Without flush: in the steady state, in which every stage takes as long as the slowest one for a micro-batch.

    Raises:
        ValueError: passes that wait for each other.
    """
    if not layout.flushes:
        seconds = [sum(both) for both in zip(durations.forward, durations.backward, strict=True)]
        return 1 - sum(seconds) / (len(seconds) * max(seconds))
    stages = timed_passes(layout, durations, micro_batches=micro_batches)
    busy = micro_batches * (sum(durations.forward) + sum(durations.backward))
    return 1 - busy / (len(stages) * max(done[-1].end for done in stages))


class PassDurations(Protocol):
    """How long passes take."""

    @property
    def chunks(self) -> int:
        """Of the whole model."""

    def of(self, done: Pass) -> float:
        """How long a pass takes."""


class TimedPass(NamedTuple):
    """A pass, and from when to when it runs."""

    done: Pass
    start: float
    end: float


def timed_passes(layout: Layout, durations: PassDurations, *, micro_batches: int) -> list[list[TimedPass]]:
    """The passes of a step of each stage, in their order, from the first one's start on.

    Each pass begins when its stage is free and its input is there: the output of the chunk before (forward), the
    gradient of the one after it (backward). Messages take no time. Without flush: a step in the steady state, the same
    one of every stage.

    Raises:
        ValueError: passes that wait for each other.
    """
    stages = range(layout.pipeline_stages)
    orders = [passes(layout, micro_batches=micro_batches, stage=stage) for stage in stages]
    if layout.flushes:
        return _timed(orders, durations)
    steps = STEPS_TO_STEADY * len(stages)
    first = (steps - 1) * micro_batches
    timed = []
    for done in _timed([_from_the_start(order, steps=steps) for order in orders], durations):
        own = done[-2 * micro_batches :]
        timed.append([each._replace(done=_later(each.done, -first)) for each in own])
    start = min(done[0].start for done in timed)
    return [[each._replace(start=each.start - start, end=each.end - start) for each in done] for done in timed]


def _later(done: Pass, micro_batches: int) -> Pass:
    return done._replace(micro_batch=done.micro_batch + micro_batches)


def _from_the_start(step: list[Pass], *, steps: int) -> list[Pass]:
    """All passes of a stage without flush, of which `step` is one in the steady state."""
    forward, ahead, micro_batches = step[0], step[0].micro_batch, len(step) // 2
    order = [forward._replace(micro_batch=number) for number in range(ahead)]
    for number in range(steps):
        order += [_later(done, number * micro_batches) for done in step]
    return order


def _timed(orders: list[list[Pass]], durations: PassDurations) -> list[list[TimedPass]]:
    ended: dict[Pass, float] = {}
    timed: list[list[TimedPass]] = [[] for _ in orders]
    last = durations.chunks - 1
    before = -1
    while before < len(ended):
        before = len(ended)
        for order, done in zip(orders, timed, strict=True):
            while len(done) < len(order):
                this_pass = order[len(done)]
                source = _input(this_pass, last)
                if source is not None and source not in ended:
                    break
                start = max(done[-1].end if done else 0.0, ended[source] if source else 0.0)
                ended[this_pass] = start + durations.of(this_pass)
                done.append(TimedPass(this_pass, start, ended[this_pass]))
    if len(ended) < sum(map(len, orders)):
        raise ValueError("passes of the schedule wait for each other")
    return timed


def _input(of: Pass, last: int) -> Pass | None:
    """The pass on another chunk, or before on this one, whose result a pass needs."""
    if of.kind is PassKind.WEIGHT:
        return of._replace(kind=PassKind.INPUT)
    if of.kind is PassKind.FORWARD:
        return of._replace(chunk=of.chunk - 1) if of.chunk else None
    return of._replace(chunk=of.chunk + 1) if of.chunk < last else of._replace(kind=PassKind.FORWARD)
