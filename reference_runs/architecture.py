"""The shape of a model: a decoder's widths, and the choices that families of models make differently."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

import msgspec

from reference_runs.architecture_choices import Activation as Activation
from reference_runs.architecture_choices import Balancing as Balancing
from reference_runs.architecture_choices import BiasPlaces as BiasPlaces
from reference_runs.architecture_choices import Gate as Gate
from reference_runs.architecture_choices import LinearRule as LinearRule
from reference_runs.architecture_choices import Mask as Mask
from reference_runs.architecture_choices import Norm as Norm
from reference_runs.architecture_choices import Position as Position
from reference_runs.architecture_choices import QueryKeyNorm as QueryKeyNorm
from reference_runs.architecture_choices import Residual as Residual
from reference_runs.architecture_choices import RotaryScaling as RotaryScaling
from reference_runs.errors import InputError, Mistakes, belonging_mistakes
from reference_runs.quantities import Count, Epsilon, Layers, NotNegativeCount, Positive, Tokens

_ROTARY = ("rotary_dim", "rotary_base")
_ROTARY_SCALING = ("rotary_scaling_factor", "rotary_scaling_low", "rotary_scaling_high", "rotary_scaling_sequence")
_LINEAR = ("linear_heads", "linear_key_heads", "linear_key_dim", "linear_value_dim", "linear_convolution")
_WITH_EXPERTS = ("experts_per_token", "gate", "balancing")
_OF_EXPERTS = (
    "expert_ffn_hidden",
    "gate_scale",
    "auxiliary_loss_weight",
    "sequence_loss_weight",
    "balancing_rate",
    "expert_groups",
    "groups_per_token",
    "capacity_factor",
)


@lru_cache(maxsize=64)  # asked for each layer of many depths by searches
def _mixers(pattern: str) -> str:
    """Letters of a `layer_pattern` that are layers."""
    return pattern.replace("-", "")


class Architecture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model's shape. `padded_vocabulary` rows are stored and computed; `vocabulary` tokens exist.

    Args:
        head_dim: size of a head; queries are heads * head_dim wide, whatever `hidden` is.
        ffn_hidden: width after the activation; a gated one has two expansions of that width.
        extra_positions: rows of the learned position table beyond `sequence` (2 in fairseq's and OPT's).
        rotary_dim: leading dimensions of a head that are rotated, where positions are rotary.
        top_query_layer: the last layer's queries come from a second learned position table (CodeGeeX, PanGu-alpha).
        attention_bias: of query, key and value; None: as `biases`, like the next three.
        norm_bias: of LayerNorms; an RMSNorm has none.
        norm_gain: whether norms of hidden states have one (OLMo's have neither gain nor bias).
        shared_norm: one norm before both branches of a parallel block (GPT-J, Falcon-7B).
        rotary_scaling_factor: how much slower than `rotary_base` says angles of long wavelength turn; those of
            wavelengths below rotary_scaling_sequence / rotary_scaling_high stay, those above rotary_scaling_sequence /
            rotary_scaling_low are divided by it, between them it is interpolated: as `rotary_scaling` says, by bands in
            their wavelength (Llama 3.1), by YaRN in the number of their pair of dimensions.
        rotary_scaling_amplitude: factor of rotated queries and keys (YaRN).
        score_scale: factor of attention's scores besides 1 / sqrt(head_dim) (DeepSeek's with YaRN).
        mean_document: tokens of a document, its end included, where sequences are packed with several that do not see
            each other.
        scaled_embedding: whether embeddings are multiplied by sqrt(hidden) (Gemma).
        sliding_window: positions, its own included, that a token attends to.
        full_every: with a sliding window, or linear attention, every so many layers the last one attends to all
            positions (gpt-oss: 2, Qwen3-Next: 4); None: none of them.
        layer_pattern: with linear attention in place of `full_every`, which of Nemotron-H's layers stand where: M has
            linear attention, * attends to all positions, and - is a feed-forward part. `layers` counts M and *; each -
            is part of the layer of an M, and the layers of * have none.
        linear_heads: heads of linear attention's values, its `linear_value_dim` wide, by `linear_rule`.
        linear_key_heads: heads of its queries and keys, `linear_key_dim` wide, each of which several value heads share.
        linear_convolution: positions that its causal convolution of queries, keys and values sees.
        attention_gate: whether a sigmoid of further columns of the queries' projection weighs attention's context.
        attention_sinks: whether each head has a learned score that takes a share of its softmax and no value.
        query_rank: width to which latent attention compresses queries; None: they are not compressed.
        key_value_rank: width to which latent attention compresses keys and values together. Of a head's `head_dim`,
            `rotary_dim` are rotated; those of the keys are projected from the hidden state and shared by all heads.
        value_head_dim: size of a head's values under latent attention.
        experts: feed-forward parts of a layer, of which a router chooses `experts_per_token` for each token.
        expert_ffn_hidden: width of each; None: `ffn_hidden`, which is that of dense layers otherwise.
        expert_bias: whether the router's scores, and expansion and contraction of each expert, have a bias (gpt-oss).
        shared_experts: further ones of that width that every token passes.
        shared_gate: whether a sigmoid of the hidden state's product weighs what the shared ones give (Qwen 2).
        dense_layers: layers at the beginning with one feed-forward part.
        gate_scale: factor of the gates.
        sequence_loss_weight: of a loss that keeps experts equally busy within each sequence, besides `balancing`.
        balancing_rate: by which a step moves the bias that balances experts, up or down.
        expert_groups: equal groups of experts, of which a token may use `groups_per_token`.
        capacity_factor: rows that an expert takes over those of an equal share; None: all that come (dropless).
    """

    layers: Layers
    hidden: Count
    heads: Count
    head_dim: Count
    kv_heads: Count
    ffn_hidden: Count
    vocabulary: Tokens
    padded_vocabulary: Tokens
    sequence: Tokens
    position: Position
    norm: Norm
    norm_epsilon: Epsilon
    embedding_norm: bool
    activation: Activation
    residual: Residual
    mask: Mask
    biases: bool
    tied_embeddings: bool
    extra_positions: NotNegativeCount = 0
    rotary_dim: Count | None = None
    rotary_base: Positive | None = None
    top_query_layer: bool = False
    attention_bias: bool | None = None
    projection_bias: bool | None = None
    feed_forward_bias: bool | None = None
    norm_bias: bool | None = None
    head_bias: bool = False
    norm_gain: bool = True
    shared_norm: bool = False
    query_key_norm: QueryKeyNorm = QueryKeyNorm.NONE
    rotary_scaling_factor: Positive | None = None
    rotary_scaling_low: Positive | None = None
    rotary_scaling_high: Positive | None = None
    rotary_scaling_sequence: Tokens | None = None
    rotary_scaling: RotaryScaling = RotaryScaling.BANDS
    rotary_scaling_amplitude: Positive | None = None
    score_scale: Positive | None = None
    scaled_embedding: bool = False
    sliding_window: Tokens | None = None
    full_every: Count | None = None
    layer_pattern: str | None = None
    attention_sinks: bool = False
    linear_rule: LinearRule = LinearRule.GATED_DELTA
    linear_heads: Count | None = None
    linear_key_heads: Count | None = None
    linear_key_dim: Count | None = None
    linear_value_dim: Count | None = None
    linear_convolution: Count | None = None
    attention_gate: bool = False
    mean_document: Tokens | None = None
    query_rank: Count | None = None
    key_value_rank: Count | None = None
    value_head_dim: Count | None = None
    experts: Count | None = None
    experts_per_token: Count | None = None
    expert_ffn_hidden: Count | None = None
    shared_experts: NotNegativeCount = 0
    shared_gate: bool = False
    expert_bias: bool = False
    dense_layers: NotNegativeCount = 0
    gate: Gate | None = None
    gate_scale: Positive | None = None
    balancing: Balancing | None = None
    auxiliary_loss_weight: Positive | None = None
    sequence_loss_weight: Positive | None = None
    balancing_rate: Positive | None = None
    expert_groups: Count | None = None
    groups_per_token: Count | None = None
    capacity_factor: Positive | None = None

    @property
    def bias(self) -> BiasPlaces:
        """Where there are biases."""
        norms = not self.norm.root_mean_square and self.norm_gain
        attention, projection, feed_forward, norm = (
            self.biases if place is None else place
            for place in (self.attention_bias, self.projection_bias, self.feed_forward_bias, self.norm_bias)
        )
        return BiasPlaces(attention, projection, feed_forward, norm and norms, self.head_bias)

    @property
    def linear(self) -> bool:
        """Whether all layers have linear attention: those of `other_kind` where some attend to all positions."""
        return self.linear_heads is not None and not self._mixes

    @property
    def feeds_forward(self) -> bool:
        """Whether layers have a feed-forward part: all but those of * in a `layer_pattern`."""
        return self.ffn_hidden > 0

    @property
    def query_width(self) -> int:
        """Columns of all heads' queries."""
        if self.linear:
            return (self.linear_key_heads or 0) * (self.linear_key_dim or 0)
        return self.heads * self.head_dim

    @property
    def context_width(self) -> int:
        """Columns of all heads' values, and of the context that the projection reads."""
        if self.linear:
            return (self.linear_heads or 0) * (self.linear_value_dim or 0)
        return self.heads * (self.value_head_dim or self.head_dim)

    @property
    def fused_head_dim(self) -> int:
        """Size of a head in fused attention: of its queries and keys, or of its values if they are wider."""
        return max(self.head_dim, self.value_head_dim or 0)

    @property
    def expert_width(self) -> int:
        """Width of an expert after the activation."""
        return self.expert_ffn_hidden or self.ffn_hidden

    def expert_places(self, *, tokens: int) -> int | None:
        """Rows that an expert takes of so many tokens at once; None where it takes all that come.

        min(ceil(f T k / E), T) with capacity factor f, read in decimals, and k of E experts a token.
        Source: Lepikhin et al. 2020, arXiv 2006.16668, section 2.2; rounded up as by Megatron-LM,
        core/transformer/moe/moe_utils.py, get_capacity (Switch's and GShard's code round down). No token comes twice.
        """
        if self.capacity_factor is None:
            return None
        share = Fraction(str(self.capacity_factor)) * tokens * (self.experts_per_token or 0) / (self.experts or 1)
        return min(math.ceil(share), tokens)

    def expert_rows(self, *, tokens: int) -> int:
        """Rows that all experts of a layer compute of so many tokens at once: T k, or with a capacity all places."""
        places = self.expert_places(tokens=tokens)
        return tokens * (self.experts_per_token or 0) if places is None else places * (self.experts or 0)

    @property
    def of_dense_layers(self) -> Architecture:
        """The same with its dense layers alone."""
        fields = ("experts", *_WITH_EXPERTS, *_OF_EXPERTS)
        return msgspec.structs.replace(
            self, **dict.fromkeys(fields), shared_experts=0, shared_gate=False, expert_bias=False, dense_layers=0
        )

    @property
    def full_layers(self) -> int:
        """Layers that attend to all positions: of those with a window or linear attention as many as there are said."""
        if self.layer_pattern is not None:
            return self.layer_pattern.count("*")
        if self.sliding_window is None and self.linear_heads is None:
            return self.layers
        return self.layers // self.full_every if self.full_every else 0

    @property
    def first_kind_layers(self) -> int:
        """Layers of `first_kind`; 0 where all layers have the same parts."""
        return self.full_layers if self._mixes else self.dense_layers

    def is_of_first_kind(self, layer: int) -> bool:
        """Whether layer number `layer`, from 0, is of `first_kind`."""
        if self.layer_pattern is not None:
            return _mixers(self.layer_pattern)[layer] == "*"
        if self._mixes:
            return (layer + 1) % (self.full_every or 1) == 0
        return layer < self.dense_layers

    @property
    def first_kind(self) -> Architecture:
        """The same with dense layers alone, or with those alone that attend to all positions beside linear ones."""
        if self._mixes:
            ffn_hidden = self.ffn_hidden if self.layer_pattern is None else 0
            nothing = dict.fromkeys((*_LINEAR, "full_every", "layer_pattern"))
            return msgspec.structs.replace(self, ffn_hidden=ffn_hidden, **nothing)
        return self.of_dense_layers

    @property
    def other_kind(self) -> Architecture:
        """The same with the other layers alone."""
        return msgspec.structs.replace(self, full_every=None, layer_pattern=None) if self._mixes else self

    @property
    def _mixes(self) -> bool:
        """Whether layers that attend to all positions stand among those with linear attention."""
        return self.linear_heads is not None and (self.full_every is not None or self.layer_pattern is not None)

    @property
    def _is_in_pattern(self) -> bool:
        """Whether the pattern has as many M as -, beside them * alone, and `layers` of M and *."""
        pattern = self.layer_pattern or ""
        mixers, others = pattern.count("M") + pattern.count("*"), pattern.count("-")
        return pattern.count("M") == others and mixers == self.layers and mixers + others == len(pattern)

    def check(self, where: str) -> None:
        """Refuse shapes that contradict themselves.

        Raises:
            InputError: kv_heads does not divide heads, the rotated part is no even part of a head, the padding is
                negative, or a choice of a block that the rest of it has no place for; all of them at once.
        """
        Mistakes(self._contradictions(where)).refuse()

    def _contradictions(self, where: str) -> Iterator[InputError]:
        if self.heads % self.kv_heads:
            what = f"architecture.kv_heads does not divide heads = {self.heads}"
            yield InputError(what, got=self.kv_heads, where=where)
        rotary = self.position is Position.ROTARY
        yield from belonging_mistakes("architecture", self, _ROTARY, "rotary positions", is_needed=rotary, where=where)
        if self.rotary_dim is not None and (self.rotary_dim > self.head_dim or self.rotary_dim % 2):
            allowed = f"an even number up to head_dim = {self.head_dim}"
            yield InputError("architecture.rotary_dim", got=self.rotary_dim, allowed=allowed, where=where)
        if self.padded_vocabulary < self.vocabulary:
            what, allowed = "architecture.padded_vocabulary", f"at least vocabulary = {self.vocabulary}"
            yield InputError(what, got=self.padded_vocabulary, allowed=allowed, where=where)
        yield from self._rotary_scaling_mistakes(where)
        yield from self._latent_mistakes(where)
        yield from self._expert_mistakes(where)
        linear = self.linear_heads is not None
        yield from belonging_mistakes("architecture", self, _LINEAR, "linear attention", is_needed=linear, where=where)
        if linear and (self.linear_heads or 0) % (self.linear_key_heads or 1):
            what = f"architecture.linear_key_heads does not divide linear_heads = {self.linear_heads}"
            yield InputError(what, got=self.linear_key_heads, where=where)
        documents = self.mask is Mask.DOCUMENTS
        to = "mask causal-documents"
        yield from belonging_mistakes("architecture", self, ("mean_document",), to, is_needed=documents, where=where)
        for wrong, name, needed in (
            (self.norm_bias and not self.norm_gain, "norm_bias", "norm_gain"),
            (self.norm_bias and self.norm.root_mean_square, "norm_bias", f"a LayerNorm, not {self.norm.value}"),
            (self.shared_norm and self.residual is not Residual.PARALLEL, "shared_norm", "residual parallel"),
            (self.shared_norm and not self.norm.before, "shared_norm", "a norm before the block"),
            (self.sliding_window and self.mask is not Mask.CAUSAL, "sliding_window", "mask causal"),
            (self.full_every and not (self.sliding_window or linear), "full_every", "sliding_window or linear_heads"),
            (self.layer_pattern and not linear, "layer_pattern", "linear_heads"),
            (self.layer_pattern and self.full_every, "layer_pattern", "no full_every"),
            (self.layer_pattern and self.experts, "layer_pattern", "no experts"),
            (
                self.layer_pattern and not self._is_in_pattern,
                "layer_pattern",
                f"M - in pairs, * and layers = {self.layers} of M and *",
            ),
            (
                linear and (self.sliding_window or self.mask is not Mask.CAUSAL),
                "linear_heads",
                "mask causal, no window",
            ),
            (
                linear and (self.key_value_rank or self.dense_layers),
                "linear_heads",
                "no latent attention, no dense_layers",
            ),
            (linear and self.bias.attention, "linear_heads", "no attention_bias"),
            (self.attention_sinks and self.key_value_rank, "attention_sinks", "no latent attention"),
        ):
            if wrong:
                value = str(getattr(self, name)).lower()
                yield InputError(f"architecture.{name} needs {needed}", got=value, where=where)

    def _latent_mistakes(self, where: str) -> Iterator[InputError]:
        """Mistakes of latent attention: keys that it lacks, or does not go with."""
        latent = self.key_value_rank is not None
        needed, optional = ("value_head_dim",), () if latent else ("query_rank",)
        to = "latent attention (key_value_rank)"
        yield from belonging_mistakes("architecture", self, needed, to, is_needed=latent, where=where)
        yield from belonging_mistakes("architecture", self, optional, to, is_needed=False, where=where)
        if not latent:
            return
        for wrong, name, allowed in (
            (self.kv_heads != self.heads, "kv_heads", f"as many as heads, {self.heads}"),
            (self.rotary_dim is None or self.rotary_dim >= self.head_dim, "rotary_dim", f"below {self.head_dim}"),
            (self.bias.attention or self.bias.projection, "attention_bias", "false, as projection_bias"),
            (self.query_key_norm is not QueryKeyNorm.NONE, "query_key_norm", "none"),
            (self.top_query_layer, "top_query_layer", "false"),
        ):
            if wrong:
                what = f"architecture.{name} under latent attention"
                yield InputError(what, got=str(getattr(self, name)).lower(), allowed=allowed, where=where)

    def _expert_mistakes(self, where: str) -> Iterator[InputError]:
        """Mistakes of a mixture of experts: keys that it lacks, or that belong to one alone."""
        routed = self.experts is not None
        yield from belonging_mistakes("architecture", self, _WITH_EXPERTS, "experts", is_needed=routed, where=where)
        if not routed:
            yield from belonging_mistakes("architecture", self, _OF_EXPERTS, "experts", is_needed=False, where=where)
        experts, chosen = self.experts or 0, self.experts_per_token or 0
        groups, of_token = self.expert_groups or 1, self.groups_per_token or 1
        weighed = self.balancing is Balancing.AUXILIARY_LOSS
        by_bias = self.balancing is Balancing.BIAS
        for wrong, name, allowed in (
            (not routed and self.shared_experts > 0, "shared_experts", "0 without experts"),
            (self.shared_gate and not self.shared_experts, "shared_gate", "false without shared_experts"),
            (not routed and self.dense_layers > 0, "dense_layers", "0 without experts"),
            (routed and self.dense_layers >= self.layers, "dense_layers", f"below layers = {self.layers}"),
            (routed and chosen > experts, "experts_per_token", f"at most experts = {experts}"),
            (routed and weighed != (self.auxiliary_loss_weight is not None), "auxiliary_loss_weight", "with its loss"),
            (routed and bool(self.balancing_rate) and not by_bias, "balancing_rate", "with balancing bias"),
            ((self.expert_groups is None) != (self.groups_per_token is None), "groups_per_token", "with expert_groups"),
            (experts % groups > 0 or of_token > groups, "expert_groups", f"a divisor of {experts}, {of_token} or more"),
            (routed and chosen * groups > experts * of_token, "groups_per_token", f"groups of {chosen} experts"),
            (routed and self.bias.feed_forward, "feed_forward_bias", "false with experts"),
            (self.expert_bias and (not routed or self.shared_experts > 0), "expert_bias", "with routed experts alone"),
            (routed and self.top_query_layer, "top_query_layer", "false with experts"),
        ):
            if wrong:
                got = str(getattr(self, name)).lower()
                yield InputError(f"architecture.{name}", got=got, allowed=allowed, where=where)

    def _rotary_scaling_mistakes(self, where: str) -> Iterator[InputError]:
        """Where only a part of the scaling is given, or its bands overlap."""
        given = [name for name in _ROTARY_SCALING if getattr(self, name) is not None]
        if given and (self.position is not Position.ROTARY or len(given) < len(_ROTARY_SCALING)):
            what = "architecture.rotary_scaling_*: all four or none, with rotary positions"
            yield InputError(what, got=", ".join(given), allowed=", ".join(_ROTARY_SCALING), where=where)
        elif not given and (self.rotary_scaling_amplitude or self.rotary_scaling is not RotaryScaling.BANDS):
            what = "architecture.rotary_scaling, rotary_scaling_amplitude: only for scaled rotary positions"
            yield InputError(what, allowed=", ".join(_ROTARY_SCALING), where=where)
        elif self.rotary_scaling_low and self.rotary_scaling_high:
            low, high = self.rotary_scaling_low, self.rotary_scaling_high
            bands = self.rotary_scaling is RotaryScaling.BANDS
            ramp = "below" if bands else "at most"  # YaRN's ends are rounded, or drawn, apart
            if low > high or (low == high and ramp == "below"):
                allowed = f"{ramp} rotary_scaling_high = {high:g}"
                yield InputError("architecture.rotary_scaling_low", got=f"{low:g}", allowed=allowed, where=where)
