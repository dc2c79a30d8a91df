"""Facts that many families' configurations give alike: widths, heads, block, activation, biases, dropouts, window."""

from __future__ import annotations

from reference_runs.errors import InputError
from reference_runs.hugging_face.configuration import ACTIVATIONS, GATED_ACTIVATIONS, Configuration
from reference_runs.hugging_face.rotary import rotary
from reference_runs.sourced import Sourced


def shape(c: Configuration, *, width: str | None = "intermediate_size", fourfold: bool = False) -> None:
    """Layers, widths and vocabulary; with `fourfold` the feed-forward width is 4 * hidden where `width` is absent."""
    if "architecture.layers" not in c.facts:
        c.put("layers", c.count("num_hidden_layers", "n_layer", "n_layers"))
    c.put("hidden", c.count("hidden_size", "n_embd", "n_embed", "d_model"))
    c.put("heads", c.count("num_attention_heads", "n_head", "n_heads"))
    if width is not None:
        is_absent = fourfold and c.raw(width) is None
        four = c.model(4 * c.known("hidden"), f"4 * hidden where {width} is not given")
        c.put("ffn_hidden", four if is_absent else c.count(width))
    c.put("vocabulary", c.count("vocab_size"))
    stored = "equal to vocabulary: the configuration has the rows that are stored, not how many of them are tokens"
    c.put("padded_vocabulary", c.derived(c.known("vocabulary"), stored))


def ungrouped(c: Configuration) -> None:
    """Heads of a family that has no other number of key-value heads, and no other size than hidden / heads."""
    attention_heads(c, kv_heads=c.model(c.known("heads"), "as many as heads"), sized=False)


def attention_heads(
    c: Configuration, *, kv_heads: Sourced | None = None, head_dim: int | None = None, sized: bool = True
) -> None:
    """Key-value heads, by default as many as heads, and the size of a head, by default hidden / heads.

    Args:
        sized: whether the configuration may give the size.

    Raises:
        InputError: the size is not given, and heads do not divide hidden.
    """
    hidden, heads = c.known("hidden"), c.known("heads")
    if kv_heads is None:
        is_given = c.raw("num_key_value_heads") is not None
        kv_heads = c.count("num_key_value_heads") if is_given else c.derived(heads, "equal to heads")
    c.put("kv_heads", kv_heads)
    if sized and (c.raw("head_dim") is not None or head_dim is not None):
        c.put("head_dim", c.count("head_dim", default=head_dim))
    elif hidden % heads:
        raise InputError(f"{heads} heads do not divide hidden", got=hidden, allowed="a head_dim", where=c.where)
    else:
        c.put("head_dim", c.derived(hidden // heads, "hidden / heads"))


def pre_norm_block(c: Configuration, norm: str, epsilon: Sourced, *, residual: str = "sequential") -> None:
    """A causal block with norms before what they feed, and no norm of the embedding."""
    c.put("norm", c.model(norm))
    c.put("norm_epsilon", epsilon)
    c.put("embedding_norm", c.model(False))
    c.put("residual", c.model(residual))
    c.put("mask", c.model("causal"))


def activation(c: Configuration, key: str, *, default: str, gated: bool = False) -> None:
    """The activation by transformers' name for it."""
    c.put("activation", c.choice(key, GATED_ACTIVATIONS if gated else ACTIVATIONS, default=default))


def biases(
    c: Configuration,
    *,
    attention: Sourced | None = None,
    projection: Sourced | None = None,
    feed_forward: Sourced | None = None,
    norm: Sourced | None = None,
) -> None:
    """`biases` as the feed-forward part's, and what differs by place: `norm` of LayerNorms. Nothing said is none."""
    none = c.model(False, "no bias")
    everywhere = feed_forward or none
    c.put("biases", everywhere)
    for place, fact in (("attention_bias", attention or none), ("projection_bias", projection or none)):
        if fact.value != everywhere.value:
            c.put(place, fact)
    if norm is not None and norm.value != everywhere.value:
        c.put("norm_bias", norm)


def tied(c: Configuration, *, default: bool) -> None:
    """Whether the head is the embedding."""
    c.put("tied_embeddings", c.flag("tie_word_embeddings", default=default))


def training(
    c: Configuration,
    *,
    embedding: tuple[str, float] | None = None,
    hidden: tuple[str, float] | None = None,
    attention: tuple[str, float] = ("attention_dropout", 0.0),
    deviation: tuple[str, float] = ("initializer_range", 0.02),
) -> None:
    """Put the recipe of a configuration: dropouts and deviation of initial weights, each a key and its default."""
    for name, key in (("embedding_dropout", embedding), ("hidden_dropout", hidden), ("attention_dropout", attention)):
        fact = c.number(key[0], default=key[1]) if key else c.model(0.0, "no such dropout")
        c.put(name, fact, section="recipe")
    c.put("init_std", c.number(deviation[0], default=deviation[1]), section="recipe")


def sliding_window(c: Configuration, *, default: int | None = None) -> None:
    """A window of every layer's attention, where there is one: null is none."""
    if c.raw("sliding_window") is not None or (default is not None and not c.given("sliding_window")):
        c.put("sliding_window", c.count("sliding_window", default=default))


def switched_window(c: Configuration) -> None:
    """Qwen's window: of layers from max_window_layers on where use_sliding_window is set, or as layer_types says.

    Raises:
        InputError: a window of some layers alone.
    """
    layers, kinds = c.known("layers"), c.raw("layer_types")
    slides = bool(c.flag("use_sliding_window", default=False).value)
    first = c.raw("max_window_layers")
    if isinstance(kinds, list):
        sliding = kinds.count("sliding_attention")
        others = set(kinds) - {"sliding_attention", "full_attention"}
        if others or sliding not in (0, len(kinds)):
            raise c.refusal("layer_types", allowed="full_attention or sliding_attention, the same in all layers")
    else:
        full = min(first if isinstance(first, int) else 28, layers)  # 28: transformers' default
        sliding = layers - full if slides else 0
        if sliding and full:
            raise c.refusal("max_window_layers", allowed="0, or as many as layers: a window of all layers or of none")
    if sliding:
        sliding_window(c, default=4096)
    else:
        c.raw("sliding_window")


def llama_like(
    c: Configuration,
    *,
    sequence: int,
    epsilon: float = 1e-6,
    base: float = 10000.0,
    share: float = 1.0,
    head_dim: int | None = None,
) -> None:
    """Pre-RMSNorm, SwiGLU, rotary positions of a share of each head, grouped queries; biases are the caller's."""
    shape(c)
    attention_heads(c, head_dim=head_dim)
    c.training_sequence("max_position_embeddings", default=sequence)
    rotary(c, base=base, share=share)
    pre_norm_block(c, "pre-rms-norm", c.number("rms_norm_eps", default=epsilon))
    activation(c, "hidden_act", default="silu", gated=True)
    tied(c, default=False)
    training(c)
