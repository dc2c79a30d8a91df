"""GPT-2 and its kin: LayerNorms, one expansion, learned, rotary or ALiBi positions."""

from __future__ import annotations

import json

from reference_runs.errors import InputError
from reference_runs.hugging_face.configuration import Configuration
from reference_runs.hugging_face.parts import (
    activation,
    attention_heads,
    biases,
    pre_norm_block,
    shape,
    sliding_window,
    tied,
    training,
    ungrouped,
)
from reference_runs.hugging_face.rotary import rotary
from reference_runs.sourced import Kind, Sourced

_GPT2_DROPOUT = 0.1


def _everywhere(c: Configuration, flag: Sourced | None = None) -> None:
    """Biases of all linear layers, or none; LayerNorms have theirs."""
    linear = flag or c.model(True, "biases")
    biases(c, attention=linear, projection=linear, feed_forward=linear, norm=c.model(True, "biases of LayerNorms"))


def gpt2(c: Configuration) -> None:
    """GPT-2: learned positions, tied tables."""
    shape(c, width="n_inner", fourfold=True)
    ungrouped(c)
    _like_gpt2(c, default="gelu_new")


def gpt_bigcode(c: Configuration) -> None:
    """StarCoder 1: GPT-2 with one key-value head, where multi_query is set."""
    shape(c, width="n_inner", fourfold=True)
    flag = c.flag("multi_query", default=True)
    c.raw("num_key_value_heads")  # follows from it
    if flag.value:
        attention_heads(c, kv_heads=Sourced(kind=Kind.STATED, source=f"{flag.source} = true", value=1))
    else:
        ungrouped(c)
    _like_gpt2(c, default="gelu_pytorch_tanh")


def _like_gpt2(c: Configuration, *, default: str) -> None:
    c.learned_positions("n_positions", default=1024)
    pre_norm_block(c, "pre-layer-norm", c.number("layer_norm_epsilon", default=1e-5))
    activation(c, "activation_function", default=default)
    _everywhere(c)
    tied(c, default=True)
    training(
        c,
        embedding=("embd_pdrop", _GPT2_DROPOUT),
        hidden=("resid_pdrop", _GPT2_DROPOUT),
        attention=("attn_pdrop", _GPT2_DROPOUT),
    )
    c.only("scale_attn_weights", True, default=True)
    c.only("scale_attn_by_inverse_layer_idx", False, default=False)
    c.only("reorder_and_upcast_attn", False, True, default=False)  # the same product, in another order


def gptj(c: Configuration) -> None:
    """GPT-J: a parallel block with one norm, no biases in its attention, a head with one."""
    shape(c, width="n_inner", fourfold=True)
    ungrouped(c)
    c.training_sequence("n_positions", default=2048)
    rotary(c, rotated=c.count("rotary_dim", default=64))
    c.only("rotary", True, default=True)
    pre_norm_block(c, "pre-layer-norm", c.number("layer_norm_epsilon", default=1e-5), residual="parallel")
    c.put("shared_norm", c.model(True, "one norm a block"))
    activation(c, "activation_function", default="gelu_new")
    linear = c.model(True, "biases of the feed-forward part")
    biases(c, feed_forward=linear, norm=c.model(True))
    c.put("head_bias", c.model(True, "a bias of the head"))
    tied(c, default=False)
    training(c, embedding=("embd_pdrop", 0.0), hidden=("resid_pdrop", 0.0), attention=("attn_pdrop", 0.0))
    c.only("scale_attn_weights", True, default=True)


def gpt_neox(c: Configuration) -> None:
    """GPT-NeoX and Pythia: rotary positions of a quarter of a head, a parallel block with two norms."""
    shape(c)
    ungrouped(c)
    c.training_sequence("max_position_embeddings", default=2048)
    rotary(c, base_key="rotary_emb_base", share_key="rotary_pct", share=0.25)
    pre_norm_block(c, "pre-layer-norm", c.number("layer_norm_eps", default=1e-5))
    flag = c.flag("use_parallel_residual", default=True)
    residual = "parallel" if flag.value else "sequential"
    c.put("residual", Sourced(kind=Kind.STATED, source=f"{flag.source} = {str(flag.value).lower()}", value=residual))
    activation(c, "hidden_act", default="gelu")
    attention = c.flag("attention_bias", default=True)
    biases(c, attention=attention, projection=attention, feed_forward=c.model(True, "biases"), norm=c.model(True))
    tied(c, default=False)
    training(c, embedding=("hidden_dropout", 0.0), hidden=("hidden_dropout", 0.0))


def opt(c: Configuration) -> None:
    """OPT: GPT-3's block with ReLU, and two rows of the position table more."""
    shape(c, width="ffn_dim")
    ungrouped(c)
    c.learned_positions("max_position_embeddings", default=2048, more=2)  # rows for padding that it never needs
    pre_norm_block(c, "pre-layer-norm", c.model(1e-5))
    activation(c, "activation_function", default="relu")
    _everywhere(c, c.flag("enable_bias", default=True))
    tied(c, default=True)
    training(c, hidden=("dropout", 0.1), deviation=("init_std", 0.02))
    c.only("do_layer_norm_before", True, default=True)
    c.only("_remove_final_layer_norm", False, default=False)
    c.only("layer_norm_elementwise_affine", True, default=True)
    c.only("word_embed_proj_dim", None, c.known("hidden"), default=None)
    c.only("layerdrop", 0, 0.0, default=0)


def bloom(c: Configuration) -> None:
    """BLOOM: ALiBi, a norm of the embedding."""
    shape(c, width="n_inner", fourfold=True)
    ungrouped(c)
    c.training_sequence("seq_length", "max_position_embeddings", default=2048)
    c.put("position", c.model("alibi"))
    pre_norm_block(c, "pre-layer-norm", c.number("layer_norm_epsilon", default=1e-5))
    c.put("embedding_norm", c.model(True, "word_embeddings_layernorm"))
    c.put("activation", c.model("gelu-tanh"))
    _everywhere(c)
    tied(c, default=True)
    training(c, hidden=("hidden_dropout", 0.0))
    c.only("apply_residual_connection_post_layernorm", False, default=False)


def falcon(c: Configuration) -> None:
    """Falcon: parallel blocks, with one norm and one key-value head (7B), or two norms and groups of queries (40B)."""
    shape(c, width="ffn_hidden_size", fourfold=True)
    c.only("alibi", False, None, default=False)  # its ALiBi is divided by sqrt(head_dim) too
    grouped, multi = c.flag("new_decoder_architecture", default=False), c.flag("multi_query", default=True)
    if grouped.value and c.raw("num_kv_heads") is not None:
        attention_heads(c, kv_heads=c.count("num_kv_heads"))
    elif multi.value and not grouped.value:
        attention_heads(c, kv_heads=Sourced(kind=Kind.STATED, source=f"{multi.source} = true", value=1))
    else:
        ungrouped(c)
    c.raw("num_kv_heads")
    c.training_sequence("max_position_embeddings", default=2048)
    rotary(c)
    parallel = c.flag("parallel_attn", default=True)
    epsilon = c.number("layer_norm_epsilon", default=1e-5)
    pre_norm_block(c, "pre-layer-norm", epsilon, residual="parallel" if parallel.value else "sequential")
    norms = c.raw("num_ln_in_parallel_attn") or (2 if grouped.value else 1)
    if parallel.value and norms == 1:
        c.put("shared_norm", c.model(True, "one norm a block"))
    activation(c, "activation", default="gelu")
    _everywhere(c, c.flag("bias", default=False))
    tied(c, default=True)
    training(c, hidden=("hidden_dropout", 0.0))
    c.only("apply_residual_connection_post_layernorm", False, default=False)


def mpt(c: Configuration) -> None:
    """MPT: ALiBi, no biases.

    Raises:
        InputError: an attention that no key of a run file describes.
    """
    shape(c, width=None)
    ratio = c.count("expansion_ratio", default=4).value
    assert isinstance(ratio, int)
    c.put("ffn_hidden", c.derived(c.known("hidden") * ratio, f"hidden * {ratio} (expansion_ratio)"))
    ungrouped(c)
    c.training_sequence("max_seq_len", default=2048)
    c.put("position", c.model("alibi"))
    pre_norm_block(c, "pre-layer-norm", c.number("layer_norm_epsilon", default=1e-5))
    c.put("activation", c.model("gelu"))
    c.only("no_bias", True, default=True)
    biases(c)
    tied(c, default=True)
    training(c, embedding=("emb_pdrop", 0.0), hidden=("resid_pdrop", 0.0))
    attention = c.raw("attn_config") or {}
    dropout = attention.get("attn_pdrop", 0.0)
    c.put("attention_dropout", Sourced(kind=Kind.STATED, source="config attn_config", value=dropout), section="recipe")
    c.only("logit_scale", None, default=None)
    for unused in ("learned_pos_emb", "embedding_fraction", "norm_type"):
        c.raw(unused)  # as transformers' model does
    plain = {"attn_type": "multihead_attention", "clip_qkv": None, "prefix_lm": False, "qk_ln": False, "alibi": True}
    for key, value in (plain | {"softmax_scale": None, "alibi_bias_max": 8}).items():
        if attention.get(key, value) != value:
            allowed = json.dumps(value)
            raise InputError(f"attn_config.{key}", got=json.dumps(attention[key]), allowed=allowed, where=c.where)


def nemotron(c: Configuration) -> None:
    """Nemotron 3 and 4: squared ReLU, rotary positions of half a head, LayerNorms whose gain is stored less 1."""
    shape(c)
    attention_heads(c)
    c.training_sequence("max_position_embeddings", default=4096)
    rotary(c, share=0.5)
    pre_norm_block(c, "pre-layer-norm", c.number("norm_eps", default=1e-5))
    activation(c, "hidden_act", default="relu2")
    attention = c.flag("attention_bias", default=False)
    linear = c.flag("mlp_bias", default=False)
    biases(c, attention=attention, projection=attention, feed_forward=linear, norm=c.model(True))
    tied(c, default=False)
    training(c, deviation=("initializer_range", 0.0134))


def phi(c: Configuration) -> None:
    """Phi 1 to 2: a parallel block with one norm, biases everywhere."""
    shape(c)
    attention_heads(c)
    c.training_sequence("max_position_embeddings", default=2048)
    rotary(c, share=0.5)
    pre_norm_block(c, "pre-layer-norm", c.number("layer_norm_eps", default=1e-5), residual="parallel")
    c.put("shared_norm", c.model(True, "one norm a block"))
    activation(c, "hidden_act", default="gelu_new")
    _everywhere(c)
    c.put("head_bias", c.model(True, "a bias of the head"))
    tied(c, default=False)
    training(c, embedding=("embd_pdrop", 0.0), hidden=("resid_pdrop", 0.0))
    c.only("qk_layernorm", False, default=False)


def starcoder2(c: Configuration) -> None:
    """StarCoder 2: rotary positions, grouped queries, biases."""
    shape(c)
    attention_heads(c)
    c.training_sequence("max_position_embeddings", default=4096)
    rotary(c)
    pre_norm_block(c, "pre-layer-norm", c.number("norm_epsilon", default=1e-5))
    activation(c, "hidden_act", default="gelu_pytorch_tanh")
    c.only("mlp_type", "default", default="default")
    c.only("norm_type", "layer_norm", default="layer_norm")
    _everywhere(c, c.flag("use_bias", default=True))
    tied(c, default=True)
    training(
        c,
        embedding=("embedding_dropout", 0.0),
        hidden=("residual_dropout", 0.0),
        deviation=("initializer_range", 0.018042),
    )
    sliding_window(c)
