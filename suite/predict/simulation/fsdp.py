"""Allocations of fully_shard (ZeRO-2 and 3) around the operators of a unit: gathered weights, gradients, messages."""

from __future__ import annotations

from reference_runs.layout import Layout
from reference_runs.run import Recipe
from suite.machine.half_precision import WORK_DTYPES, Kernels
from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.memory import WEIGHT_ELEMENT_BYTES
from suite.predict.analytic.traffic import reduced_gradient_element_bytes
from suite.predict.simulation.autograd_tape import ParameterLeaf, Tape, Value
from suite.predict.simulation.memory_blocks import Category, MemoryBlock
from suite.predict.simulation.state import stored_element_bytes, timed_dtype


class Unit:
    """A layer, its experts where ranks share them out, or what is in no layer: its parameters' padded shards over so
    many ranks, and what is allocated for them now."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.experts: Unit | None = None
        self.shards: list[int] = []
        self.gathered: list[MemoryBlock] = []
        self.message: MemoryBlock | None = None
        self.gradients: dict[int, MemoryBlock] = {}
        self.waiting: dict[int, MemoryBlock] = {}
        self.reduced: MemoryBlock | None = None
        self.summed: MemoryBlock | None = None
        self.between_groups: MemoryBlock | None = None


class FullySharding:
    """The units of one rank, in the order of the forward pass; the one outside the layers is the root.

    With P elements in a unit's padded shards, n ranks, w, s, r bytes of a computed, stored and reduced element:
        gathering   w P          the shards in the dtype of computation, where it is not the stored one
                    w n P        the message, until the next unit's has come; twice while gloo works
                    w n P        the gathered weights, until they are resharded
        reducing    r n P        the message, until the next unit reduces; twice while gloo works
                    w M          the gradient of the unit's last parameter, of M elements, until the message has come:
                                 a loop's variable has it
                    r P, s P     the shards of the gradients as reduced and, where that is another dtype, as stored
                                 with hybrid sharding r P alone until the last micro-batch; then, until its end, r P of
                                 what groups reduced

    Source: torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, foreach_all_gather, foreach_all_gather_copy_out,
    foreach_reduce; _fsdp_param_group.py, wait_for_unshard, pre_backward, post_backward.

    Attributes:
        last: whether this is the last micro-batch.
        synchronises_once: whether gradients are reduced after the last micro-batch alone. Until then those of whole
            weights add up, in the dtype in which they are reduced (`set_requires_gradient_sync(False)`).
    """

    def __init__(self, tape: Tape, recipe: Recipe, layout: Layout, kernels: Kernels) -> None:
        self._tape = tape
        self._ranks, self._expert_ranks = layout.sharding_ranks, layout.data_parallel
        self._sums = layout.shard_copies > 1
        self._dtype = WORK_DTYPES[recipe.precision]
        self._computed = WEIGHT_ELEMENT_BYTES[recipe.precision]
        self._stored = stored_element_bytes(recipe.precision)
        self._reduced = reduced_gradient_element_bytes(recipe.precision)
        self._copies = not kernels.cuda
        self._keeps = layout.zero_stage == 2 or not layout.reshard_after_forward
        self._until_last = layout.zero_stage == 2
        self._gather_message: MemoryBlock | None = None
        self._reduce_message: MemoryBlock | None = None
        self.last = self.synchronises_once = False
        self.root = Unit(self._ranks)
        self.layers: list[Unit] = []

    def new_layer(self) -> Unit:
        """The unit of one more layer."""
        self.layers.append(Unit(self._ranks))
        return self.layers[-1]

    def experts_of(self, layer: Unit) -> Unit:
        """The unit of the experts of a layer, where ranks share them out: over those with the same ones."""
        if layer.experts is None:
            layer.experts = Unit(self._expert_ranks)
            self.layers.insert(self.layers.index(layer), layer.experts)
        return layer.experts

    def leaf(self, unit: Unit, rows: int, columns: int, readers: int) -> ParameterLeaf:
        """The leaf of a parameter of `unit`; gradients of several readers are accumulated when all have come."""
        name = len(unit.shards)
        unit.shards.append(ceil_division(rows, unit.ranks) * columns)
        waiting: list[MemoryBlock] = []

        def deliver(block: MemoryBlock) -> None:
            if readers > 1:
                waiting.append(block)
                if len(waiting) < readers:
                    return
                block = self._tape.block(self._computed * rows * columns)
                waiting.clear()
            unit.gradients.setdefault(name, block).move(Category.GRADIENTS)

        return ParameterLeaf(deliver)

    def entered(self, unit: Unit, x: Value | None) -> Value | None:
        """The input of a unit, whose weights are gathered."""
        if self._tape.repeats:
            return x
        self._gather(unit)
        self._take(unit, forward=True)
        if x is None:
            return None
        return Value(x.block, self._tape.record([x], [], lambda _, gradients: self._left_backward(unit, gradients)))

    def left(self, unit: Unit, x: Value) -> Value:
        """The output of a unit, whose weights may be dropped."""
        if self._tape.repeats:
            return x
        if unit is self.root:
            self._gather_message = None
        elif not self._keeps:
            unit.gathered.clear()
        node = self._tape.record([x], [], lambda _, gradients: self._entered_backward(unit, gradients))
        return Value(x.block, node)

    def finish(self) -> None:
        """End the backward pass of a micro-batch."""
        self._leave_backward(self.root)
        self._reduce_message = None
        for unit in (self.root, *self.layers):
            unit.between_groups = None

    def _entered_backward(self, unit: Unit, gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
        self._gather(unit)
        self._take(unit, forward=False)
        number = len(self.layers) if unit is self.root else self.layers.index(unit)
        if number:
            self._gather(self.layers[number - 1])
        return list(gradients)

    def _left_backward(self, unit: Unit, gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
        self._leave_backward(unit)
        return list(gradients)

    def _wait(self, unit: Unit) -> None:
        """Add the gradients of whole weights to those of earlier micro-batches, which are as wide as they are reduced.

        Source: torch/distributed/fsdp/_fully_shard/_fsdp_param.py, to_accumulated_grad_if_needed,
        accumulate_unsharded_grad_if_needed.
        """
        for name in list(unit.gradients):
            gradient = unit.gradients.pop(name)
            if name not in unit.waiting:
                if self._reduced != self._computed:
                    gradient = self._tape.block(gradient.bytes // self._computed * self._reduced)
                    gradient.move(Category.GRADIENTS)
                unit.waiting[name] = gradient
            del gradient
        if self.last:
            unit.gradients, unit.waiting = unit.waiting, {}

    def _gather(self, unit: Unit) -> None:
        if unit.gathered or unit.message:
            return
        self._tape.count("scale", sum(unit.shards), variant="forward", dtype=self._dtype, times=2)
        if unit.ranks == 1:
            for elements in unit.shards:
                shard = self._tape.block(self._computed * elements)
                unit.gathered.append(self._gathered(self._computed * elements))
            del shard
            return
        whole = self._computed * sum(unit.shards)
        shard = self._tape.block(whole if self._computed != self._stored else 0)
        unit.message = self._tape.block(unit.ranks * whole)
        unit.message.move(Category.BUFFERS)
        if self._copies:
            self._tape.block(unit.ranks * whole)

    def _gathered(self, size: int) -> MemoryBlock:
        block = self._tape.block(size)
        block.move(Category.GATHERED)
        return block

    def _take(self, unit: Unit, *, forward: bool) -> None:
        if unit.message is None:
            return
        self._tape.count("scale", unit.ranks * sum(unit.shards), variant="forward", dtype=self._dtype)
        unit.gathered = [self._gathered(self._computed * unit.ranks * elements) for elements in unit.shards]
        if forward:
            self._gather_message = unit.message
        unit.message = None

    def _leave_backward(self, unit: Unit) -> None:
        if self.last or not self._until_last:
            unit.gathered.clear()
        if self.synchronises_once:
            self._wait(unit)
            if not self.last:
                return
        self._reduce_message = None
        elements = sum(unit.shards)
        self._tape.count("sharded_unit")
        self._tape.count("scale", unit.ranks * elements, variant="forward", dtype=timed_dtype(self._reduced), times=2)
        if unit.reduced is not None:
            self._tape.count("accumulate", elements, variant="forward", dtype=timed_dtype(self._stored))
        message = self._tape.block(self._reduced * unit.ranks * elements)
        message.move(Category.BUFFERS)
        last = unit.gradients.get(max(unit.gradients, default=-1)) if unit.ranks > 1 else None
        unit.gradients.clear()
        reduced = self._tape.block(self._reduced * elements)
        if self._copies and unit.ranks > 1:
            self._tape.block(self._reduced * unit.ranks * elements)
        del last
        if self._sums:
            if unit.summed is not None:
                self._tape.count("accumulate", elements, variant="forward", dtype=timed_dtype(self._reduced))
            if not self.last:
                if unit.summed is None:
                    reduced.move(Category.GRADIENTS)
                    unit.summed = reduced
                self._reduce_message = message
                return
            unit.between_groups = reduced
        if self._reduced != self._stored:
            reduced = self._tape.block(self._stored * elements)
        unit.summed = None
        if unit.reduced is None:
            reduced.move(Category.GRADIENTS)
            unit.reduced = reduced
        self._reduce_message = message
