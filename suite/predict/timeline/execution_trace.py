"""A predicted step as an execution trace of Chakra: nodes that compute, exchange and send, and what each waits for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from reference_runs.catalog import accumulation
from reference_runs.layout import Layout
from reference_runs.placement import coordinates, stage_chunks
from reference_runs.run import Workload
from suite.job.pipeline_passes import Pass, PassKind
from suite.predict.analytic.process_groups import key_value_copies
from suite.predict.timeline.rank_groups import group_of, rank_at
from suite.predict.timeline.rank_timeline import SLOWEST_WAIT, RankTimeline, StepSpan

MOST_RANKS = 512  # that each have a file


class TraceNodeKind(IntEnum):
    """NodeType of et_def.proto."""

    COMPUTE = 4
    SEND = 5
    RECEIVE = 6
    COLLECTIVE = 7


COLLECTIVES = {"all_reduce": 0, "all_gather": 2, "all_to_all": 6, "reduce_scatter": 7}  # CollectiveCommType there


class TraceNode(NamedTuple):
    """A node of a rank's trace.

    Args:
        waits_for: numbers of nodes before it.
        seconds: predicted; of a message what the formula says, which a simulator of networks replaces.
        operation: of a collective.
        group: its ranks.
        payload_bytes: of a message.
        peer: the other rank of a send or receive.
        tag: the same of a send and its receive, and of no other pair of the two ranks.
    """

    number: int
    name: str
    kind: TraceNodeKind
    waits_for: tuple[int, ...]
    seconds: float
    operation: str = ""
    group: tuple[int, ...] = ()
    payload_bytes: int = 0
    peer: int = 0
    tag: int = 0


def execution_trace(
    layout: Layout, timeline: RankTimeline, *, rank: int, head_copies: int, micro_batches: int
) -> list[TraceNode]:
    """The nodes of `rank`, which is of the timeline's stage, in an order in which each comes after what it waits for.

    What computes, and visible messages, wait for each other in the timeline's order. A hidden message waits for what
    comes before its pass, and the update waits for it. A pass waits for what another stage sends it. Waits have
    no node: they follow.

    Args:
        head_copies: see `key_value_copies`.
    """
    return _Nodes(layout, timeline, rank, head_copies, micro_batches).nodes


def execution_traces(workload: Workload, timelines: Sequence[RankTimeline]) -> dict[int, list[TraceNode]]:
    """The trace of each rank, or of more than `MOST_RANKS` of the first rank of each stage."""
    architecture, recipe, layout = workload
    copies = key_value_copies(architecture, tensor_parallel=layout.tensor_parallel)
    micro_batches = accumulation(recipe, layout)
    by_stage = {timeline.stage: timeline for timeline in timelines}
    ranks = range(layout.ranks) if layout.ranks <= MOST_RANKS else [timeline.rank for timeline in timelines]
    return {
        rank: execution_trace(
            layout,
            by_stage[coordinates(layout, rank)["pp"]],
            rank=rank,
            head_copies=copies,
            micro_batches=micro_batches,
        )
        for rank in ranks
    }


class _Nodes:
    def __init__(self, layout: Layout, timeline: RankTimeline, rank: int, head_copies: int, micro_batches: int) -> None:
        self.nodes: list[TraceNode] = []
        self._layout, self._rank, self._head_copies = layout, rank, head_copies
        self._micro_batches = micro_batches
        self._before: tuple[int, ...] = ()  # the node that the next one waits for
        self._hidden: list[int] = []  # nodes that the update waits for
        self._groups: dict[str, tuple[int, ...]] = {}
        self._bytes = _PayloadBytes(timeline)
        stages = range(layout.pipeline_stages)
        self._stage_of = {chunk: stage for stage in stages for chunk in stage_chunks(layout, stage=stage)}
        self._next_tag = 2 * len(self._stage_of) * micro_batches  # after those between stages
        sends = next((entry for entry in timeline.traffic if entry.axis == "pp"), None)
        self._sent_bytes = sends.payload_bytes // sends.messages if sends and sends.messages else 0
        self._add_step(timeline)

    def _add_step(self, timeline: RankTimeline) -> None:
        by_pass: dict[Pass | None, list[StepSpan]] = defaultdict(list)
        for span in sorted(timeline.spans, key=lambda span: span.start):
            by_pass[span.done].append(span)
        apart = by_pass.pop(None, [])
        begin = timeline.passes[0].start
        for span in apart:
            if span.end <= begin and not span.hidden and span.term != "bubble":
                self._add_span(span)
        beside = sorted((span for span in apart if span.hidden), key=lambda span: span.start)
        for done, start, _ in timeline.passes:
            while beside and beside[0].start <= start:
                self._add_span(beside.pop(0))
            self._add_pass(done, by_pass[done])
        for span in beside:
            self._add_span(span)
        for span in apart:
            if span.start >= begin and not span.hidden and span.term not in ("bubble", SLOWEST_WAIT):
                if span.term == "optimizer":
                    self._before, self._hidden = (*self._before, *self._hidden), []
                self._add_span(span)

    def _add_pass(self, done: Pass, spans: Sequence[StepSpan]) -> None:
        """Add what a pass receives, computes and exchanges, and what it sends."""
        receives, sends = self._neighbours(done)
        if receives is not None:
            self._add_transfer(TraceNodeKind.RECEIVE, receives, done, 0.0)
        begin = self._before
        seconds = 0.0
        for span in spans:
            if span.term == "pipeline":
                seconds += span.seconds
            elif span.hidden:
                self._add_span(span, after=begin)
            else:
                self._add_span(span)
        if sends is not None:
            self._add_transfer(TraceNodeKind.SEND, sends, done, seconds)

    def _neighbours(self, done: Pass) -> tuple[int | None, int | None]:
        """The chunks from which a pass receives, and to which it sends; None: none, or one of this rank."""
        if done.kind is PassKind.WEIGHT:
            return None, None
        towards = 1 if done.kind is PassKind.FORWARD else -1
        return self._other(done.chunk, done.chunk - towards), self._other(done.chunk, done.chunk + towards)

    def _other(self, own: int, chunk: int) -> int | None:
        stage = self._stage_of.get(chunk)
        return None if stage is None or stage == self._stage_of[own] else chunk

    def _add_transfer(self, kind: TraceNodeKind, chunk: int, done: Pass, seconds: float) -> None:
        places = coordinates(self._layout, self._rank) | {"pp": self._stage_of[chunk]}
        backward = done.kind is not PassKind.FORWARD
        sender = done.chunk if kind is TraceNodeKind.SEND else chunk  # both ends name the same
        what = f"{'gradient' if backward else 'activation'}, micro-batch {done.micro_batch}, from chunk {sender}"
        self._add(
            f"{kind.name.lower()} {what}",
            kind,
            self._before,
            seconds,
            payload_bytes=self._sent_bytes,
            peer=rank_at(self._layout, places),
            tag=2 * (sender * self._micro_batches + done.micro_batch) + backward,
        )
        self._before = (len(self.nodes) - 1,)

    def _add_span(self, span: StepSpan, *, after: tuple[int, ...] | None = None) -> None:
        """A node for a span; a hidden one holds up the update alone."""
        waits_for, first = self._before if after is None else after, len(self.nodes)
        if not span.operation:
            self._add(span.term, TraceNodeKind.COMPUTE, waits_for, span.seconds)
        elif span.operation == "send":
            self._add_ring_step(span, waits_for)
        else:
            name, carried, group = f"{span.operation} ({span.axis})", self._bytes.of(span), self._group(span.axis)
            of_message = {"operation": span.operation, "group": group, "payload_bytes": carried}
            self._add(name, TraceNodeKind.COLLECTIVE, waits_for, span.seconds, **of_message)
        added = tuple(range(first, len(self.nodes)))
        if span.hidden:
            self._hidden += added
        else:
            self._before = added

    def _add_ring_step(self, span: StepSpan, waits_for: tuple[int, ...]) -> None:
        """A message to the next rank of a ring, and one from the rank before."""
        ring = self._group(span.axis)
        place, carried = ring.index(self._rank), self._bytes.of(span)
        tag = self._next_tag
        self._next_tag += 1
        peers = (
            (TraceNodeKind.SEND, ring[(place + 1) % len(ring)], span.seconds),
            (TraceNodeKind.RECEIVE, ring[place - 1], 0.0),
        )
        for kind, peer, seconds in peers:
            name = f"{kind.name.lower()} ({span.axis})"
            self._add(name, kind, waits_for, seconds, payload_bytes=carried, peer=peer, tag=tag)

    def _group(self, axis: str) -> tuple[int, ...]:
        if axis not in self._groups:
            self._groups[axis] = group_of(self._layout, self._rank, axis, head_copies=self._head_copies)
        return self._groups[axis]

    def _add(
        self, name: str, kind: TraceNodeKind, waits_for: tuple[int, ...], seconds: float, **of_message: Any
    ) -> None:
        self.nodes.append(TraceNode(len(self.nodes), name, kind, waits_for, seconds, **of_message))


class _PayloadBytes:
    """Bytes of each message: its share, by seconds, of what its axis and operation carry in a step, in whole bytes."""

    def __init__(self, timeline: RankTimeline) -> None:
        self._payload: Counter[tuple[str, str]] = Counter()
        for entry in timeline.traffic:
            self._payload[entry.axis, entry.operation] += entry.payload_bytes
        self._seconds: dict[tuple[str, str], float] = defaultdict(float)
        for span in timeline.spans:
            self._seconds[span.axis, span.operation] += span.seconds
        self._done: dict[tuple[str, str], float] = defaultdict(float)
        self._given: Counter[tuple[str, str]] = Counter()

    def of(self, span: StepSpan) -> int:
        """Bytes of the next message of its axis and operation."""
        key = span.axis, span.operation
        self._done[key] += span.seconds
        until = round(self._payload[key] * min(self._done[key] / self._seconds[key], 1.0))
        given = until - self._given[key]
        self._given[key] = until
        return given


def process_groups(traces: Mapping[int, Sequence[TraceNode]]) -> dict[tuple[int, ...], int]:
    """A number from 1 on for each group of ranks in the traces."""
    found: dict[tuple[int, ...], int] = {}
    for nodes in traces.values():
        for node in nodes:
            if node.group and node.group not in found:
                found[node.group] = len(found) + 1
    return found
