"""The executed decoder as its operators' memory: written like suite/execute/model, with blocks in place of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from reference_runs.layout import Recomputation
from reference_runs.run import Activation, Mask, Norm, Position, Residual, Workload
from suite.job.options import Optimization, StepOptions
from suite.predict.analytic.memory import FP32
from suite.predict.simulation.attention_layer import AttentionContext, LatentLayer
from suite.predict.simulation.autograd_tape import ParameterLeaf, Tape, Value
from suite.predict.simulation.decoder_parameters import (
    Affine,
    ChunkParameters,
    ExpertParameters,
    FeedForwardParameters,
    LatentParameters,
    LayerParameters,
    NormVectors,
    chunk_sizes,
)
from suite.predict.simulation.expert_layer import ExpertLayer
from suite.predict.simulation.fsdp import FullySharding
from suite.predict.simulation.host_calls import BLOCK
from suite.predict.simulation.memory_blocks import MemoryBlock
from suite.predict.simulation.operators import Operators
from suite.predict.simulation.shared_inputs import INT64, AttentionInputs, BatchBlocks
from suite.predict.simulation.triton_operators import TritonOperators

ELEMENT_WISE = {Activation.GELU: "gelu", Activation.GELU_TANH: "gelu_tanh"}
Hidden = Value | tuple[Value, Value]  # hidden states; or the residual stream and the last branch, not yet added
GATED = {Activation.GEGLU: "geglu", Activation.GEGLU_TANH: "geglu_tanh", Activation.SWIGLU: "swiglu"}


class Chunk:
    """One chunk of the decoder on one rank.

    Args:
        reads: whether weights are read through a function.
        sharding: where weights are fully sharded.

    Attributes:
        embeds: whether this is the model's first chunk, which is given tokens.
        mixtures: its layers with experts.
        expert_rows: that the rank's experts compute, of each layer with experts; None: as many as its tokens have.
    """

    def __init__(  # what a chunk has of the model, and how it is executed
        self,
        tape: Tape,
        workload: Workload,
        options: StepOptions,
        parameters: ChunkParameters,
        *,
        reads: bool,
        sharding: FullySharding | None,
    ) -> None:
        self.tape = tape
        self.architecture, self.recipe, self.layout = workload
        self.training_options, self.compiled = options.training_options, options.compiled
        self.leaves_sums = Optimization.ACROSS_BLOCKS in options.training_options.optimizations
        self.packs = Optimization.PACKED_GRADIENTS in options.training_options.optimizations
        self.cuda = options.kernels.cuda
        self.parameters = parameters
        self.sharding = sharding
        self.sizes = chunk_sizes(workload)
        self.triton = TritonOperators(tape, workload, options, reads=reads) if options.triton else None
        self.operators = self.triton or Operators(tape, workload, options, reads=reads)
        self.inputs = AttentionInputs(tape, self.architecture, self.sizes)
        self.context = AttentionContext(self.operators, workload, self.sizes)
        self.embeds = parameters.embedding is not None
        self.expert_rows: Sequence[int] | None = None
        mixtures = [layer for layer in parameters.layers if isinstance(layer.feed_forward, ExpertParameters)]
        self.mixtures = len(mixtures)
        self._number_of_mixture = {id(layer): number for number, layer in enumerate(mixtures)}

    def forward(self, batch: BatchBlocks, x: Value | None = None) -> Value:
        """The loss where this is the last chunk, else hidden states.

        Args:
            x: hidden states, where this is not the first chunk.
        """
        if self.sharding is not None:
            self.sharding.entered(self.sharding.root, None)
        if self.embeds:
            x = self.embedded(batch.tokens)
        assert x is not None
        given = [x]
        del x
        bias, turn = self.shared(batch)
        return self.headed(self._through_all(given.pop(), bias, turn), batch)

    def shared(self, batch: BatchBlocks) -> tuple[Value, Value | None]:
        """Mask and rotation, for the layers."""
        return self._mask(batch), self.inputs.rotation()

    def through_layers(self, x: Value, bias: Value, turn: Value | None) -> Value:
        """All layers that are here, one after the other."""
        return self._sum(self._through_all(x, bias, turn))

    def _through_all(self, x: Hidden, bias: Value, turn: Value | None) -> Hidden:
        group = self.layout.checkpoint_layers if self.layout.recomputation is Recomputation.FULL else 0
        for start in range(0, len(self.parameters.layers), group or 1):
            layers = self.parameters.layers[start : start + (group or 1)]
            if group:
                assert isinstance(x, Value)
                x = self.tape.checkpoint(self._through(layers), [x, bias, *([turn] if turn else [])])
            else:
                x = self._through(layers)(x, bias, turn)
        return x

    def _sum(self, x: Hidden) -> Value:
        return x if isinstance(x, Value) else self.operators.sum(*x, elements=self.sizes.local_states)

    def headed(self, x: Hidden, batch: BatchBlocks) -> Value:
        """The loss; the hidden states themselves where the head is not here."""
        if self.parameters.final_norm is None or self.parameters.head is None:
            return self._sum(x)
        if isinstance(x, Value):
            given = [x if self.parameters.query_position is not None else self._norm(x, self.parameters.final_norm)]
        else:
            given = [self._added_and_normalised(*x, self.parameters.final_norm)[1]]
        del x
        loss = self._loss(given.pop(), self.parameters.head, batch)
        return loss if self.sharding is None else self.sharding.left(self.sharding.root, loss)

    def _loss(self, normed: Value, head: Affine, batch: BatchBlocks) -> Value:
        sizes = self.sizes
        shape = {"tokens": sizes.tokens, "columns": sizes.hidden, "rows": sizes.rows}
        if self.triton and self.layout.tensor_parallel == 1:
            return self.triton.fused_loss(normed, head.weight, batch.targets, **shape)
        copies = batch.targets is batch.tokens and sizes.samples > 1
        if self.training_options.loss_chunks > 1 and head.bias is None:
            copied = self.tape.block(INT64 * sizes.tokens if copies else 0)
            chunks = self.training_options.loss_chunks
            return self.operators.chunked_loss(normed, head.weight, copied, **shape, chunks=chunks)
        logits = self._by_columns(normed, head, rows=sizes.rows, of_layer=False)
        del normed
        targets = self.tape.block(INT64 * sizes.tokens) if copies else batch.targets
        return self.operators.loss(logits, targets, tokens=sizes.tokens, rows=sizes.rows)

    def _norm(self, x: Value, norm: NormVectors) -> Value:
        return self.operators.norm(x, *norm, tokens=self.sizes.local_tokens, hidden=self.sizes.hidden)

    def _added_and_normalised(self, x: Value, branch: Value, norm: NormVectors) -> tuple[Value, Value]:
        tokens, hidden = self.sizes.local_tokens, self.sizes.hidden
        return self.operators.added_and_normalised(x, branch, *norm, tokens=tokens, hidden=hidden)

    def _by_columns(self, x: Value, matrix: Affine, *, rows: int, of_layer: bool = True) -> Value:
        """The rank's part of the output of a matrix whose columns are split."""
        sizes = self.sizes
        x = self.operators.for_columns(x, elements=sizes.states)
        return self.operators.linear(
            x, *matrix, tokens=sizes.tokens, columns=sizes.hidden, rows=rows, of_layer=of_layer
        )

    def _by_rows(self, x: Value, matrix: Affine, *, columns: int) -> Value:
        """The output of a matrix whose rows are split."""
        hidden = self.sizes.hidden
        x = self.operators.linear(x, *matrix, tokens=self.sizes.tokens, columns=columns, rows=hidden)
        return self.operators.of_rows(x, elements=self.sizes.states)

    def embedded(self, tokens: MemoryBlock) -> Value:
        """Hidden states of tokens, where the embedding is here."""
        operators, sizes, parameters = self.operators, self.sizes, self.parameters
        states = sizes.local_states
        assert parameters.embedding is not None
        x = operators.embedding(
            tokens,
            parameters.embedding,
            tokens=sizes.tokens,
            rows=sizes.rows,
            hidden=sizes.hidden,
            ranks=self.layout.tensor_parallel,
        )
        x = operators.of_rows(x, elements=sizes.states)
        if self.recipe.embedding_gradient_shrink is not None:
            learning, fixed = operators.scaled(x, elements=states), operators.block(states)
            x = operators.sum(learning, Value(fixed), elements=states)
            del learning, fixed
        if self.architecture.scaled_embedding:
            x = operators.scaled(x, elements=states)
        if parameters.position is not None:
            read = self._positions(parameters.position)
            x = operators.sum(x, read, elements=states)
            del read
        if parameters.embedding_norm is not None:
            x = self._norm(x, parameters.embedding_norm)
        return operators.dropout(x, self.recipe.embedding_dropout, elements=states)

    def _positions(self, table: ParameterLeaf) -> Value:
        """A view of the learned positions; those that a context-parallel rank has are looked up."""
        sizes, rows = self.sizes, self.sizes.keys_length + self.architecture.extra_positions
        if sizes.length == sizes.keys_length:
            return self.operators.positions(table, rows=rows, read=sizes.length, hidden=sizes.hidden)
        read = sizes.local_tokens // sizes.samples
        indices = self.tape.block(INT64 * sizes.length)
        return self.operators.embedding(indices, table, tokens=read, rows=rows, hidden=sizes.hidden)

    def _mask(self, batch: BatchBlocks) -> Value:
        """The mask's input to attention: Triton's kernel has the slopes or the positions that are seen."""
        if self.layout.fused_attention and self.layout.context_parallel == 1:
            return Value(self.tape.block(0))
        if self.triton is None:
            return self.inputs.score_bias()
        if self.architecture.mask is Mask.PREFIX:
            return Value(batch.others[-1])
        has_slopes = self.architecture.position is Position.ALIBI
        return Value(self.tape.block(FP32 * self.sizes.heads if has_slopes else 0))

    def _through(self, layers: list[LayerParameters]) -> Callable[..., Any]:
        def through(x: Hidden, bias: Value, turn: Value | None = None) -> Hidden:
            for layer in layers:
                if self.sharding is None or layer.unit is None:
                    x = self._region(layer, x, bias, turn)
                else:
                    assert isinstance(x, Value)
                    entered = self.sharding.entered(layer.unit, x)
                    assert entered is not None
                    x = self.sharding.left(layer.unit, self._sum(self._region(layer, entered, bias, turn)))
                    del entered
            return x

        return through

    def _region(self, layer: LayerParameters, x: Hidden, bias: Value, turn: Value | None) -> Hidden:
        """A block, compiled as one region where blocks are compiled."""
        self.tape.count("module", times=len(BLOCK.modules))
        if not self.compiled:
            return self._block(layer, x, bias, turn)
        self.tape.count("region", variant="forward")
        self.tape.compiled = True
        x = self._block(layer, x, bias, turn)
        self.tape.compiled = False
        outputs = [x] if isinstance(x, Value) else [*x]
        node = self.tape.record(outputs, [], self._left_region, outputs=len(outputs))
        left = [Value(value.block, node, output) for output, value in enumerate(outputs)]
        return left[0] if isinstance(x, Value) else (left[0], left[1])

    def _left_region(self, _kept: list[MemoryBlock], gradients: list[MemoryBlock | None]) -> list[MemoryBlock | None]:
        self.tape.count("region", variant="backward")
        return list(gradients)

    def _block(self, layer: LayerParameters, x: Hidden, bias: Value, turn: Value | None) -> Hidden:
        operators, dropout, states = self.operators, self.recipe.hidden_dropout, self.sizes.local_states
        tokens, hidden = self.sizes.local_tokens, self.sizes.hidden
        if not isinstance(x, Value):
            return self._one_after_the_other(layer, *self._added_and_normalised(*x, layer.attention_norm), bias, turn)
        if self.architecture.norm is Norm.DEEP_NORM:
            return self._deep_norm_block(layer, x, bias, turn)
        if self.architecture.norm is Norm.OUTPUT_RMS_NORM:
            return self._output_norm_block(layer, x, bias, turn)
        if layer.query is not None:
            assert self.parameters.final_norm is not None
            x = self._norm(x, self.parameters.final_norm)
        if layer.feed_forward_norm is None:
            to_feed = self._norm(x, layer.attention_norm)
            attended = operators.dropout(self._attention(layer, to_feed, bias, turn), dropout, elements=states)
            middle = operators.sum(x, attended, elements=states)
        elif self.architecture.residual is Residual.PARALLEL:
            normal, other = operators.both_normalised(
                x, layer.attention_norm, layer.feed_forward_norm, tokens=tokens, hidden=hidden
            )
            attended = operators.dropout(self._attention(layer, normal, bias, turn), dropout, elements=states)
            middle, to_feed = operators.sum(x, attended, elements=states), other()
            del other
        else:
            return self._one_after_the_other(layer, x, self._norm(x, layer.attention_norm), bias, turn)
        fed = operators.dropout(self._feed_forward(layer, to_feed), dropout, elements=states)
        return operators.sum(middle, fed, elements=states)

    def _one_after_the_other(
        self, layer: LayerParameters, x: Value, normal: Value, bias: Value, turn: Value | None
    ) -> Hidden:
        operators, dropout, states = self.operators, self.recipe.hidden_dropout, self.sizes.local_states
        assert layer.feed_forward_norm is not None
        attended = operators.dropout(self._attention(layer, normal, bias, turn), dropout, elements=states)
        middle, to_feed = self._added_and_normalised(x, attended, layer.feed_forward_norm)
        fed = operators.dropout(self._feed_forward(layer, to_feed), dropout, elements=states)
        return (middle, fed) if self.leaves_sums else operators.sum(middle, fed, elements=states)

    def _deep_norm_block(self, layer: LayerParameters, x: Value, bias: Value, turn: Value | None) -> Value:
        operators, dropout, states = self.operators, self.recipe.hidden_dropout, self.sizes.local_states
        tokens, hidden = self.sizes.local_tokens, self.sizes.hidden
        assert layer.feed_forward_norm is not None
        attended = operators.dropout(self._attention(layer, x, bias, turn), dropout, elements=states)
        middle = operators.normalised_sum(x, attended, *layer.attention_norm, tokens=tokens, hidden=hidden)
        fed = operators.dropout(self._feed_forward(layer, middle), dropout, elements=states)
        return operators.normalised_sum(middle, fed, *layer.feed_forward_norm, tokens=tokens, hidden=hidden)

    def _output_norm_block(self, layer: LayerParameters, x: Value, bias: Value, turn: Value | None) -> Value:
        operators, dropout, states = self.operators, self.recipe.hidden_dropout, self.sizes.local_states
        assert layer.feed_forward_norm is not None
        attended = self._norm(self._attention(layer, x, bias, turn), layer.attention_norm)
        middle = operators.sum(x, operators.dropout(attended, dropout, elements=states), elements=states)
        del attended
        fed = self._norm(self._feed_forward(layer, middle), layer.feed_forward_norm)
        return operators.sum(middle, operators.dropout(fed, dropout, elements=states), elements=states)

    def _attention(self, layer: LayerParameters, x: Value, bias: Value, turn: Value | None) -> Value:
        operators, sizes = self.operators, self.sizes
        if isinstance(layer.query_key_value, LatentParameters):
            assert turn is not None
            latent = LatentLayer(operators, self.architecture, sizes, turns=self.inputs.turns)
            q, k, v = latent.parts(x, layer.query_key_value, turn)
            if self.layout.context_parallel > 1:
                k = self.context.gathered(k, elements=sizes.keys, copies=False)
                v = self.context.gathered(v, elements=sizes.values, copies=True)
            context = self.context.of(q, k, v, bias, grouped=False)
            return self._by_rows(context, layer.projection, columns=sizes.context_width)
        apart = [] if layer.query is None else [self.context.queries(self.parameters.query_position, layer.query)]
        parts = 3 - len(apart)
        fused = self._by_columns(x, layer.query_key_value, rows=(parts - 2) * sizes.inner + 2 * sizes.keys_inner)
        if self.packs:
            context = operators.packed_attention(fused, elements=sizes.queries, sizes=(*sizes.batched, sizes.head_dim))
            del fused
            return self._by_rows(context, layer.projection, columns=sizes.context_width)
        grouped = sizes.grouped and not apart
        if grouped:
            split = operators.groups(fused, elements=sizes.queries + 2 * sizes.keys)
        else:
            split = operators.parts(fused, parts=parts, elements=sizes.keys)
        q, k, v = [*apart, *split]
        del fused, apart, split
        if layer.query_norm is not None and layer.key_norm is not None:
            q = self.context.normed(q, layer.query_norm, heads=sizes.heads)
            k = self.context.normed(k, layer.key_norm, heads=sizes.kv_heads)
        if turn is not None:
            q, k = self.context.rotated(q, k, turn, turns=self.inputs.turns)
        if self.layout.context_parallel > 1:
            k = self.context.gathered(k, elements=sizes.keys, copies=turn is None)
            v = self.context.gathered(v, elements=sizes.keys, copies=True)
        apart_by_group = grouped and sizes.kv_heads > 1 and not self.context.norms_projections
        context = self.context.of(q, k, v, bias, grouped=apart_by_group)
        return self._by_rows(context, layer.projection, columns=sizes.context_width)

    def _feed_forward(self, layer: LayerParameters, x: Value) -> Value:
        if isinstance(layer.feed_forward, FeedForwardParameters):
            return self._one_feed_forward(layer.feed_forward, x)
        parameters, sizes = layer.feed_forward, self.sizes
        x = self.operators.for_columns(x, elements=sizes.states)
        experts = ExpertLayer(
            self.operators,
            self.architecture,
            tokens=sizes.tokens,
            width=sizes.expert_width,
            sequences=sizes.samples,
            ranks=self.layout.expert_parallel,
            sharding=self.sharding,
            unit=None if layer.unit is None else layer.unit.experts,
            computed=None if self.expert_rows is None else self.expert_rows[self._number_of_mixture[id(layer)]],
        )
        out = experts.routed(x, parameters, self._activated)
        if parameters.shared is not None:
            shared = self._own_feed_forward(parameters.shared, x)
            if parameters.shared_gate is not None:
                shared = experts.gated(shared, x, parameters.shared_gate)
            out = self.operators.sum(out, shared, elements=sizes.states)
            del shared
        return self.operators.of_rows(out, elements=sizes.states)

    def _one_feed_forward(self, parameters: FeedForwardParameters, x: Value) -> Value:
        x = self.operators.for_columns(x, elements=self.sizes.states)
        return self.operators.of_rows(self._own_feed_forward(parameters, x), elements=self.sizes.states)

    def _own_feed_forward(self, parameters: FeedForwardParameters, x: Value) -> Value:
        """Output of this rank's columns of a feed-forward part."""
        tokens, hidden, width = self.sizes.tokens, self.sizes.hidden, parameters.width
        rows = (2 if self.architecture.activation.gated else 1) * width
        in_epilogues = self.operators.has_gelu_in_epilogues(columns=hidden, rows=width)
        if self.architecture.activation is Activation.GELU_TANH and in_epilogues:
            matrices = parameters.expansion, parameters.contraction
            return self.operators.gelu_feed_forward(x, *matrices, tokens=tokens, hidden=hidden, width=width)
        x = self.operators.linear(x, *parameters.expansion, tokens=tokens, columns=hidden, rows=rows)
        x = self._activated(x, tokens * width)
        return self.operators.linear(x, *parameters.contraction, tokens=tokens, columns=width, rows=hidden)

    def _activated(self, x: Value, elements: int) -> Value:
        """The activation of an expansion; of a gated one there are twice as many `elements` before."""
        operators, activation = self.operators, self.architecture.activation
        if activation.gated:
            return operators.gated(x, GATED[activation], elements=elements)
        if activation is Activation.FAST_GELU:
            return operators.fast_gelu(x, elements=elements)
        if activation is Activation.RELU:
            return operators.relu(x, elements=elements)
        if activation is Activation.RELU_SQUARED:
            return operators.relu_squared(x, elements=elements)
        return operators.element_wise(x, ELEMENT_WISE[activation], elements=elements)
