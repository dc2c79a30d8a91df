"""Queries, keys and values of latent attention as suite/execute/model/latent_attention.py makes them."""

from __future__ import annotations

from reference_runs.run import Architecture
from suite.predict.simulation.autograd_tape import Value
from suite.predict.simulation.decoder_parameters import ChunkSizes, LatentParameters
from suite.predict.simulation.operators import Operators


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
