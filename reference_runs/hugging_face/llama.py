"""Llama and its dense descendants: Mistral, Qwen 2 and 3, Gemma, OLMo 1 and 2."""

from __future__ import annotations

from reference_runs.hugging_face.configuration import Configuration
from reference_runs.hugging_face.parts import (
    activation,
    attention_heads,
    biases,
    llama_like,
    pre_norm_block,
    shape,
    sliding_window,
    switched_window,
    tied,
    training,
)
from reference_runs.hugging_face.rotary import rotary


def llama(c: Configuration) -> None:
    """Llama 1 to 3, and what is built as they are (TinyLlama, Yi, DeepSeek-LLM)."""
    llama_like(c, sequence=2048)
    attention = c.flag("attention_bias", default=False)
    biases(c, attention=attention, projection=attention, feed_forward=c.flag("mlp_bias", default=False))


def phi3(c: Configuration) -> None:
    """Phi 3 and 4: Llama with one matrix for query, key and value, one for both halves; dropout."""
    shape(c)
    attention_heads(c)
    c.raw("original_max_position_embeddings")  # of what stretches positions, which `rotary` reads
    c.training_sequence("max_position_embeddings", default=4096)
    rotary(c)
    pre_norm_block(c, "pre-rms-norm", c.number("rms_norm_eps", default=1e-5))
    activation(c, "hidden_act", default="silu", gated=True)
    c.only("attention_bias", None, False, default=None)
    biases(c)
    tied(c, default=False)
    training(c, embedding=("embd_pdrop", 0.0), hidden=("resid_pdrop", 0.0))
    sliding_window(c)


def mistral(c: Configuration) -> None:
    """Mistral 7B: a sliding window of all layers."""
    llama_like(c, sequence=131072)
    biases(c)
    sliding_window(c, default=4096)


def qwen2(c: Configuration) -> None:
    """Qwen 1.5 to 2.5: biases of query, key and value alone."""
    llama_like(c, sequence=32768)
    biases(c, attention=c.model(True, "bias of query, key and value"))
    switched_window(c)


def qwen3(c: Configuration) -> None:
    """Qwen 3: norms of queries and keys by head, whose size is 128 by default."""
    llama_like(c, sequence=32768, head_dim=128)
    attention = c.flag("attention_bias", default=False)
    biases(c, attention=attention, projection=attention)
    c.put("query_key_norm", c.model("head", "q_norm, k_norm"))
    switched_window(c)


def gemma(c: Configuration) -> None:
    """Gemma 1: GeGLU by the tanh form, heads of 256, tied tables; its gains are kept less 1, which no step shows."""
    shape(c)
    attention_heads(c, head_dim=256)
    c.training_sequence("max_position_embeddings", default=8192)
    rotary(c)
    pre_norm_block(c, "pre-rms-norm", c.number("rms_norm_eps", default=1e-6))
    legacy = c.raw("hidden_act") == "gelu" and c.raw("hidden_activation") is None
    if legacy:
        c.put("activation", c.model("geglu-tanh", 'what the released hidden_act "gelu" means'))
    else:
        name = "hidden_act" if c.raw("hidden_activation") is None else "hidden_activation"
        activation(c, name, default="gelu_pytorch_tanh", gated=True)
    attention = c.flag("attention_bias", default=False)
    biases(c, attention=attention, projection=attention)
    tied(c, default=True)
    training(c)
    c.only("use_bidirectional_attention", None, False, default=None)
    c.put("scaled_embedding", c.model(True, "embeddings times sqrt(hidden)"))


def olmo(c: Configuration) -> None:
    """OLMo 1: LayerNorms without gain and bias."""
    shape(c)
    attention_heads(c)
    c.training_sequence("max_position_embeddings", default=2048)
    rotary(c)
    pre_norm_block(c, "pre-layer-norm", c.model(1e-5))
    c.put("norm_gain", c.model(False, "norms without parameters"))
    activation(c, "hidden_act", default="silu", gated=True)
    attention = c.flag("attention_bias", default=False)
    biases(c, attention=attention, projection=attention)
    tied(c, default=False)
    training(c)
    c.only("clip_qkv", None, default=None)


def olmo2(c: Configuration) -> None:
    """OLMo 2: RMSNorms of what is added, and of whole projections of queries and keys."""
    llama_like(c, sequence=2048, epsilon=1e-5)
    c.put("norm", c.model("output-rms-norm", "post_attention_layernorm, post_feedforward_layernorm"))
    c.put("query_key_norm", c.model("projection", "q_norm, k_norm"))
    attention = c.flag("attention_bias", default=False)
    biases(c, attention=attention, projection=attention)
