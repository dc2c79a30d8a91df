"""Models whose layers have one part each: a state-space one, attention, or a feed-forward part (Nemotron-H)."""

from __future__ import annotations

from reference_runs.hugging_face.configuration import Configuration
from reference_runs.hugging_face.parts import activation, attention_heads, biases, pre_norm_block, shape, training
from reference_runs.sourced import Kind, Sourced

_LETTERS = {"linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*", "mlp": "-", "moe": "E"}

# which no layer without experts has, and what changes no step
_OF_NO_STEP = (
    *("moe_intermediate_size", "moe_latent_size", "moe_shared_expert_intermediate_size", "moe_shared_expert_overlap"),
    *("n_group", "topk_group", "n_routed_experts", "n_shared_experts", "norm_topk_prob", "num_experts_per_tok"),
    *("routed_scaling_factor", "mtp_layers_block_type", "mtp_hybrid_override_pattern", "rescale_prenorm_residual"),
    *("mamba_ssm_cache_dtype", "num_logits_to_keep", "use_mamba_kernels"),
)


def nemotron_h(c: Configuration) -> None:
    """Nemotron-H without experts: Mamba-2, attention without positions, and squared ReLU."""
    _pattern(c)
    shape(c)
    attention_heads(c, head_dim=128)
    c.training_sequence("max_position_embeddings", default=4096)
    c.put("position", c.model("none", "attention without positions"))
    c.only("sliding_window", None, default=None)
    c.only("residual_in_fp32", False, default=False)
    c.only("num_nextn_predict_layers", 0, None, default=None)
    pre_norm_block(c, "pre-rms-norm", c.number("layer_norm_epsilon", "rms_norm_eps", "norm_eps", default=1e-5))
    activation(c, "mlp_hidden_act", default="relu2")
    for key in ("attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias"):
        c.only(key, False, default=False)
    biases(c)
    c.raw("tie_word_embeddings")
    c.put("tied_embeddings", c.model(False, "no tied weights"))
    training(c, hidden=("hidden_dropout", 0.0))
    c.put("linear_rule", c.model("state-space", "NemotronHMamba2Mixer"))
    for name, key, default in (
        ("linear_heads", "mamba_num_heads", 128),
        ("linear_key_heads", "n_groups", 8),
        ("linear_key_dim", "ssm_state_size", 128),
        ("linear_value_dim", "mamba_head_dim", 64),
        ("linear_convolution", "conv_kernel", 4),
    ):
        c.put(name, c.count(key, default=default))
    c.only("chunk_size", 128, default=128)
    c.only("use_conv_bias", True, default=True)
    c.only("mamba_hidden_act", "silu", default="silu")
    for key in _OF_NO_STEP:
        c.raw(key)


def _pattern(c: Configuration) -> None:
    """Put `layer_pattern`, from the configuration's text or its list of layers, and `layers`.

    Raises:
        InputError: neither is there, a layer with experts, or not as many feed-forward layers as state-space ones.
    """
    key = next((each for each in ("layer_types", "layers_block_type") if c.given(each)), "hybrid_override_pattern")
    given = c.raw(key)
    names = [_LETTERS.get(str(each), "?") for each in given] if isinstance(given, list) else str(given)
    pattern = "".join(names)
    if set(pattern) - set("M*-") or pattern.count("M") != pattern.count("-"):
        letters = "M or linear_attention, * or full_attention, - or mlp"
        raise c.refusal(key, allowed=f"{letters}: no experts, and as many - as M")
    c.put("layer_pattern", Sourced(kind=Kind.STATED, source=f"config {key}", value=pattern))
    layers = f"layers of M and * in layer_pattern, of {len(pattern)}: those of - are counted with an M"
    c.put("layers", c.derived(len(pattern) - pattern.count("-"), layers))
    c.raw("num_hidden_layers")
