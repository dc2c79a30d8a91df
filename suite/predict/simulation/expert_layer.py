"""Router and experts of a layer as suite/execute/model/experts.py executes them, with blocks in place of tensors.

Without a capacity every token has a row for each expert that it chooses, with one all places are computed: what the
rows take together does not depend on the routing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from reference_runs.run import Architecture, Balancing, Gate
from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.memory import FP32
from suite.predict.simulation.autograd_tape import BackwardRule, ParameterLeaf, Value
from suite.predict.simulation.decoder_parameters import ExpertParameters
from suite.predict.simulation.fsdp import FullySharding, Unit
from suite.predict.simulation.memory_blocks import MemoryBlock
from suite.predict.simulation.operators import Operators
from suite.predict.simulation.shared_inputs import INT64

INT32 = 4
Blocks = list[MemoryBlock]
Gradients = list[MemoryBlock | None]


class _PlaceBlocks(NamedTuple):
    """As in suite/execute/model/expert_capacity.py."""

    rows: MemoryBlock
    filled: MemoryBlock
    of_rows: MemoryBlock
    kept: MemoryBlock
    ends: MemoryBlock


class ExpertLayer:
    """The experts of one layer, and N tokens of a micro-batch with C experts each: R = N C rows.

    Args:
        width: of an expert on this rank.
        sequences: that the tokens are of.
        ranks: that share out the experts.
        computed: rows of all ranks that this one's experts compute; None: R, as where experts are equally busy, and
            with a capacity all places.
        unit: of `sharding`, the experts' own; None: they are in that of their layer, or nothing is fully sharded.

    Of calls it counts the products, R / E rows in each, which the routing shifts between experts, and what copies rows.
    """

    def __init__(
        self,
        operators: Operators,
        architecture: Architecture,
        *,
        tokens: int,
        width: int,
        sequences: int = 1,
        ranks: int = 1,
        computed: int | None = None,
        sharding: FullySharding | None = None,
        unit: Unit | None = None,
    ) -> None:
        self._operators, self._tape, self._architecture = operators, operators.tape, architecture
        self._tokens, self._hidden, self._width = tokens, architecture.hidden, width
        self._experts, self._chosen = architecture.experts or 0, architecture.experts_per_token or 0
        self._rows, self._ranks = tokens * self._chosen, ranks
        self._has_capacity = architecture.capacity_factor is not None
        self._computed = architecture.expert_rows(tokens=tokens) if computed is None else computed
        self._given = self._computed if self._has_capacity else self._rows  # by its tokens, to the experts
        self._sequences, self._sharding, self._unit = sequences, sharding, unit
        self._scores = FP32 * tokens * self._experts

    def routed(self, x: Value, parameters: ExpertParameters, activated: Callable[[Value, int], Value]) -> Value:
        """The chosen experts' outputs for x, weighed and summed for each token."""
        hidden, width = self._hidden, self._width
        gate = 2 if self._architecture.activation.gated else 1
        by_token = Value(x.block, self._tape.record([x], [], lambda _, gradients: list(gradients)))
        scores = self._router_scores(by_token, parameters.router)
        chosen, order, inverse, ends = self._choice()
        places = self._places() if self._has_capacity else None
        balanced = self._balanced(scores, ends)
        if self._architecture.sequence_loss_weight is not None:
            balanced = self._balanced_by_sequence(balanced)
        gates = self._gates(balanced, chosen)
        del balanced
        del scores, chosen
        there, back = [inverse], [order]
        if places is not None:
            there, back, ends = [places.of_rows, places.kept], [places.rows, places.filled], places.ends
            gates = self._masked(gates, places.kept)
        del order, inverse, places
        copied = self._copied(by_token, there)
        del by_token, there
        if self._ranks > 1:
            copied, own_order, own_inverse, ends = self._sent_to_experts(copied)
        if self._sharding is not None and self._unit is not None:
            entered = self._sharding.entered(self._unit, copied)
            assert entered is not None
            copied = entered
            del entered
        expanded = self._product(copied, parameters.expansion, ends, columns=hidden, out=gate * width)
        del copied
        active = activated(expanded, self._computed * width)
        del expanded
        out = self._product(active, parameters.contraction, ends, columns=width, out=hidden)
        del active
        if self._sharding is not None and self._unit is not None:
            out = self._sharding.left(self._unit, out)
        if self._ranks > 1:
            out = self._sent(self._reordered(out, own_order), sent=self._computed, received=self._given)
            del own_order, own_inverse
        return self._weighed(self._ordered(out, back, given=self._given), gates)

    def gated(self, shared: Value, x: Value, gate: ParameterLeaf) -> Value:
        """The shared experts' output times the sigmoid of x by the gate's row: keeps the sigmoid and both factors."""
        operators, tape, tokens, hidden = self._operators, self._tape, self._tokens, self._hidden
        score = operators.linear(x, gate, None, tokens=tokens, columns=hidden, rows=1)
        out = operators.block(tokens)
        weight = Value(out, tape.record([score], [out], self._passing(operators.element * tokens)))
        del score, out
        return self._times(shared, weight, rows=tokens)

    def _ordered(self, x: Value, keeps: Blocks, *, given: int, rows: int | None = None) -> Value:
        """So many rows (None: those of the tokens) of so many given ones in another order: keeps the way back."""
        operators, elements = self._operators, (self._rows if rows is None else rows) * self._hidden
        node = self._tape.record([x], keeps, self._passing(operators.element * given * self._hidden))
        operators.tape.count("permuted", elements, variant="forward", dtype=operators.dtype)
        return Value(operators.block(elements), node)

    def _places(self) -> _PlaceBlocks:
        """Where rows go that experts with a capacity take, one place more than there are; then what leads there."""
        tape, each, places = self._tape, INT64 * self._rows, self._computed + 1
        by_expert, order, within, row = (tape.block(each) for _ in range(4))
        is_kept, place = tape.block(self._rows), tape.block(each)
        rows, filled = tape.block(INT64 * places), tape.block(places)
        of_rows, kept, ends = tape.block(each), tape.block(self._rows), tape.block(INT32 * self._experts)
        del by_expert, order, within, row, is_kept, place
        return _PlaceBlocks(rows, filled, of_rows, kept, ends)

    def _masked(self, gates: Value, kept: MemoryBlock) -> Value:
        """The gates times whether a row is kept."""
        node = self._tape.record([gates], [kept], self._passing(FP32 * self._rows))
        return Value(self._tape.block(FP32 * self._rows), node)

    def _sent_to_experts(self, x: Value) -> tuple[Value, MemoryBlock, MemoryBlock, MemoryBlock]:
        """The rows of this rank's experts in their order, that order, the way back, and the ends of each expert."""
        tape, each = self._tape, INT64 * self._computed
        numbers = [tape.block(INT64 * self._experts) for _ in range(2)]
        order, inverse = tape.block(each), tape.block(each)
        ends = tape.block(INT32 * (self._experts // self._ranks))
        del numbers
        received = self._sent(x, sent=self._given, received=self._computed)
        return self._reordered(received, inverse), order, inverse, ends

    def _reordered(self, x: Value, keeps: MemoryBlock) -> Value:
        """The rows of this rank's experts in another order."""
        return self._ordered(x, [keeps], given=self._computed, rows=self._computed)

    def _sent(self, x: Value, *, sent: int, received: int) -> Value:
        """An all-to-all: keeps nothing, and gradients go back."""
        operators, hidden = self._operators, self._hidden
        node = self._tape.record([x], [], self._passing(operators.element * sent * hidden))
        return Value(operators.block(received * hidden), node)

    def _passing(self, size: int) -> BackwardRule:
        return lambda _, __: [self._tape.block(size)]

    def _wide(self, x: Value, elements: int) -> Value:
        """A copy in fp32 of what is in 16 bit."""
        operators = self._operators
        if not operators.half:
            return x
        self._tape.count("to_fp32", elements, variant="forward", dtype=operators.dtype)
        node = self._tape.record([x], [], self._passing(operators.element * elements))
        return Value(self._tape.block(FP32 * elements), node)

    def _router_scores(self, x: Value, router: ParameterLeaf) -> Value:
        """A product in fp32, which keeps its inputs, and softmax or sigmoid, which keeps its output."""
        tape, tokens, hidden, experts = self._tape, self._tokens, self._hidden, self._experts
        wide = self._wide(x, tokens * hidden)
        weight = self._wide(self._operators.weight(router), experts * hidden)

        def rule(_kept: Blocks, _gradients: Gradients) -> Gradients:
            tape.count("product", tokens, hidden, experts, variant="NN")
            tape.count("product", experts, hidden, tokens, variant="TN")
            of_weight = tape.block(FP32 * experts * hidden)
            return [tape.block(FP32 * tokens * hidden), of_weight]

        node = tape.record([wide, weight], [wide.block, weight.block], rule)
        tape.count("product", tokens, experts, hidden, variant="NT")
        logits = Value(tape.block(self._scores), node)
        del wide, weight
        out = tape.block(self._scores)
        return Value(out, tape.record([logits], [out], self._passing(self._scores)))

    def _choice(self) -> tuple[MemoryBlock, MemoryBlock, MemoryBlock, MemoryBlock]:
        """The experts of each token; the order of their rows, the place of each in it, and the end of each expert."""
        tape, each = self._tape, INT64 * self._rows
        ranked = tape.block(self._scores if self._architecture.balancing is Balancing.BIAS else 0)
        masked = tape.block(self._scores if self._architecture.expert_groups else 0)
        values, chosen = tape.block(FP32 * self._rows), tape.block(each)
        del values, ranked, masked
        by_expert, order = tape.block(each), tape.block(each)
        ends = tape.block(INT32 * self._experts)
        inverse = tape.block(each)
        numbers = tape.block(each)
        del by_expert, numbers
        return chosen, order, inverse, ends

    def _balanced(self, scores: Value, ends: MemoryBlock) -> Value:
        """Keeps the ends of the experts and their mean scores."""
        weighed = self._architecture.balancing is Balancing.AUXILIARY_LOSS
        mean = self._tape.block(FP32 * self._experts)
        node = self._tape.record(
            [scores], [ends, mean], lambda _, gradients: [self._tape.block(self._scores)] if weighed else [*gradients]
        )
        return Value(scores.block, node)

    def _balanced_by_sequence(self, scores: Value) -> Value:
        """Keeps the scores and the loads of each sequence, after each token's best scores."""
        tape, size = self._tape, self._scores

        def rule(_kept: Blocks, _gradients: Gradients) -> Gradients:
            total, share = tape.block(FP32 * self._tokens), tape.block(size)
            weighed = tape.block(size)
            del weighed
            of_scores = tape.block(size)
            scaled = tape.block(size)
            del share, of_scores
            added = tape.block(size)
            del scaled, total
            return [added]

        values, best = tape.block(FP32 * self._rows), tape.block(INT64 * self._rows)
        ones = tape.block(FP32 * self._rows)
        loads = tape.block(FP32 * self._sequences * self._experts)
        del values, best, ones
        return Value(scores.block, tape.record([scores], [scores.block, loads], rule))

    def _gates(self, scores: Value, chosen: MemoryBlock) -> Value:
        """The scores of the chosen, which a gather keeps; divided by their sum, which keeps both."""
        tape, each = self._tape, FP32 * self._rows
        gathered = Value(tape.block(each), tape.record([scores], [chosen], self._passing(self._scores)))
        gates = gathered
        if self._architecture.gate is not Gate.SOFTMAX:
            total = Value(
                tape.block(FP32 * self._tokens), tape.record([gathered], [], lambda _, gradients: list(gradients))
            )
            node = tape.record([gathered, total], [gathered.block, total.block], self._of_quotient)
            gates = Value(tape.block(each), node)
        if self._architecture.gate_scale is not None:
            gates = Value(tape.block(each), tape.record([gates], [], self._passing(each)))
        return gates

    def _of_quotient(self, _kept: Blocks, _gradients: Gradients) -> Gradients:
        return [self._tape.block(FP32 * self._rows), self._tape.block(FP32 * self._tokens)]

    def _copied(self, x: Value, keeps: Blocks) -> Value:
        """A row for each expert of a token: keeps where they went. Backward: they come back, and are summed."""
        operators, tape, rows, hidden = self._operators, self._tape, self._rows, self._hidden

        def rule(_kept: Blocks, _gradients: Gradients) -> Gradients:
            tape.count("permuted", rows * hidden, variant="forward", dtype=operators.dtype, times=2)
            returned = operators.block(rows * hidden)
            summed = operators.block(self._tokens * hidden)
            del returned
            return [summed]

        places = self._computed if self._has_capacity else rows
        tape.count("permuted", places * hidden, variant="forward", dtype=operators.dtype)
        node = tape.record([x], keeps, rule)
        indices = tape.block(INT64 * places)
        out = operators.block(places * hidden)
        del indices
        return Value(out, node)

    def _product(self, x: Value, weight: ParameterLeaf, ends: MemoryBlock, *, columns: int, out: int) -> Value:
        """The rows of each expert by its matrix: keeps them and their ends."""
        operators, tape, rows, experts = self._operators, self._tape, self._computed, self._experts // self._ranks
        mean = ceil_division(rows, experts)

        def count(*sizes: int, variant: str) -> None:
            tape.count("product", *sizes, variant=variant, dtype=operators.dtype, times=experts)

        def rule(_kept: Blocks, _gradients: Gradients) -> Gradients:
            count(mean, columns, out, variant="NN")
            count(out, columns, mean, variant="TN")
            of_x = operators.block(rows * columns)
            return [of_x, operators.block(experts * out * columns)]

        node = tape.record([x, operators.weight(weight)], [x.block, ends], rule)
        count(mean, out, columns, variant="NT")
        return Value(operators.block(rows * out), node)

    def _weighed(self, x: Value, gates: Value) -> Value:
        """The sum of a token's rows times their gates: the product keeps both."""
        operators, tape, rows, hidden = self._operators, self._tape, self._rows, self._hidden
        if operators.half:
            gates = Value(operators.block(rows), tape.record([gates], [], self._passing(FP32 * rows)))
        product = self._times(x, gates, rows=rows)
        tape.count("add", rows * hidden, variant="forward", dtype=operators.dtype)
        summed = tape.record([product], [], lambda _, gradients: list(gradients))
        return Value(operators.block(self._tokens * hidden), summed)

    def _times(self, x: Value, factors: Value, *, rows: int) -> Value:
        """Each of so many rows times its factor: keeps both. Backward: two products, one summed up for the factors."""
        operators, tape, hidden = self._operators, self._tape, self._hidden

        def rule(_kept: Blocks, _gradients: Gradients) -> Gradients:
            tape.count("add", rows * hidden, variant="forward", dtype=operators.dtype, times=2)
            of_factors = operators.block(rows * hidden)
            of_x = operators.block(rows * hidden)
            sums = operators.block(rows)
            del of_factors
            return [of_x, sums]

        tape.count("add", rows * hidden, variant="forward", dtype=operators.dtype)
        node = tape.record([x, factors], [x.block, factors.block], rule)
        return Value(operators.block(rows * hidden), node)
