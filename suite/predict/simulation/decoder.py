"""The executed decoder as its operators' memory: written like suite/execute/model, with blocks in place of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from reference_runs.layout import Recomputation
from reference_runs.run import Activation, Architecture, Mask, Norm, Position, Residual, Workload
from suite.job.options import DEFAULT_OPTIONS, TrainingOptions
from suite.machine.half_precision import WORK_DTYPES, Kernels
from suite.predict.analytic.memory import WEIGHT_ELEMENT_BYTES
from suite.predict.simulation.autograd_tape import Block, Leaf, Tape, Value
from suite.predict.simulation.fsdp import FullySharding, Unit
from suite.predict.simulation.operators import FP32, Operators

INT64 = 8
ELEMENT_WISE = {Activation.GELU: "gelu", Activation.GELU_TANH: "gelu_tanh"}


class _Affine(NamedTuple):
    weight: Leaf
    bias: Leaf | None


class Batch(NamedTuple):
    """Micro-batches as the model is given them, int64; what both names are of may be one block."""

    tokens: Block
    targets: Block
    others: tuple[Block, ...]


def batch(tape: Tape, architecture: Architecture, *, samples: int) -> Batch:
    """The tokens, one more a sample than positions, so that they are the targets too.

    With a prefix: tokens, targets, positions, and the first and last place that a token is seen from.
    """
    if architecture.mask is not Mask.PREFIX:
        both = tape.block(INT64 * samples * (architecture.sequence + 1))
        return Batch(both, both, ())
    size = INT64 * samples * architecture.sequence
    return Batch(tape.block(size), tape.block(size), (tape.block(size), tape.block(2 * size)))


class _Layer(NamedTuple):
    unit: Unit | None
    attention_norm: _Affine
    query: _Affine | None
    query_key_value: _Affine
    projection: _Affine
    feed_forward_norm: _Affine
    expansion: _Affine
    contraction: _Affine


class Chunk:
    """One chunk of the decoder on one rank.

    Args:
        leaf: makes the leaf of a parameter of so many rows and columns, which so many operators read.
        reads: whether weights are read through a function.
        sharding: makes them instead where weights are fully sharded.
        compiled: whether blocks are compiled.
        script: what a rung of the ladder does in another way.
        layers: in this chunk.
        first, last: whether embedding, and final norm with head, belong to it.
    """

    def __init__(  # noqa: PLR0913  # what a chunk has of the model, and how it is executed
        self,
        tape: Tape,
        workload: Workload,
        kernels: Kernels,
        *,
        leaf: Callable[[int, int, int], Leaf],
        reads: bool,
        sharding: FullySharding | None,
        layers: int,
        first: bool,
        last: bool,
        compiled: bool = False,
        script: TrainingOptions = DEFAULT_OPTIONS,
    ) -> None:
        architecture, recipe, layout = workload
        self.tape = tape
        self.script = script
        self.compiled = compiled
        self.operators = Operators(
            tape,
            WEIGHT_ELEMENT_BYTES[recipe.precision],
            kernels,
            ranks=layout.tensor_parallel,
            by_sequence=layout.sequence_parallel,
            dtype=WORK_DTYPES[recipe.precision],
            reads=reads,
            script=script,
        )
        self.architecture, self.recipe, self.layout = architecture, recipe, layout
        self.samples, self.length = layout.micro_batch, architecture.sequence
        self.heads = architecture.heads // layout.tensor_parallel
        self.width = architecture.ffn_hidden // layout.tensor_parallel
        self.rows = architecture.padded_vocabulary // layout.tensor_parallel
        self.tokens = self.samples * self.length
        self.states = self.tokens * architecture.hidden
        # of hidden states between the matrices that are split
        self.own_tokens = self.tokens // (layout.tensor_parallel if layout.sequence_parallel else 1)
        self.own_states = self.own_tokens * architecture.hidden
        self.queries = self.tokens * self.heads * architecture.head_dim
        self.scores = self.tokens * self.heads * self.length
        # of several samples and heads, a head's part of a fused projection is copied before a batched product
        self.strided = self.samples > 1 and self.heads > 1
        hidden = architecture.hidden

        self.sharding = sharding

        def parameter(unit: Unit | None, rows: int, columns: int = 1, readers: int = 1) -> Leaf:
            if sharding is None:
                return leaf(rows, columns, readers)
            return sharding.leaf(unit or sharding.root, rows, columns, readers)

        def affine(unit: Unit | None, rows: int, columns: int = 1) -> _Affine:
            return _Affine(parameter(unit, rows, columns), parameter(unit, rows) if architecture.biases else None)

        tied = architecture.tied_embeddings
        readers = 2 if tied and last else 1
        self.embedding = parameter(None, self.rows, hidden, readers) if first else None
        learned = architecture.position is Position.LEARNED
        positions = self.length + architecture.extra_positions
        self.position = parameter(None, positions, hidden) if first and learned else None
        self.embedding_norm = affine(None, hidden) if first and architecture.embedding_norm else None
        expanded = (2 if architecture.activation.gated else 1) * self.width
        inner = self.heads * architecture.head_dim
        self.layers: list[_Layer] = []
        top = layers - 1 if last and architecture.top_query_layer else None
        for number in range(layers):
            unit = None
            if sharding is not None:
                sharding.layers.append(unit := Unit())
            self.layers.append(
                _Layer(
                    unit,
                    affine(unit, hidden),
                    affine(unit, inner, hidden) if number == top else None,
                    affine(unit, (2 if number == top else 3) * inner, hidden),
                    affine(unit, hidden, inner),
                    affine(unit, hidden),
                    affine(unit, expanded, hidden),
                    affine(unit, hidden, self.width),
                )
            )
        self.final_norm = affine(None, hidden) if last else None
        self.query_position = parameter(None, self.length, hidden) if top is not None else None
        self.head = (self.embedding if tied and first else parameter(None, self.rows, hidden)) if last else None

    def forward(self, batch: Batch, x: Value | None = None) -> Value:
        """The loss where this is the last chunk, else hidden states.

        Args:
            x: hidden states, where this is not the first chunk.
        """
        if self.sharding is not None:
            self.sharding.entered(self.sharding.root, None)
        if self.embedding is not None:
            x = self._embedded(batch.tokens)
        assert x is not None
        bias = Value(self.tape.block(0)) if self.layout.fused_attention else self._score_bias()
        turn = self._rotation()
        group = self.layout.checkpoint_layers if self.layout.recomputation is Recomputation.FULL else 0
        for start in range(0, len(self.layers), group or 1):
            layers = self.layers[start : start + (group or 1)]
            if group:
                x = self.tape.checkpoint(self._through(layers), [x, bias, *([turn] if turn else [])])
            else:
                x = self._through(layers)(x, bias, turn)
        if self.final_norm is None or self.head is None:
            return x
        normed = x if self.query_position is not None else self._norm(x, self.final_norm)
        del x
        if self.script.loss_chunks > 1:
            copied = self.tape.block(INT64 * self.tokens if self.samples > 1 else 0)
            loss = self.operators.chunked_loss(
                normed,
                self.head,
                copied,
                tokens=self.tokens,
                columns=self.architecture.hidden,
                rows=self.rows,
                chunks=self.script.loss_chunks,
            )
            return loss if self.sharding is None else self.sharding.left(self.sharding.root, loss)
        logits = self._by_columns(normed, _Affine(self.head, None), rows=self.rows)
        del normed
        targets = batch.targets
        if targets is batch.tokens and self.samples > 1:
            targets = self.tape.block(INT64 * self.tokens)
        loss = self.operators.loss(logits, targets, tokens=self.tokens, rows=self.rows)
        return loss if self.sharding is None else self.sharding.left(self.sharding.root, loss)

    def _norm(self, x: Value, norm: _Affine) -> Value:
        return self.operators.norm(x, *norm, tokens=self.own_tokens, hidden=self.architecture.hidden)

    def _by_columns(self, x: Value, matrix: _Affine, *, rows: int) -> Value:
        """The rank's part of the output of a matrix whose columns are split."""
        x = self.operators.for_columns(x, elements=self.states)
        return self.operators.linear(x, *matrix, tokens=self.tokens, columns=self.architecture.hidden, rows=rows)

    def _by_rows(self, x: Value, matrix: _Affine, *, columns: int) -> Value:
        """The output of a matrix whose rows are split."""
        hidden = self.architecture.hidden
        x = self.operators.linear(x, *matrix, tokens=self.tokens, columns=columns, rows=hidden)
        return self.operators.of_rows(x, elements=self.states)

    def _embedded(self, tokens: Block) -> Value:
        operators = self.operators
        assert self.embedding is not None
        x = operators.embedding(
            tokens, self.embedding, tokens=self.tokens, rows=self.rows, hidden=self.architecture.hidden
        )
        x = operators.of_rows(x, elements=self.states)
        if self.recipe.embedding_gradient_shrink is not None:
            learning, fixed = operators.scaled(x, elements=self.own_states), operators.block(self.own_states)
            x = operators.sum(learning, Value(fixed), elements=self.own_states)
            del learning, fixed
        if self.position is not None:
            rows = self.length + self.architecture.extra_positions
            x = operators.sum(x, self._positions(self.position, rows), elements=self.own_states)
        if self.embedding_norm is not None:
            x = self._norm(x, self.embedding_norm)
        return operators.dropout(x, self.recipe.embedding_dropout, elements=self.own_states)

    def _positions(self, table: Leaf, rows: int) -> Value:
        """A view of a table of `rows` positions."""
        operators, hidden = self.operators, self.architecture.hidden

        def rule(_kept: list[Block], _gradients: list[Block | None]) -> list[Block | None]:
            self.tape.work("scale", rows * hidden, variant="forward", dtype=operators.dtype)
            self.tape.work("node", times=4)
            summed = operators.block(self.length * hidden)
            of_table = operators.block(rows * hidden)
            del summed
            return [of_table]

        read = operators.weight(table)
        return Value(read.block, self.tape.record([read], [], rule))

    def _score_bias(self) -> Value:
        """The penalty of distance and the mask, fp32; on the way there int64 distances and two copies."""
        square, heads = self.length * self.length, 1
        self._mask_work(square * (self.heads if self.architecture.position is Position.ALIBI else 1))
        if self.architecture.mask is Mask.PREFIX:
            return self._prefix_bias(self.samples * square)
        distance, zero = self.tape.block(INT64 * square), self.tape.block(FP32 * square)
        penalty = zero
        if self.architecture.position is Position.ALIBI:
            heads = self.heads
            wide = self.tape.block(FP32 * square)
            penalty = self.tape.block(FP32 * heads * square)
            del wide
        del zero
        masked = self.tape.block(square)
        bias = self.tape.block(FP32 * heads * square)
        del masked, distance, penalty
        return Value(bias)

    def _prefix_bias(self, places: int) -> Value:
        """The mask of each sample, fp32, made from bytes: two comparisons, both of them, and where they are not."""
        self._mask_work(places)
        seen = self.tape.block(places)
        zero, unseen = self.tape.block(FP32 * places), self.tape.block(places)
        bias = self.tape.block(FP32 * places)
        del seen, zero, unseen
        return Value(bias)

    def _mask_work(self, places: int) -> None:
        """Distances or comparisons, penalties, -inf: four operators over the places, and small ones before."""
        self.tape.work("scale", places, variant="forward", times=4)
        self.tape.work("call", times=8)

    def _rotation(self) -> Value | None:
        if self.architecture.rotary_dim:
            self.tape.work("scale", self._turns() // 2, variant="forward", times=5)
            self.tape.work("call", times=6)
        return Value(self.tape.block(FP32 * self._turns())) if self.architecture.rotary_dim else None

    def _turns(self) -> int:
        """Cosines and sines of every position; of every sample's own where they differ."""
        assert self.architecture.rotary_dim is not None
        places = self.tokens if self.architecture.mask is Mask.PREFIX else self.length
        return 2 * places * self.architecture.rotary_dim

    def _through(self, layers: list[_Layer]) -> Callable[..., Value]:
        def through(x: Value, bias: Value, turn: Value | None = None) -> Value:
            for layer in layers:
                if self.sharding is None or layer.unit is None:
                    x = self._region(layer, x, bias, turn)
                else:
                    entered = self.sharding.entered(layer.unit, x)
                    assert entered is not None
                    x = self.sharding.left(layer.unit, self._region(layer, entered, bias, turn))
                    del entered
            return x

        return through

    def _region(self, layer: _Layer, x: Value, bias: Value, turn: Value | None) -> Value:
        """A block, compiled as one region where blocks are compiled."""
        self.tape.work("module", times=3)
        if not self.compiled:
            return self._block(layer, x, bias, turn)
        self.tape.work("region", variant="forward")
        self.tape.compiled = True
        x = self._block(layer, x, bias, turn)
        self.tape.compiled = False
        node = self.tape.record([x], [], self._left_region)
        return Value(x.block, node)

    def _left_region(self, _kept: list[Block], gradients: list[Block | None]) -> list[Block | None]:
        self.tape.work("region", variant="backward")
        return list(gradients)

    def _block(self, layer: _Layer, x: Value, bias: Value, turn: Value | None) -> Value:
        operators, dropout, states = self.operators, self.recipe.hidden_dropout, self.own_states
        if self.architecture.norm is Norm.DEEP_NORM:
            return self._deep_norm_block(layer, x, bias, turn)
        if layer.query is not None:
            assert self.final_norm is not None
            x = self._norm(x, self.final_norm)
        if self.architecture.residual is Residual.PARALLEL:
            normal = self._norm(x, layer.attention_norm)
            attended = operators.dropout(self._attention(layer, normal, bias, turn), dropout, elements=states)
            middle = operators.sum(x, attended, elements=states)
            to_feed = self._norm(x, layer.feed_forward_norm)
        else:
            attended = self._attention(layer, self._norm(x, layer.attention_norm), bias, turn)
            attended = operators.dropout(attended, dropout, elements=states)
            middle = operators.sum(x, attended, elements=states, into_y=True)
            to_feed = self._norm(middle, layer.feed_forward_norm)
        fed = operators.dropout(self._feed_forward(layer, to_feed), dropout, elements=states)
        return operators.sum(middle, fed, elements=states)

    def _deep_norm_block(self, layer: _Layer, x: Value, bias: Value, turn: Value | None) -> Value:
        operators, dropout, states = self.operators, self.recipe.hidden_dropout, self.own_states
        attended = operators.dropout(self._attention(layer, x, bias, turn), dropout, elements=states)
        middle = operators.sum(operators.scaled(x, elements=states), attended, elements=states)
        middle = self._norm(middle, layer.attention_norm)
        fed = operators.dropout(self._feed_forward(layer, middle), dropout, elements=states)
        out = operators.sum(operators.scaled(middle, elements=states), fed, elements=states)
        return self._norm(out, layer.feed_forward_norm)

    def _queries(self, projection: _Affine) -> Value:
        """The queries of a top-query layer: its table, copied for each of several samples, and projected."""
        operators, inner = self.operators, self.heads * self.architecture.head_dim
        assert self.query_position is not None
        read = self._positions(self.query_position, self.length)
        if self.samples > 1:
            read = operators.copied(read, elements=self.states)
        read = operators.summed_back(read, elements=self.states)
        q = operators.linear(read, *projection, tokens=self.tokens, columns=self.architecture.hidden, rows=inner)
        return operators.parts(q, parts=1, elements=self.queries)[0]

    def _attention(self, layer: _Layer, x: Value, bias: Value, turn: Value | None) -> Value:
        operators, inner = self.operators, self.heads * self.architecture.head_dim
        apart = [] if layer.query is None else [self._queries(layer.query)]
        parts = 3 - len(apart)
        fused = self._by_columns(x, layer.query_key_value, rows=parts * inner)
        q, k, v = [*apart, *operators.parts(fused, parts=parts, elements=self.queries)]
        del fused, apart
        if turn is not None:
            q, k = self._rotated(q, turn), self._rotated(k, turn)
        return self._by_rows(self._context(q, k, v, bias), layer.projection, columns=inner)

    def _context(self, q: Value, k: Value, v: Value, bias: Value) -> Value:
        fused = self.layout.fused_attention
        weighted = self._fused if fused else self._unfused
        if self.layout.recomputation is Recomputation.SELECTIVE:
            context = self.tape.checkpoint(weighted, [q, k, v, bias])
        else:
            context = weighted(q, k, v, bias)
        # a fused attention's output lies as its queries do: as the projection wants it, unless they are rotated ones
        lies = fused and self.architecture.rotary_dim is None
        return self.operators.copied(context, elements=self.queries) if self.heads > 1 and not lies else context

    def _fused(self, q: Value, k: Value, v: Value, _bias: Value) -> Value:
        sizes = self.samples * self.heads, self.length, self.architecture.head_dim
        return self.operators.attention(q, k, v, queries=self.queries, sizes=sizes)

    def _unfused(self, q: Value, k: Value, v: Value, _bias: Value) -> Value:
        operators = self.operators
        rotates = self.architecture.rotary_dim is not None
        sizes = self.samples * self.heads, self.length, self.architecture.head_dim
        scores = operators.scores(
            *(self._by_head(part, copies=not rotates) for part in (q, k)),
            queries=self.queries,
            elements=self.scores,
            sizes=sizes,
        )
        weights = operators.softmax(scores, elements=self.scores, length=self.length)
        weights = operators.dropout(weights, self.recipe.attention_dropout, elements=self.scores)
        return operators.context(
            weights,
            self._by_head(v, copies=True),
            scores=self.scores,
            values=self.queries,
            strided=self.strided,
            sizes=sizes,
        )

    def _by_head(self, part: Value, *, copies: bool) -> Value:
        return self.operators.copied(part, elements=self.queries) if copies and self.strided else part

    def _rotated(self, x: Value, turn: Value) -> Value:
        size = self.architecture.rotary_dim
        assert size is not None
        return self.operators.rotated(
            x,
            turn,
            elements=self.queries,
            turned=self.tokens * self.heads * size,
            turns=self._turns(),
        )

    def _feed_forward(self, layer: _Layer, x: Value) -> Value:
        operators, width, activation = self.operators, self.width, self.architecture.activation
        rows = (2 if activation.gated else 1) * width
        x = self._by_columns(x, layer.expansion, rows=rows)
        if activation.gated:
            x = operators.gated(x, elements=self.tokens * width)
        elif activation is Activation.FAST_GELU:
            x = operators.fast_gelu(x, elements=self.tokens * width)
        elif activation is Activation.RELU:
            x = operators.relu(x, elements=self.tokens * width)
        else:
            x = operators.element_wise(x, ELEMENT_WISE[activation], elements=self.tokens * width)
        return self._by_rows(x, layer.contraction, columns=width)
