"""Scores, weights and context of a layer's attention: written like suite/execute/model/attention.py's Context."""

from __future__ import annotations

from functools import partial

from reference_runs.layout import Recomputation
from reference_runs.run import Workload
from suite.predict.simulation.autograd_tape import Value
from suite.predict.simulation.decoder_parameters import ChunkSizes
from suite.predict.simulation.operators import Operators


class AttentionContext:
    """Values weighted by the softmax of the scores."""

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
