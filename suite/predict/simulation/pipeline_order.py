"""The order in which PyTorch's pipeline schedules run the passes of each rank, and how their times are given."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import NamedTuple, Protocol

from reference_runs.layout import Layout, Schedule
from reference_runs.placement import stage_chunks
from suite.job.pipeline_passes import Pass, PassKind
from suite.predict.analytic.pipeline_schedule import micro_batches_in_flight

Action = tuple[Pass, ...]  # passes one after the other, which send to other stages together, when the last one is done


class PassDurations(Protocol):
    """How long passes take."""

    @property
    def chunks(self) -> int:
        """Number of chunks of the whole model."""

    def of(self, done: Pass) -> float:
        """How long a pass takes."""


class TimedPass(NamedTuple):
    """A pass, and from when to when it runs."""

    done: Pass
    start: float
    end: float


def passes(layout: Layout, *, micro_batches: int, stage: int) -> list[Pass]:
    """Passes of a rank of pipeline stage `stage` in the order of its schedule: those of its `actions`."""
    return list(chain.from_iterable(actions(layout, micro_batches=micro_batches, stage=stage)))


def actions(layout: Layout, *, micro_batches: int, stage: int) -> list[Action]:
    """Actions of a rank of pipeline stage `stage`, one pass each but where two overlap.

    With p stages, v chunks a stage, m micro-batches, k this stage:
        gpipe              all forward, then all backward
        1f1b               min(m, p - k) forward; then backward and forward in turns; the other backward
        interleaved 1f1b   min(v m, (v - 1) r + 2 (p - 1 - k)) forward; then forward and backward in turns; the other
                           backward; chunks change after r micro-batches, r = m / max(1, m // p)
        zero-bubble        min(v m, (v - 1) r + p - 1 - k) forward; then forward and input half in turns, and from the
                           k-th turn on a weight half each; the other input and weight halves in turns; the other weight
                           halves
        zbv, dualpipev     see `_zbv`, `_dualpipev`
        without flush      in the steady state: a forward pass and a backward pass in turns, the first of a micro-batch
                           that is further by those in flight (`micro_batches_in_flight`) but one; counted from the
                           step's first backward pass

    Source: torch/distributed/pipelining/schedules.py, ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble.
    """
    if layout.schedule is Schedule.ZBV:
        return _zbv(layout, micro_batches=micro_batches, stage=stage)
    if layout.schedule is Schedule.DUALPIPEV:
        return _dualpipev(layout, micro_batches=micro_batches, stage=stage)
    if not layout.flushes:
        ahead = int(micro_batches_in_flight(layout, micro_batches=micro_batches, stage=stage)) - 1
        turn = Pass(PassKind.FORWARD, stage, ahead), Pass(PassKind.BACKWARD, stage, 0)
        return [(later(done, number),) for number in range(micro_batches) for done in turn]
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

    def numbered_pass(number: int, kind: PassKind) -> Action:
        local = number // each_round % virtual
        chunk = stage + stages * (local if kind is PassKind.FORWARD else virtual - 1 - local)
        seen[kind, chunk] += 1
        return (Pass(kind, chunk, seen[kind, chunk] - 1),)

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


def later(done: Pass, micro_batches: int) -> Pass:
    """The same pass of a micro-batch that comes so much later."""
    return done._replace(micro_batch=done.micro_batch + micro_batches)


class _Order:
    """Actions of a stage of two chunks, numbered 0 and 1 here, as they are appended.

    Every kind of pass of a chunk takes the micro-batches in order; a weight half takes the oldest that waits.
    """

    def __init__(self, chunks: tuple[int, ...]) -> None:
        self.actions: list[Action] = []
        self._chunks = chunks
        self._seen: Counter[tuple[bool, int]] = Counter()
        self._waiting: list[Pass] = []

    def _next(self, kind: PassKind, local: int) -> Pass:
        way = kind is PassKind.FORWARD, local
        self._seen[way] += 1
        done = Pass(kind, self._chunks[local], self._seen[way] - 1)
        if kind is PassKind.INPUT:
            self._waiting.append(done._replace(kind=PassKind.WEIGHT))
        return done

    def forward(self, local: int) -> None:
        self.actions.append((self._next(PassKind.FORWARD, local),))

    def input(self, local: int) -> None:
        self.actions.append((self._next(PassKind.INPUT, local),))

    def backward(self, local: int) -> None:
        self.actions.append((self._next(PassKind.BACKWARD, local),))

    def overlapped(self, forward: int, backward: int) -> None:
        self.actions.append((self._next(PassKind.FORWARD, forward), self._next(PassKind.BACKWARD, backward)))

    def weight(self, local: int | None = None) -> bool:
        """The oldest weight half that waits, of any chunk or of one; whether there was one."""
        for done in self._waiting:
            if local is None or done.chunk == self._chunks[local]:
                self._waiting.remove(done)
                self.actions.append((done,))
                return True
        return False


def _zbv(layout: Layout, *, micro_batches: int, stage: int) -> list[Action]:
    """ZB-V: with F, I and W of the first chunk (0) and the second (1), p stages, k this one, n = max(m, 2 p - 1):

        2 (p - k) - 1 times   F0
        k times               F1 F0
        p - k times           F1 I1 W1
        n - p times           F0 (while there are micro-batches) I0 W0 F1 I1 W1
        k times               I0 I1
        p - k times           I0 W0
        then                  the other W1, the other W0

    Micro-batches beyond m are left out.
    Source: Qi et al. 2023, arXiv 2401.10241, section 6; torch/distributed/pipelining/schedules.py,
    ScheduleZBVZeroBubble.
    """
    stages = layout.pipeline_stages
    whole = max(micro_batches, 2 * stages - 1)
    order = _Order(stage_chunks(layout, stage=stage))

    def both_halves(local: int) -> None:
        order.input(local)
        order.weight(local)

    for _ in range(2 * (stages - stage) - 1):
        order.forward(0)
    for _ in range(stage):
        order.forward(1)
        order.forward(0)
    for _ in range(stages - stage):
        order.forward(1)
        both_halves(1)
    for number in range(whole - stages):
        if 2 * stages - 1 - stage + number < whole:
            order.forward(0)
        both_halves(0)
        order.forward(1)
        both_halves(1)
    for _ in range(stage):
        order.input(0)
        order.input(1)
    for _ in range(stages - stage):
        both_halves(0)
    for local in (1, 0):
        while order.weight(local):
            pass
    return [action for action in order.actions if action[0].micro_batch < micro_batches]


def _dualpipev(layout: Layout, *, micro_batches: int, stage: int) -> list[Action]:
    """DualPipeV: with F, I and W of the first chunk (0) and the second (1), whole backward passes B, p stages, k this
    one, and [F B] for two that overlap:

        2 (p - k - 1) times     F0
        k + 1 times             F0 F1
        p - k - 1 times         I1 W F1
        m - 2 p + k + 1 times   [F0 B1] [F1 B0], of which the last stage's first two are apart
        p - k - 1 times         B1 [F1 B0]
        k + 1 times             B1 B0, of which the second half is I1 I0
        p - k - 1 times         W (where one waits) I0
        k + 1 times             W (where one waits)

    The halves begin with turn number (k + 1) // 2: of an odd k with its B1, of an even one with its B0. W is the oldest
    that waits, of either chunk. PyTorch runs the two passes of a pair one after the other.
    Source: torch/distributed/pipelining/schedules.py, ScheduleDualPipeV; DeepSeek-AI 2024, arXiv 2412.19437,
    section 3.2.1 (DualPipe), and its github.com/deepseek-ai/DualPipe, dualpipe/dualpipev.py.
    """
    stages = layout.pipeline_stages
    after = stages - stage - 1
    order = _Order(stage_chunks(layout, stage=stage))
    for _ in range(2 * after):
        order.forward(0)
    for _ in range(stage + 1):
        order.forward(0)
        order.forward(1)
    for _ in range(after):
        order.input(1)
        order.weight()
        order.forward(1)
    for number in range(micro_batches - 2 * stages + stage + 1):
        if number == 0 and after == 0:
            order.forward(0)
            order.backward(1)
        else:
            order.overlapped(0, 1)
        order.overlapped(1, 0)
    for _ in range(after):
        order.backward(1)
        order.overlapped(1, 0)
    half = (stage + 1) // 2
    for number in range(stage + 1):
        (order.input if number > half or (number == half and stage % 2 == 1) else order.backward)(1)
        (order.input if number >= half else order.backward)(0)
    for _ in range(after):
        order.weight()
        order.input(0)
    for _ in range(stage + 1):
        order.weight()
    return order.actions
