"""When each pass of a pipeline's schedule runs, and how long ranks wait in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from reference_runs.layout import Layout
from reference_runs.placement import chunk_layers, stage_chunks
from reference_runs.run import Workload
from suite.job.pipeline_passes import Pass, PassKind
from suite.predict.analytic.flop import head_forward_flop, layer_forward_flop, repeated_flop
from suite.predict.analytic.stage_layers import chunk_layer_kinds
from suite.predict.simulation.pipeline_order import Action, PassDurations, TimedPass, actions, later
from suite.predict.simulation.replicated_schedule import replica_steps

STEPS_TO_STEADY = 4  # for each stage: until the slowest one decides when every other passes


class Durations(NamedTuple):
    """How long a micro-batch takes through each chunk, in any unit; `weight` is that half of `backward`."""

    forward: list[float]
    backward: list[float]
    weight: list[float]

    @property
    def chunks(self) -> int:
        """Number of chunks of the whole model."""
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

    Without flush: in the steady state, in which every stage takes as long as the slowest one for a micro-batch. Where
    stages differ in replicas, as these are simulated; `micro_batches` are then those of all replicas.

    Raises:
        ValueError: passes that wait for each other.
    """
    if layout.stage_replicas is not None:
        return replica_steps(layout, durations, micro_batches=micro_batches).idle
    if not layout.flushes:
        seconds = [sum(both) for both in zip(durations.forward, durations.backward, strict=True)]
        return 1 - sum(seconds) / (len(seconds) * max(seconds))
    stages = timed_passes(layout, durations, micro_batches=micro_batches)
    busy = micro_batches * (sum(durations.forward) + sum(durations.backward))
    return 1 - busy / (len(stages) * max(done[-1].end for done in stages))


def timed_passes(layout: Layout, durations: PassDurations, *, micro_batches: int) -> list[list[TimedPass]]:
    """The passes of a step of each stage, in their order, from the first one's start on.

    Each pass begins when its stage is free and its input is there: the output of the chunk before (forward), the
    gradient of the one after it (backward). Messages take no time; those of two passes that overlap leave after both.
    Without flush: a step in the steady state, the same one of every stage, and nothing between two steps. Where stages
    differ in replicas: of each rank, see `replica_steps`.

    Raises:
        ValueError: passes that wait for each other.
    """
    if layout.stage_replicas is not None:
        return replica_steps(layout, durations, micro_batches=micro_batches).passes
    if layout.flushes:
        return _timed(layout, _step(layout, micro_batches), durations)
    steps = _many_steps(layout, durations, micro_batches, [0.0] * layout.pipeline_stages)
    first = (STEPS_TO_STEADY * layout.pipeline_stages - 1) * micro_batches
    timed = [[each._replace(done=later(each.done, -first)) for each in done[-2 * micro_batches :]] for done in steps]
    start = min(done[0].start for done in timed)
    return [[each._replace(start=each.start - start, end=each.end - start) for each in done] for done in timed]


def steady_idle_fraction(
    layout: Layout, durations: PassDurations, *, micro_batches: int, between: Sequence[float]
) -> float:
    """Share of the time of its passes and waits in which a stage waits, without flush; mean of stages.

    As many steps as there are stages are averaged: those in flight together may wait in turns.

    Args:
        between: how long each stage does something else between two steps: its update.

    Raises:
        ValueError: passes that wait for each other.
    """
    if layout.stage_replicas is not None:
        return replica_steps(layout, durations, micro_batches=micro_batches, between=between).idle
    averaged = layout.pipeline_stages
    busy = whole = 0.0
    for done, seconds in zip(_many_steps(layout, durations, micro_batches, between), between, strict=True):
        last = done[-2 * micro_batches * averaged :]
        busy += sum(each.end - each.start for each in last)
        whole += done[-1].end - done[-1 - len(last)].end - averaged * seconds
    return 1 - busy / whole


def _many_steps(
    layout: Layout, durations: PassDurations, micro_batches: int, between: Sequence[float]
) -> list[list[TimedPass]]:
    """All passes of each stage without flush, until the last step is one in the steady state."""
    step = _step(layout, micro_batches)
    orders = [_from_the_start(order, steps=STEPS_TO_STEADY * len(step)) for order in step]
    ahead = [forward.micro_batch for ((forward,), *_) in step]

    def pause(stage: int, done: int) -> float:
        of_steps = done - ahead[stage]
        return between[stage] if of_steps > 0 and of_steps % (2 * micro_batches) == 0 else 0.0

    return _timed(layout, orders, durations, pause)


def _nothing(_stage: int, _done: int) -> float:
    return 0.0


def _step(layout: Layout, micro_batches: int) -> list[list[Action]]:
    """Passes of each stage in a step."""
    return [actions(layout, micro_batches=micro_batches, stage=stage) for stage in range(layout.pipeline_stages)]


def _from_the_start(step: list[Action], *, steps: int) -> list[Action]:
    """All passes of a stage without flush, of which `step` is one in the steady state."""
    ((forward,), *_), micro_batches = step, len(step) // 2
    order: list[Action] = [(forward._replace(micro_batch=number),) for number in range(forward.micro_batch)]
    for number in range(steps):
        order += [(later(done, number * micro_batches),) for (done,) in step]
    return order


def _timed(
    layout: Layout, orders: list[list[Action]], durations: PassDurations, pause: Callable[[int, int], float] = _nothing
) -> list[list[TimedPass]]:
    """All `orders`, one of each stage; `pause`: how long it does something else after so many passes."""
    stages = range(layout.pipeline_stages)
    stage_of = {chunk: stage for stage in stages for chunk in stage_chunks(layout, stage=stage)}
    left = [deque(order) for order in orders]
    timed: list[list[TimedPass]] = [[] for _ in orders]
    ended: dict[Pass, float] = {}  # by the pass as `_result` has it, as other passes of its stage see it
    sent: dict[Pass, float] = {}  # as other stages do
    last = durations.chunks - 1

    def there(source: Pass | None, stage: int) -> float | None:
        if source is None:
            return 0.0
        return (ended if stage_of[source.chunk] == stage else sent).get(source)

    before = -1
    while before < len(ended):
        before = len(ended)
        for stage, (order, done) in enumerate(zip(left, timed, strict=True)):
            while order:
                inputs = [there(_input(this, last), stage) for this in order[0]]
                if None in inputs:
                    break
                for this, at in zip(order[0], inputs, strict=True):
                    start = max(done[-1].end + pause(stage, len(done)) if done else 0.0, at or 0.0)
                    ended[_result(this)] = start + durations.of(this)
                    done.append(TimedPass(this, start, ended[_result(this)]))
                sent |= {_result(this): done[-1].end for this in order.popleft()}
    if any(left):
        raise ValueError("passes of the schedule wait for each other")
    return timed


def _result(of: Pass) -> Pass:
    """A pass by what others wait for: the gradient of a chunk's input comes from its half, or from both in one."""
    return of._replace(kind=PassKind.INPUT) if of.kind is PassKind.BACKWARD else of


def _input(of: Pass, last: int) -> Pass | None:
    """The pass on another chunk, or before on this one, whose `_result` a pass needs."""
    if of.kind is PassKind.WEIGHT:
        return of._replace(kind=PassKind.INPUT)
    if of.kind is PassKind.FORWARD:
        return of._replace(chunk=of.chunk - 1) if of.chunk else None
    if of.chunk == last:
        return of._replace(kind=PassKind.FORWARD)
    return of._replace(kind=PassKind.INPUT, chunk=of.chunk + 1)
