"""The parameters of one chunk of the decoder on one rank, and the sizes of what flows through it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from reference_runs.placement import chunk_layers
from reference_runs.run import Architecture, Position, QueryKeyNorm, Workload
from suite.predict.simulation.autograd_tape import ParameterLeaf
from suite.predict.simulation.fsdp import FullySharding, Unit


class Affine(NamedTuple):
    """Weight and bias of a matrix."""

    weight: ParameterLeaf
    bias: ParameterLeaf | None


class NormVectors(NamedTuple):
    """Gain and bias of a norm."""

    gain: ParameterLeaf | None
    bias: ParameterLeaf | None


class FeedForwardParameters(NamedTuple):
    """Parameters of a feed-forward part; `width` columns after the activation, on this rank."""

    expansion: Affine
    contraction: Affine
    width: int


class ExpertParameters(NamedTuple):
    """Parameters of a mixture-of-experts layer: all of a rank's experts together, and those for every token."""

    router: ParameterLeaf
    expansion: ParameterLeaf
    contraction: ParameterLeaf
    shared: FeedForwardParameters | None
    shared_gate: ParameterLeaf | None


class LatentParameters(NamedTuple):
    """Parameters of latent attention before its scores; `query` multiplies hidden states that are not compressed."""

    query_compression: Affine | None
    query_norm: ParameterLeaf | None
    query: Affine
    key_value_compression: Affine
    key_value_norm: ParameterLeaf
    key_value_expansion: Affine


class LayerParameters(NamedTuple):
    """Parameters of a layer; `query` apart from keys and values in a top-query layer alone. A norm may serve both."""

    unit: Unit | None
    attention_norm: NormVectors
    query: Affine | None
    query_key_value: Affine | LatentParameters
    query_norm: ParameterLeaf | None
    key_norm: ParameterLeaf | None
    projection: Affine
    feed_forward_norm: NormVectors | None
    feed_forward: FeedForwardParameters | ExpertParameters


class ChunkParameters(NamedTuple):
    """Parameters of a chunk: of its layers, and around them what the first and the last chunk have."""

    embedding: ParameterLeaf | None
    position: ParameterLeaf | None
    embedding_norm: NormVectors | None
    layers: list[LayerParameters]
    final_norm: NormVectors | None
    query_position: ParameterLeaf | None
    head: Affine | None


class ChunkSizes(NamedTuple):
    """Numbers of elements of a rank's tensors, of one micro-batch.

    Args:
        length: positions of a sequence that this rank has; `keys_length` all of them, whose keys these see.
        heads, width, rows: of attention, feed-forward part and vocabulary, that this rank has.
        expert_width: that it has of each expert.
        local_tokens, local_states: of hidden states between the matrices that are split.
        kv_heads: keys and values that this rank has, each of `group` heads.
        inner, keys_inner: columns of the queries, and of keys and values each; `queries`, `keys` all elements of them.
    """

    samples: int
    length: int
    keys_length: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    expert_width: int
    rows: int
    tokens: int
    states: int
    local_tokens: int
    local_states: int
    inner: int
    keys_inner: int
    queries: int
    keys: int
    scores: int
    value_head_dim: int

    @property
    def grouped(self) -> bool:
        """Whether heads share keys and values."""
        return self.kv_heads < self.heads

    @property
    def strided(self) -> bool:
        """Whether a key's or value's part of a fused projection is copied before a batched product."""
        return self.samples > 1 and self.kv_heads > 1

    @property
    def batched(self) -> tuple[int, int]:
        """Sizes of attention's batched products but that of a head: samples times heads, and the sequence.

        Assumed of a rank that has a part of every sequence: scores of all keys take as long as squares side by side.
        """
        return self.samples * self.heads * (self.keys_length // self.length), self.length

    @property
    def values(self) -> int:
        """Elements of the values."""
        return self.tokens * self.kv_heads * self.value_head_dim

    @property
    def seen_keys(self) -> int:
        """Elements of the keys of all positions."""
        return self.samples * self.keys_length * self.keys_inner

    @property
    def seen_values(self) -> int:
        """Elements of the values of all positions."""
        return self.samples * self.keys_length * self.kv_heads * self.value_head_dim

    @property
    def context_width(self) -> int:
        """Columns of the weighed values of all heads that this rank has."""
        return self.heads * self.value_head_dim

    @property
    def context(self) -> int:
        """Elements of them."""
        return self.tokens * self.context_width


def chunk_sizes(workload: Workload) -> ChunkSizes:
    """The sizes on every rank of a layout."""
    architecture, _, layout = workload
    samples, keys_length, ranks = layout.micro_batch, architecture.sequence, layout.tensor_parallel
    length = keys_length // layout.context_parallel
    hidden, width = architecture.hidden, architecture.ffn_hidden // ranks
    heads, head_dim = architecture.heads // ranks, architecture.head_dim
    kv_heads = max(architecture.kv_heads // ranks, 1)
    tokens = samples * length
    local_tokens = tokens // (ranks if layout.sequence_parallel else 1)
    return ChunkSizes(
        samples=samples,
        length=length,
        keys_length=keys_length,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        width=width,
        expert_width=architecture.expert_width // ranks,
        rows=architecture.padded_vocabulary // ranks,
        tokens=tokens,
        states=tokens * hidden,
        local_tokens=local_tokens,
        local_states=local_tokens * hidden,
        inner=heads * head_dim,
        keys_inner=kv_heads * head_dim,
        queries=tokens * heads * head_dim,
        keys=tokens * kv_heads * head_dim,
        scores=tokens * heads * keys_length,
        value_head_dim=architecture.value_head_dim or head_dim,
    )


class NewLeaf(Protocol):
    """Makes the leaf of a parameter."""

    def __call__(
        self, unit: Unit | None, rows: int, columns: int = 1, readers: int = 1, *, apart: bool = False
    ) -> ParameterLeaf:
        """A parameter of so many rows and columns, which so many operators read.

        Args:
            apart: whether it is of experts that are shared out, or of a table that stages without flush share.
        """


def chunk_parameters(
    workload: Workload,
    new_leaf: NewLeaf,
    *,
    chunk: int,
    sharding: FullySharding | None,
    table: ParameterLeaf | None = None,
) -> ChunkParameters:
    """The parameters of a chunk of the model: embedding in the first one, final norm and head in the last one.

    Args:
        table: the embedding of another chunk that is here, which a tied head shares.
    """
    architecture, layout = workload.architecture, workload.layout
    sizes, dealt = chunk_sizes(workload), chunk_layers(architecture.layers, layout)
    first, last, layers = chunk == 0, chunk == len(dealt) - 1, len(dealt[chunk])
    hidden, tied = architecture.hidden, architecture.tied_embeddings
    shares = tied and not layout.flushes
    embedding = new_leaf(None, sizes.rows, hidden, 2 if tied and last else 1, apart=shares) if first else None
    learned = first and architecture.position is Position.LEARNED
    position = new_leaf(None, sizes.keys_length + architecture.extra_positions, hidden) if learned else None
    embedding_norm = None
    if first and architecture.embedding_norm:
        embedding_norm = _norm(architecture, new_leaf, None)
    top_query = layers - 1 if last and architecture.top_query_layer else None
    in_layers = []
    for layer, number in enumerate(dealt[chunk]):
        unit = None if sharding is None else sharding.new_layer()
        kind = architecture.of_dense_layers if number < architecture.dense_layers else architecture
        at_top = layer == top_query
        in_layer = _layer_parameters(kind, new_leaf, sizes, unit, top_query=at_top, expert_ranks=layout.expert_parallel)
        if not kind.norm.before:  # of a block's modules it is the last one
            in_layer = in_layer._replace(feed_forward_norm=_norm(kind, new_leaf, unit))
        in_layers.append(in_layer)
    final_norm = _norm(architecture, new_leaf, None) if last else None
    query_position = new_leaf(None, sizes.keys_length, hidden) if top_query is not None else None
    head = None
    if last:
        shared = (embedding or table) if tied else None
        weight = shared or new_leaf(None, sizes.rows, hidden, apart=shares)
        head = Affine(weight, new_leaf(None, sizes.rows) if architecture.bias.head else None)
    return ChunkParameters(embedding, position, embedding_norm, in_layers, final_norm, query_position, head)


def _norm(architecture: Architecture, new_leaf: NewLeaf, unit: Unit | None) -> NormVectors:
    gain = new_leaf(unit, architecture.hidden) if architecture.norm_gain else None
    return NormVectors(gain, new_leaf(unit, architecture.hidden) if architecture.bias.norm else None)


def _norm_between(architecture: Architecture, new_leaf: NewLeaf, unit: Unit | None) -> NormVectors | None:
    """A norm between attention and feed-forward part; None where one serves both, or norms come after both."""
    if architecture.shared_norm or not architecture.norm.before:
        return None
    return _norm(architecture, new_leaf, unit)


def _layer_parameters(
    architecture: Architecture,
    new_leaf: NewLeaf,
    sizes: ChunkSizes,
    unit: Unit | None,
    *,
    top_query: bool,
    expert_ranks: int,
) -> LayerParameters:
    hidden, bias, gate = sizes.hidden, architecture.bias, 2 if architecture.activation.gated else 1

    def affine(rows: int, columns: int, *, bias: bool) -> Affine:
        return Affine(new_leaf(unit, rows, columns), new_leaf(unit, rows) if bias else None)

    def of_all(width: int) -> ParameterLeaf | None:
        """The gain of a norm of queries or keys, which are so wide on one rank."""
        if architecture.query_key_norm is QueryKeyNorm.NONE:
            return None
        return new_leaf(unit, sizes.head_dim if architecture.query_key_norm is QueryKeyNorm.HEAD else width)

    def feed_forward(width: int) -> FeedForwardParameters:
        expansion = affine(gate * width, hidden, bias=bias.feed_forward)
        return FeedForwardParameters(expansion, affine(hidden, width, bias=bias.feed_forward), width)

    def experts(number: int) -> ExpertParameters:
        width, shared, apart = sizes.expert_width, architecture.shared_experts, expert_ranks > 1
        return ExpertParameters(
            router=new_leaf(unit, number, hidden),
            expansion=new_leaf(unit, number // expert_ranks * gate * width, hidden, apart=apart),
            contraction=new_leaf(unit, number // expert_ranks * hidden, width, apart=apart),
            shared=feed_forward(shared * width) if shared else None,
            shared_gate=new_leaf(unit, 1, hidden) if architecture.shared_gate else None,
        )

    def before_scores() -> Affine | LatentParameters:
        if architecture.key_value_rank is None:
            queries = 0 if top_query else sizes.inner
            return affine(queries + 2 * sizes.keys_inner, hidden, bias=bias.attention)
        rank, compressed, rotated = architecture.query_rank, architecture.key_value_rank, architecture.rotary_dim or 0
        expanded = sizes.inner - sizes.heads * rotated + sizes.context_width
        return LatentParameters(
            query_compression=None if rank is None else affine(rank, hidden, bias=False),
            query_norm=None if rank is None else new_leaf(unit, rank),
            query=affine(sizes.inner, hidden if rank is None else rank, bias=False),
            key_value_compression=affine(compressed + rotated, hidden, bias=False),
            key_value_norm=new_leaf(unit, compressed),
            key_value_expansion=affine(expanded, compressed, bias=False),
        )

    return LayerParameters(
        unit,
        attention_norm=_norm(architecture, new_leaf, unit),
        query=affine(sizes.inner, hidden, bias=bias.attention) if top_query else None,
        query_key_value=before_scores(),
        query_norm=of_all(sizes.inner),
        key_norm=of_all(sizes.keys_inner),
        projection=affine(hidden, sizes.context_width, bias=bias.projection),
        feed_forward_norm=_norm_between(architecture, new_leaf, unit),
        feed_forward=feed_forward(sizes.width) if architecture.experts is None else experts(architecture.experts),
    )
