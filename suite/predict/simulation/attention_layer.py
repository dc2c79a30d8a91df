"""Attention of a layer: its parts between the matrices, and latent attention's queries, keys and values.

Written like Context in suite/execute/model/attention.py, and like suite/execute/model/latent_attention.py.
"""

from __future__ import annotations

from functools import partial

from reference_runs.layout import Recomputation
from reference_runs.run import Architecture, QueryKeyNorm, Workload
from suite.predict.simulation.autograd_tape import ParameterLeaf, Value
from suite.predict.simulation.decoder_parameters import Affine, ChunkSizes, LatentParameters
from suite.predict.simulation.operators import Operators


class AttentionContext:
    """Values weighted by the softmax of the scores, and what makes queries and keys ready for that."""

    def __init__(self, operators: Operators, workload: Workload, sizes: ChunkSizes) -> None:
        self.operators, self.sizes = operators, sizes
        self.architecture, self.recipe, self.layout = workload

    def of(self, q: Value, k: Value, v: Value, bias: Value, *, grouped: bool) -> Value:
        """Args: grouped: whether the queries of several groups are not next to each other, unless they are rotated."""
        fused, rotates = self.layout.fused_attention, self.architecture.rotary_dim is not None
        copied = grouped and not rotates
        weighted = partial(self._fused, copies=copied) if fused else self._unfused
        if self.layout.recomputation is Recomputation.SELECTIVE:
            context = self.operators.tape.checkpoint(weighted, [q, k, v, bias])
        else:
            context = weighted(q, k, v, bias)
        # a fused attention's output lies as its queries do: as the projection wants it, unless they were copied
        contiguous = self.sizes.heads == 1 or (fused and not copied and not rotates)
        return context if contiguous else self.operators.copied(context, elements=self.sizes.context)

    def queries(self, table: ParameterLeaf | None, projection: Affine) -> Value:
        """The queries of a top-query layer: its table, copied for each of several samples, and projected."""
        operators, sizes = self.operators, self.sizes
        assert table is not None
        read = operators.positions(table, rows=sizes.length, read=sizes.length, hidden=sizes.hidden)
        if sizes.samples > 1:
            read = operators.copied(read, elements=sizes.states)
        read = operators.summed_back(read, elements=sizes.states)
        q = operators.linear(read, *projection, tokens=sizes.tokens, columns=sizes.hidden, rows=sizes.inner)
        return operators.parts(q, parts=1, elements=sizes.queries)[0]

    def gathered(self, x: Value, *, elements: int, copies: bool) -> Value:
        """Keys or values of all context-parallel ranks; those of several heads are joined head by head."""
        joins, ranks = self.sizes.samples * self.sizes.kv_heads > 1, self.layout.context_parallel
        return self.operators.of_all_positions(x, elements=elements, ranks=ranks, copies=copies, joins=joins)

    def rotated(self, q: Value, k: Value, turn: Value, *, turns: int) -> tuple[Value, Value]:
        """Queries and keys at their positions."""
        sizes, size = self.sizes, self.architecture.rotary_dim
        assert size is not None
        elements = sizes.queries, sizes.keys
        turned = sizes.tokens * sizes.heads * size, sizes.tokens * sizes.kv_heads * size
        return self.operators.rotated_pair(q, k, turn, elements=elements, turned=turned, turns=turns)

    @property
    def norms_projections(self) -> bool:
        """Whether queries, and keys, have one norm over all heads."""
        return self.architecture.query_key_norm is QueryKeyNorm.PROJECTION

    def normed(self, x: Value, gain: ParameterLeaf, *, heads: int) -> Value:
        """Queries or keys, normed over each head, or over all of them together, which copies those of several."""
        tokens, head_dim = self.sizes.tokens, self.sizes.head_dim
        if not self.norms_projections:
            return self.operators.norm_of_heads(x, gain, tokens=tokens, heads=heads, head_dim=head_dim)
        if self.sizes.kv_heads > 1:
            x = self.operators.copied(x, elements=tokens * heads * head_dim)
        return self.operators.rms_norm(x, gain, tokens=tokens, hidden=heads * head_dim)

    def _fused(self, q: Value, k: Value, v: Value, bias: Value, *, copies: bool) -> Value:
        operators, sizes, size = self.operators, self.sizes, self.architecture.fused_head_dim
        if copies:
            q = operators.copied(q, elements=sizes.queries)
        queries = sizes.tokens * sizes.heads * size
        keys = sizes.samples * sizes.keys_length * sizes.kv_heads * size
        q = operators.padded(q, elements=sizes.queries, padded=queries)
        k = operators.padded(k, elements=sizes.seen_keys, padded=keys)
        v = operators.padded(v, elements=sizes.seen_values, padded=keys)
        out = operators.attention(q, k, v, bias.block, queries=queries, keys=keys, sizes=(*sizes.batched, size))
        return operators.narrowed(out, elements=sizes.context, padded=queries)

    def _unfused(self, q: Value, k: Value, v: Value, _bias: Value) -> Value:
        operators, sizes = self.operators, self.sizes
        rotates = self.architecture.rotary_dim is not None
        if not rotates and (sizes.strided or sizes.grouped):
            q = operators.copied(q, elements=sizes.queries)
        scores = operators.scores(
            q,
            k if rotates else self._by_head(k, elements=sizes.keys),
            queries=sizes.queries,
            keys=sizes.seen_keys,
            elements=sizes.scores,
            sizes=(*sizes.batched, sizes.head_dim),
        )
        weights = operators.softmax(scores, elements=sizes.scores, length=sizes.keys_length)
        weights = operators.dropout(weights, self.recipe.attention_dropout, elements=sizes.scores)
        return operators.context(
            weights,
            self._by_head(v, elements=sizes.values),
            scores=sizes.scores,
            queries=sizes.context,
            values=sizes.seen_values,
            strided=sizes.strided or sizes.grouped,
            sizes=(*sizes.batched, sizes.value_head_dim),
        )

    def _by_head(self, part: Value, *, elements: int) -> Value:
        is_strided = self.sizes.strided and self.layout.context_parallel == 1  # gathered ones lie head by head
        return self.operators.copied(part, elements=elements) if is_strided else part


class LatentLayer:
    """Latent attention of one layer, on a rank with its heads. With sequence parallelism it compresses its positions.

    Args:
        turns: cosines and sines of every position.
    """

    def __init__(self, operators: Operators, architecture: Architecture, sizes: ChunkSizes, *, turns: int) -> None:
        assert architecture.key_value_rank is not None
        assert architecture.rotary_dim is not None
        self._operators, self._sizes, self._turns = operators, sizes, turns
        self._query_rank, self._rank = architecture.query_rank or 0, architecture.key_value_rank
        self._rotated = architecture.rotary_dim

    def parts(self, x: Value, parameters: LatentParameters, turn: Value) -> tuple[Value, Value, Value]:
        """Queries, keys and values of the hidden states x."""
        operators, sizes, tokens = self._operators, self._sizes, self._sizes.tokens
        q = operators.heads(self._queries(x, parameters), elements=sizes.queries)
        columns, shared_elements = self._rank + self._rotated, tokens * self._rotated
        state = operators.linear(
            x, *parameters.key_value_compression, tokens=sizes.local_tokens, columns=sizes.hidden, rows=columns
        )
        compressed, shared = operators.split_state(state, elements=sizes.local_tokens * columns)
        del state
        if sizes.local_tokens < tokens:
            shared = operators.copied(shared, elements=sizes.local_tokens * self._rotated)
        shared = operators.for_columns(shared, elements=shared_elements)
        q, turned = operators.rotated_pair(
            q,
            shared,
            turn,
            elements=(sizes.queries, shared_elements),
            turned=(sizes.heads * shared_elements, shared_elements),
            turns=self._turns,
        )
        own, v = self._expanded(compressed, parameters)
        k = operators.with_shared_key(turned, own, of_shared=shared_elements, elements=sizes.keys)
        return q, k, v

    def _queries(self, x: Value, parameters: LatentParameters) -> Value:
        operators, sizes, rank = self._operators, self._sizes, self._query_rank
        if parameters.query_compression is None or parameters.query_norm is None:
            x = operators.for_columns(x, elements=sizes.states)
            return operators.linear(x, *parameters.query, tokens=sizes.tokens, columns=sizes.hidden, rows=sizes.inner)
        compressed = operators.linear(
            x, *parameters.query_compression, tokens=sizes.local_tokens, columns=sizes.hidden, rows=rank
        )
        normed = operators.rms_norm(compressed, parameters.query_norm, tokens=sizes.local_tokens, hidden=rank)
        normed = operators.for_columns(normed, elements=sizes.tokens * rank)
        return operators.linear(normed, *parameters.query, tokens=sizes.tokens, columns=rank, rows=sizes.inner)

    def _expanded(self, compressed: Value, parameters: LatentParameters) -> tuple[Value, Value]:
        operators, sizes = self._operators, self._sizes
        columns = sizes.inner - sizes.heads * self._rotated + sizes.context_width
        normed = operators.rms_norm(compressed, parameters.key_value_norm, tokens=sizes.local_tokens, hidden=self._rank)
        normed = operators.for_columns(normed, elements=sizes.tokens * self._rank)
        expanded = operators.linear(
            normed, *parameters.key_value_expansion, tokens=sizes.tokens, columns=self._rank, rows=columns
        )
        return operators.split_heads(expanded, elements=sizes.tokens * columns)
