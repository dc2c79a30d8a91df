"""The predicted allocations of a rank over one step, in order: what is made and freed, by category and kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import NamedTuple

from reference_runs.layout import Recomputation, Schedule
from reference_runs.run import Workload
from reference_runs.stack import Keeping
from suite.job.pipeline_passes import Pass, PassKind
from suite.predict.analytic.activations import (
    checkpoint_bytes,
    embedding_activation_bytes,
    head_activation_bytes,
    kept_by_operator,
    kept_units,
)
from suite.predict.analytic.megatron_layers import by_kind, kept_by_layer
from suite.predict.analytic.nanotron_memory import NanotronMemory
from suite.predict.analytic.stage_layers import stage_layer_kinds
from suite.predict.analytic.stage_memory import StageMemory
from suite.predict.recorded_run.described_memory import RankMemory
from suite.predict.simulation.memory_blocks import StepPhase
from suite.predict.simulation.pipeline_order import passes
from suite.predict.simulation.walked_memory import WalkedMemory

# Categories, as `fullest_instant` names them
ACTIVATIONS, LATER = "activations", "activations of later micro-batches"
LOGITS, WORKING, GRADIENTS = "logits", "a layer's backward pass", "gradients"
BUFFERS, UNFINISHED, TEMPORARY = "communication buffers and gathered weights", "layers still to do", "temporary"


class BlockEvent(NamedTuple):
    """A block of memory that is made or freed.

    Args:
        block: number of the block; the same one is freed under it.
        bytes: its size.
        category: as `predict` names the parts of the fullest instant.
        kind: of an activation; else the category again.
        when: the pass or phase in which it is made.
    """

    block: int
    bytes: int
    category: str
    kind: str
    when: str
    is_freed: bool = False


def allocations(
    workload: Workload, memory: RankMemory, keeping: Keeping, *, stage: int, micro_batches: int
) -> Iterator[BlockEvent]:
    """The allocations of a rank of pipeline stage `stage` whose memory is `memory`.

    Of a formula's memory the activations of each pass in the schedule's order, by kind; their sizes are such that the
    most that live together are the predicted ones, and the three instants of `StageMemory` are passed with exactly its
    parts. Of a memory that is walked through, and of nanotron's, its three instants alone.

    Args:
        keeping: of `described_keeping`.
    """
    if isinstance(memory, StageMemory):
        return _FormulaStep(workload, memory, keeping, stage, micro_batches).allocations()
    return _between_instants(_instants(memory))


class _LiveBlocks:
    """Blocks that live now, by what they are of."""

    def __init__(self) -> None:
        self._numbers = count()
        self._alive: dict[object, list[BlockEvent]] = {}

    def make(self, owner: object, size: float, category: str, when: str, kind: str = "") -> Iterator[BlockEvent]:
        """Make a block, unless it has no bytes."""
        if round(size) > 0:
            made = BlockEvent(next(self._numbers), round(size), category, kind or category, when)
            self._alive.setdefault(owner, []).append(made)
            yield made

    def free(self, owner: object) -> Iterator[BlockEvent]:
        """Free all blocks of an owner, the last one first."""
        for block in reversed(self._alive.pop(owner, [])):
            yield block._replace(is_freed=True)


def kept_kinds(workload: Workload, keeping: Keeping, *, stage: int) -> dict[str, float]:
    """Bytes that one micro-batch keeps on a stage by kind, without head and logits: units as recomputation leaves them.

    See `micro_batch_bytes` and `kept_units`.
    """
    architecture, recipe, layout = workload
    kinds: dict[str, float] = {}
    for kind, layers in stage_layer_kinds(architecture, layout, stage=stage):
        of_kind = Workload(kind, recipe, layout)
        if layout.recomputation in (Recomputation.NONE, Recomputation.SELECTIVE):
            unit = by_kind(each for each in kept_by_layer(of_kind, keeping) if not each.leaves(layout))
        elif layout.recomputation is Recomputation.SELECTIVE_OP:
            unit = kept_by_operator(of_kind, keeping)
        else:
            unit = {"layer input": checkpoint_bytes(of_kind)}
        for name, size in unit.items():
            kinds[name] = kinds.get(name, 0) + kept_units(layout, layers=layers) * size
    if stage == 0:
        kinds |= embedding_activation_bytes(workload)
    return {name: size for name, size in kinds.items() if size}


class _FormulaStep:
    """A step of a rank whose memory a formula describes."""

    def __init__(
        self, workload: Workload, memory: StageMemory, keeping: Keeping, stage: int, micro_batches: int
    ) -> None:
        layout = workload.layout
        self._memory, self._micro_batches = memory, micro_batches
        self._order = passes(layout, micro_batches=micro_batches, stage=stage)
        self._gpipe = layout.schedule is Schedule.GPIPE
        self._steady = not layout.flushes
        head = head_activation_bytes(workload, keeping)
        self._head = {name: size for name, size in head.items() if name != "logits"} if memory.logits else {}
        kinds = kept_kinds(workload, keeping, stage=stage)
        whole = memory.activations - self._heads * sum(self._head.values())
        most = self._most_in_flight()
        of_kinds = sum(kinds.values())
        self._kinds = {name: size / of_kinds * whole / most for name, size in kinds.items()} if of_kinds else {}
        self._made = dict.fromkeys(self._kinds, 0.0)
        self._blocks = _LiveBlocks()

    @property
    def _heads(self) -> int:
        """Micro-batches whose head and logits are there at a time."""
        return self._micro_batches if self._gpipe else 1

    def _ahead(self) -> list[Pass]:
        """Forward passes before a step without flush: those of the micro-batches in flight."""
        if not self._steady:
            return []
        first = self._order[0]
        return [first._replace(micro_batch=number) for number in range(first.micro_batch)]

    def _most_in_flight(self) -> int:
        now = most = len(self._ahead())
        for done in self._order:
            now += (done.kind is PassKind.FORWARD) - _frees(done)
            most = max(most, now)
        return most

    def _constants(self) -> dict[str, float]:
        memory = self._memory
        return {
            "weights": memory.weights,
            "gradient copy": memory.gradient_copy,
            "master weights": memory.master_weights,
            "moments": memory.moments,
            "copies of weights in the products' format": memory.weight_copies,
        }

    def allocations(self) -> Iterator[BlockEvent]:
        """All of them, from the start of the step to its end."""
        memory, blocks = self._memory, self._blocks
        constants = self._constants()
        for category, size in constants.items():
            yield from blocks.make("state", size, category, "before the step")
        alive = memory.activations + memory.logits + memory.working + memory.buffers
        early = max(memory.after_forward - sum(constants.values()) - alive, 0.0)
        yield from blocks.make("gradients", early, GRADIENTS, "before the step")
        yield from blocks.make("buffers", memory.buffers, BUFFERS, "before the step")
        for done in self._ahead():
            yield from self._forward(done)
        for done in self._order:
            if done.kind is PassKind.FORWARD:
                yield from self._forward(done)
            else:
                yield from self._backward(done)
        yield from blocks.make("late gradients", memory.gradients - early, GRADIENTS, _when(self._order[-1]))
        yield from blocks.make("unfinished", memory.unfinished, UNFINISHED, _when(self._order[-1]))
        for owner in ("unfinished", "buffers"):
            yield from blocks.free(owner)
        yield from blocks.make("temporary", memory.temporary, TEMPORARY, "step: update")
        yield from blocks.free("temporary")

    def _forward(self, done: Pass) -> Iterator[BlockEvent]:
        category = LATER if self._steady and done.micro_batch >= self._micro_batches else ACTIVATIONS
        owner = done.chunk, done.micro_batch
        for kind, size in self._kinds.items():
            before, self._made[kind] = self._made[kind], self._made[kind] + size
            whole = round(self._made[kind]) - round(before)  # so that any number of them together is rounded once
            yield from self._blocks.make(owner, whole, category, _when(done), kind)
        if self._gpipe:
            yield from self._head_blocks(owner, _when(done))

    def _backward(self, done: Pass) -> Iterator[BlockEvent]:
        if not self._gpipe:
            yield from self._head_blocks("head", _when(done))
        yield from self._blocks.make("working", self._memory.working, WORKING, _when(done))
        yield from self._blocks.free("working")
        yield from self._blocks.free("head")
        if _frees(done):
            yield from self._blocks.free((done.chunk, done.micro_batch))

    def _head_blocks(self, owner: object, when: str) -> Iterator[BlockEvent]:
        for kind, size in self._head.items():
            yield from self._blocks.make(owner, size, ACTIVATIONS, when, kind)
        yield from self._blocks.make(owner, self._memory.logits / self._heads, LOGITS, when)


def _frees(done: Pass) -> bool:
    """Whether a pass is the last that needs the activations of its chunk and micro-batch."""
    return done.kind in (PassKind.BACKWARD, PassKind.WEIGHT)


def _when(done: Pass) -> str:
    phase = "forward" if done.kind is PassKind.FORWARD else "backward"
    return f"step: {phase}, micro-batch {done.micro_batch}, chunk {done.chunk}"


def _instants(memory: WalkedMemory | NanotronMemory) -> dict[str, Mapping[str, float]]:
    """Bytes of each category at the instants of a step, in their order."""
    if isinstance(memory, WalkedMemory):
        phases = (StepPhase.FORWARD, StepPhase.BACKWARD, StepPhase.UPDATE)
        return {f"step: {phase}": memory.peaks[phase] for phase in phases if phase in memory.peaks}
    whole = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer state": memory.optimizer,
        "buckets or gathered weights": memory.copies,
        "workspaces of libraries": memory.workspaces,
    }
    passed = whole | {"activations": memory.activations, "what collectives still hold": memory.streams}
    return {
        "step: forward": passed | {"logits": memory.logits},
        "step: backward": passed | {"backward pass": memory.backward},
        "step: update": whole,
    }


def _between_instants(instants: Mapping[str, Mapping[str, float]]) -> Iterator[BlockEvent]:
    """Blocks that lead from each instant to the next; what shrinks is freed first, so no other moment is fuller."""
    blocks, held = _LiveBlocks(), dict[str, float]()
    for when, wanted in instants.items():
        for category in [name for name, size in held.items() if size > wanted.get(name, 0)]:
            yield from blocks.free(category)
            held[category] = 0
        for category, size in wanted.items():
            yield from blocks.make(category, round(size) - round(held.get(category, 0)), category, when)
            held[category] = size
