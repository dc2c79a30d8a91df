"""The seconds of a stage's step, divided over its passes: what each computes, sends and hides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from reference_runs.placement import stage_chunks
from reference_runs.run import Workload
from suite.job.pipeline_passes import Pass, PassKind
from suite.metrics.figures import StepTerm
from suite.predict.analytic.collective_time import Group, axis_groups, collective_seconds
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.memory_bound_operators import BACKWARD
from suite.predict.analytic.narrow_traffic import gathers_share, reductions_share
from suite.predict.analytic.process_groups import Traffic, key_value_copies
from suite.predict.analytic.step_time import StageStep
from suite.predict.simulation.pipeline_schedule import Durations

# Messages by the axes of traffic, as the terms of a step name them
TERMS_OF_AXES = {
    "tp": "tensor parallel",
    "kv": "tensor parallel",
    "cp": "context parallel",
    "ep": "expert parallel",
    "pp": "pipeline",
    "dp": "data parallel",
    "edp": "data parallel",
    "shard": "data parallel",
    "replicate": "data parallel",
    "embedding": "tied embedding",
}
IN_LAYERS = ("tensor parallel", "context parallel", "expert parallel")


class PassPart(NamedTuple):
    """Seconds of a pass, or of what follows the passes.

    Args:
        term: of the step, as `predict` prints it.
        measured: the term of a measured step that it belongs to.
        operation: of a message; empty: it computes.
        axis: of a message, as traffic has it.
        hidden: whether computation covers it, so that it adds nothing to the step.
    """

    term: str
    seconds: float
    measured: StepTerm
    operation: str = ""
    axis: str = ""
    hidden: bool = False


class MessageSeconds(NamedTuple):
    """Seconds of a step's messages of one axis and operation, visible and hidden, and their bytes and number."""

    axis: str
    operation: str
    visible: float
    hidden: float
    payload_bytes: int
    messages: int


def term_name(field: str) -> str:
    """The name of a field of `StepTime` as `predict` prints it."""
    return field.removesuffix("_seconds").replace("_", " ")


def stage_messages(
    workload: Workload, machine: Machine, step: StageStep, traffic: Sequence[Traffic], *, stage: int
) -> list[MessageSeconds]:
    """Visible and hidden seconds of a stage's messages in a step, by axis and operation.

    The visible seconds of a term are those of `step`, each operation's in proportion to how long it takes. The rest of
    what it takes is hidden. What a stack copies around messages of data parallelism, and what hidden ones cost, counts
    as visible; a term that takes longer than its messages hides nothing.
    """
    spent = _spent(workload, machine, traffic, stage=stage)
    whole: dict[str, float] = {}
    for entry, seconds in zip(traffic, spent, strict=True):
        term = TERMS_OF_AXES[entry.axis]
        whole[term] = whole.get(term, 0.0) + seconds
    times = {term_name(field): seconds for field, seconds in step.time._asdict().items()}
    gathered_visibly = _gathered_after_update(workload, machine)
    found = []
    for entry, seconds in zip(traffic, spent, strict=True):
        term = TERMS_OF_AXES[entry.axis]
        share = seconds / whole[term] if whole[term] else 1 / sum(TERMS_OF_AXES[each.axis] == term for each in traffic)
        visible = times[term] * share
        if term == "data parallel" and gathered_visibly:
            visible = _apart(traffic, spent, entry, seconds, times[term])
        hidden = max(seconds - visible, 0.0)
        found.append(MessageSeconds(*entry[:2], visible, hidden, entry.payload_bytes, entry.messages))
    return found


def _gathered_after_update(workload: Workload, machine: Machine) -> bool:
    """Whether new weights are gathered where nothing hides it."""
    return workload.layout.zero_stage < 3 and not machine.stack.overlaps_gathers


def _apart(traffic: Sequence[Traffic], spent: Sequence[float], entry: Traffic, seconds: float, visible: float) -> float:
    """Visible seconds of one entry of data parallelism whose gathers are visible first, the reductions after them."""
    kinds: dict[bool, float] = {True: 0.0, False: 0.0}
    for each, taken in zip(traffic, spent, strict=True):
        if TERMS_OF_AXES[each.axis] == "data parallel":
            kinds[each.operation == "all_gather"] += taken
    gathers = min(kinds[True], visible)
    is_gather = entry.operation == "all_gather"
    of_kind = gathers if is_gather else visible - gathers
    if not kinds[False]:
        of_kind = visible
    return of_kind * seconds / kinds[is_gather] if kinds[is_gather] else 0.0


def _spent(workload: Workload, machine: Machine, traffic: Sequence[Traffic], *, stage: int) -> list[float]:
    """Seconds that each entry takes, hidden or not; as `step_time` counts them."""
    architecture, recipe, layout = workload
    copies = key_value_copies(architecture, tensor_parallel=layout.tensor_parallel)
    groups: Mapping[str, Group] = axis_groups(layout, machine, head_copies=copies, mixture=architecture)
    spent = []
    for axis, operation, payload, messages in traffic:
        seconds = collective_seconds(operation, groups[axis], payload_bytes=payload, messages=messages)
        if axis == "ep":
            seconds *= recipe.imbalance
        if TERMS_OF_AXES[axis] == "data parallel":
            narrowed = gathers_share if operation == "all_gather" else reductions_share
            seconds *= narrowed(workload, machine.stack, stage=stage, axis=axis)
        spent.append(seconds)
    return spent


class PassParts:
    """The parts of each pass of a stage.

    The seconds of a step are the same for each micro-batch; a chunk has the share of its stage's flop. Messages inside
    layers are divided over the forward pass, what is computed again and the backward pass as 1 : r : 1, launches as
    1 : r : 2, where the share r of the forward pass is computed again. The weights' half of a backward pass has the
    products of the weights' gradients and the adding up of gradients; the first chunk's has all of its backward pass.

    Args:
        messages: of `stage_messages`.
        flop: of `flop_durations`.
    """

    def __init__(
        self,
        workload: Workload,
        step: StageStep,
        messages: Sequence[MessageSeconds],
        flop: Durations,
        *,
        stage: int,
        micro_batches: int,
    ) -> None:
        self._step, self._messages, self._number = step, messages, micro_batches
        self._flop = flop
        layout = workload.layout
        chunks = stage_chunks(layout, stage=stage)
        whole = sum(self._flop.forward[chunk] for chunk in chunks)
        self._shares = {chunk: self._flop.forward[chunk] / whole if whole else 1 / len(chunks) for chunk in chunks}
        self._sends = {chunk: 1 / len(chunks) for chunk in chunks}
        self._known: dict[tuple[PassKind, int], list[PassPart]] = {}

    @property
    def chunks(self) -> tuple[int, ...]:
        """Chunks of the stage."""
        return tuple(self._shares)

    def of(self, done: Pass) -> list[PassPart]:
        """The parts of a pass in their order; of its messages those in layers, then what it sends to another stage."""
        key = done.kind, done.chunk
        if key not in self._known:
            self._known[key] = [part for part in self._parts(done) if part.seconds > 0]
        return self._known[key]

    def seconds(self, done: Pass) -> float:
        """How long a pass takes, with what it sends."""
        return sum(part.seconds for part in self.of(done) if not part.hidden)

    def _parts(self, done: Pass) -> Iterator[PassPart]:
        of_chunk = self._shares[done.chunk]
        if done.kind is PassKind.FORWARD:
            yield from self._forward(of_chunk)
            yield from self._sent(done.chunk)
            return
        weights = self._weight_share(done)
        if done.kind is PassKind.INPUT:
            yield from self._backward(of_chunk, first=done.chunk == 0, products=1 - weights, rest=1.0)
            if done.chunk:
                yield from self._sent(done.chunk)
        elif done.kind is PassKind.WEIGHT:
            rest = 1.0 if done.chunk == 0 else 0.0
            yield from self._backward(of_chunk, first=False, products=weights, rest=rest)
            yield from self._added(of_chunk)
            if done.chunk == 0:
                yield from self._sent(done.chunk)
        else:
            yield from self._backward(of_chunk, first=False, products=1.0, rest=1.0)
            yield from self._added(of_chunk)
            yield from self._sent(done.chunk)

    def _weight_share(self, done: Pass) -> float:
        if done.chunk == 0:
            return 1.0
        forward = self._flop.forward[done.chunk]
        return self._flop.weight[done.chunk] / (2 * forward) if forward else 0.5

    def _again(self) -> float:
        """The share r of the forward pass that is computed again."""
        computed = self._step.computation
        return computed.again / computed.forward if computed.forward else 0.0

    def _forward(self, share: float) -> Iterator[PassPart]:
        computed, again = self._step.computation, self._again()
        yield PassPart("forward", share * computed.forward, StepTerm.FORWARD)
        yield PassPart("operator", share * computed.operators, StepTerm.FORWARD)
        yield PassPart("cast", share * computed.casts, StepTerm.FORWARD)
        yield self._launched(share / (1 + again + BACKWARD))
        yield from self._in_layers(share / (2 + again))

    def _backward(self, share: float, *, first: bool, products: float, rest: float) -> Iterator[PassPart]:
        if first:
            return  # without an input there is no half of it
        computed, again, term = self._step.computation, self._again(), StepTerm.BACKWARD
        yield PassPart("recomputation", rest * share * computed.again, term)
        yield PassPart("operator", rest * share * computed.operators_again, term)
        yield PassPart("cast", rest * share * computed.casts_again, term)
        yield PassPart("backward", products * share * computed.backward, term)
        yield PassPart("operator", rest * share * computed.operators_backward, term)
        yield PassPart("cast", rest * share * computed.gradient_casts, term)
        yield self._launched(share * (rest * again + products * BACKWARD) / (1 + again + BACKWARD))
        yield from self._in_layers(rest * share * (1 + again) / (2 + again))

    def _launched(self, share: float) -> PassPart:
        return PassPart("launch", share * self._step.time.launch_seconds / self._number, StepTerm.OVERHEAD)

    def _added(self, share: float) -> Iterator[PassPart]:
        seconds = share * self._step.time.accumulation_seconds / self._number
        yield PassPart("accumulation", seconds, StepTerm.BACKWARD)

    def _in_layers(self, share: float) -> Iterator[PassPart]:
        yield from self._of_terms(IN_LAYERS, share / self._number, StepTerm.EXPOSED_COMMUNICATION)

    def _sent(self, chunk: int) -> Iterator[PassPart]:
        """Half of what a micro-batch sends: after its forward pass, or after its backward pass."""
        yield from self._of_terms(("pipeline",), self._sends[chunk] / 2 / self._number, StepTerm.BUBBLE)

    def _of_terms(self, terms: Sequence[str], share: float, measured: StepTerm) -> Iterator[PassPart]:
        for each in self._messages:
            term = TERMS_OF_AXES[each.axis]
            if term in terms:
                yield PassPart(term, share * each.visible, measured, each.operation, each.axis)
                yield PassPart(term, share * each.hidden, measured, each.operation, each.axis, hidden=True)


class StageDurations(NamedTuple):
    """How long the passes of every stage take, in seconds, for the simulation of a schedule."""

    stages: Mapping[int, PassParts]  # by chunk

    @property
    def chunks(self) -> int:
        """Number of chunks of the whole model."""
        return len(self.stages)

    def of(self, done: Pass) -> float:
        """How long a pass takes."""
        return self.stages[done.chunk].seconds(done)
