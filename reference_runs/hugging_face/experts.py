"""Mixtures of experts: Mixtral, gpt-oss, Qwen 2 and 3, GLM 4.5, DeepSeek 2 and 3 with their latent attention."""

from __future__ import annotations

from reference_runs.hugging_face.configuration import Configuration
from reference_runs.hugging_face.parts import (
    activation,
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
from reference_runs.sourced import Kind, Sourced


def mixtral(c: Configuration) -> None:
    """Mixtral: a softmax over the chosen experts, in every layer."""
    llama_like(c, sequence=131072, epsilon=1e-5, base=1e6)
    biases(c)
    sliding_window(c)
    c.only("router_jitter_noise", 0, 0.0, None, default=0)
    c.put("experts", c.count("num_local_experts", "num_experts", default=8))
    c.put("experts_per_token", c.count("num_experts_per_tok", default=2))
    c.put("gate", c.model("softmax-of-chosen", "the chosen experts' weights are divided by their sum"))
    _auxiliary_loss(c, "router_aux_loss_coef", default=0.001)


def gpt_oss(c: Configuration) -> None:
    """gpt-oss: a window of every other layer, sinks, and biases of experts; its own SwiGLU counts as SwiGLU."""
    llama_like(c, sequence=131072, epsilon=1e-5, base=150000.0, head_dim=64)
    attention = c.flag("attention_bias", default=True)
    biases(c, attention=attention, projection=attention)
    _alternate_window(c, every=2)
    c.put("attention_sinks", c.model(True, "sinks"))
    c.put("experts", c.count("num_local_experts", default=128))
    c.put("experts_per_token", c.count("num_experts_per_tok", "experts_per_token", default=4))
    c.put("expert_bias", c.model(True, "router.bias, gate_up_proj_bias, down_proj_bias"))
    c.put("gate", c.model("softmax-of-chosen", "softmax over the chosen scores"))
    _auxiliary_loss(c, "router_aux_loss_coef", default=0.9)
    c.notes.append("SwiGLU's clamps, its factor 1.702 and the 1 that is added to its other half are left out")
    _without_use(c, "experts_per_token", "swiglu_limit", "initial_context_length")


def _alternate_window(c: Configuration, *, every: int) -> None:
    """A window of all layers but every so many, as `layer_types` says, or else as the family's default.

    Raises:
        InputError: another order of layers.
    """
    layers, kinds = c.known("layers"), c.raw("layer_types")
    usual = ["full_attention" if (layer + 1) % every == 0 else "sliding_attention" for layer in range(layers)]
    if kinds is not None and kinds != usual:
        raise c.refusal("layer_types", allowed=f"sliding_attention, and full_attention in every layer {every}")
    c.put("sliding_window", c.count("sliding_window", default=128))
    source = "config layer_types" if kinds is not None else "transformers default: the configuration has no layer_types"
    c.put("full_every", Sourced(kind=Kind.STATED, source=source, value=every))


def qwen3_moe(c: Configuration) -> None:
    """Qwen 3's mixtures: as Qwen 3; the dense layers of mlp_only_layers must be the first."""
    llama_like(c, sequence=32768)
    attention = c.flag("attention_bias", default=False)
    biases(c, attention=attention, projection=attention)
    c.put("query_key_norm", c.model("head", "q_norm, k_norm"))
    _qwen_experts(c, experts=128, chosen=8, width=768)


def qwen3_next(c: Configuration) -> None:
    """Qwen3-Next: linear attention in all layers but every fourth, which have a gate; experts as of Qwen 2."""
    llama_like(c, sequence=32768, share=0.25, head_dim=256)
    c.only("attention_bias", False, default=False)
    biases(c)
    c.put("query_key_norm", c.model("head", "q_norm, k_norm"))
    c.put("attention_gate", c.model(True, "the second half of q_proj"))
    _linear_layers(c)
    _without_dense(c)
    c.put("experts", c.count("num_experts", default=512))
    c.put("experts_per_token", c.count("num_experts_per_tok", default=10))
    c.put("expert_ffn_hidden", c.count("moe_intermediate_size", default=512))
    c.put("gate", _softmax(c.flag("norm_topk_prob", default=True)))
    _auxiliary_loss(c, "router_aux_loss_coef", default=0.001)
    _shared_with_gate(c, default=512)


def _linear_layers(c: Configuration) -> None:
    """Sizes of linear attention, and the layers without it.

    Raises:
        InputError: another order of layers than every so many.
    """
    layers, kinds = c.known("layers"), c.raw("layer_types")
    every = c.count("full_attention_interval", default=4)
    if kinds is not None:
        assert isinstance(kinds, list)
        number = kinds.index("full_attention") + 1 if "full_attention" in kinds else layers + 1
        usual = ["linear_attention" if (layer + 1) % number else "full_attention" for layer in range(layers)]
        if kinds != usual:
            raise c.refusal("layer_types", allowed="linear_attention, and full_attention in every so many layers")
        every = Sourced(kind=Kind.STATED, source="config layer_types", value=number)
    c.put("full_every", every)
    for name, key, default in (
        ("linear_heads", "linear_num_value_heads", 32),
        ("linear_key_heads", "linear_num_key_heads", 16),
        ("linear_key_dim", "linear_key_head_dim", 128),
        ("linear_value_dim", "linear_value_head_dim", 128),
        ("linear_convolution", "linear_conv_kernel_dim", 4),
    ):
        c.put(name, c.count(key, default=default))


def _without_dense(c: Configuration) -> None:
    """Experts in every layer.

    Raises:
        InputError: layers without experts.
    """
    c.only("decoder_sparse_step", 1, default=1)
    c.only("mlp_only_layers", [], None, default=None)  # type: ignore[arg-type]  # a list that is none of a fact's values


def qwen2_moe(c: Configuration) -> None:
    """Qwen 1.5's and 2's mixtures: experts that every token passes, together so wide, and a gate that weighs them.

    Raises:
        InputError: the shared width is no multiple of an expert's.
    """
    llama_like(c, sequence=32768)
    biases(c, attention=c.flag("qkv_bias", default=True))
    _qwen_experts(c, experts=60, chosen=4, width=1408)
    _shared_with_gate(c, default=5632)


def _shared_with_gate(c: Configuration, *, default: int) -> None:
    """Experts that every token passes, together so wide by default, and the gate that weighs them.

    Raises:
        InputError: the shared width is no multiple of an expert's.
    """
    together, width = c.count("shared_expert_intermediate_size", default=default), c.known("expert_ffn_hidden")
    assert isinstance(together.value, int)
    if together.value % width:
        raise c.refusal("shared_expert_intermediate_size", allowed=f"a multiple of moe_intermediate_size = {width}")
    number = "shared_expert_intermediate_size / moe_intermediate_size: one part as wide as so many experts"
    c.put("shared_experts", c.derived(together.value // width, number))
    c.put("shared_gate", c.model(True, "shared_expert_gate"))


def _qwen_experts(c: Configuration, *, experts: int, chosen: int, width: int) -> None:
    """Experts of every layer but the first ones of mlp_only_layers; by default so many, so wide."""
    switched_window(c)
    c.only("decoder_sparse_step", 1, default=1)
    dense = c.raw("mlp_only_layers") or []
    if dense != list(range(len(dense))):
        raise c.refusal("mlp_only_layers", allowed="the first layers, or none")
    if dense:
        c.put("dense_layers", c.derived(len(dense), "the length of config mlp_only_layers"))
    c.put("experts", c.count("num_experts", "num_local_experts", default=experts))
    c.put("experts_per_token", c.count("num_experts_per_tok", default=chosen))
    c.put("expert_ffn_hidden", c.count("moe_intermediate_size", default=width))
    c.put("gate", _softmax(c.flag("norm_topk_prob", default=False)))
    _auxiliary_loss(c, "router_aux_loss_coef", default=0.001)


def deepseek_v2(c: Configuration) -> None:
    """DeepSeek-V2: softmax gates, for the largest model within the best groups of experts."""
    _latent(c, sequence=2048)
    c.only("scoring_func", "softmax", default="softmax")
    c.only("topk_method", "greedy", "group_limited_greedy", default="greedy")
    _late_experts(c, shared=2, routed=64, width=1407, dense=0)
    c.put("gate", _softmax(c.flag("norm_topk_prob", default=False)))
    if c.raw("topk_method") == "group_limited_greedy":
        c.put("expert_groups", c.count("n_group"))
        c.put("groups_per_token", c.count("topk_group"))
    _without_use(c, "n_group", "topk_group", "seq_aux")
    _auxiliary_loss(c, "aux_loss_alpha", default=0.0)


def deepseek_v3(c: Configuration) -> None:
    """DeepSeek-V3: sigmoid gates, balanced by biases, within the best groups of experts."""
    _latent(c, sequence=4096)
    c.only("scoring_func", "sigmoid", default="sigmoid")
    c.only("topk_method", "noaux_tc", default="noaux_tc")
    _late_experts(c, shared=1, routed=256, width=2048, dense=3, chosen=8, scale=2.5)
    _sigmoid_gates(c, groups=8, of_token=4)
    _without_use(c, "aux_loss_alpha", "seq_aux", "output_router_logits")


def glm4_moe(c: Configuration) -> None:
    """GLM 4.5: DeepSeek-V3's experts after Llama's attention, whose heads are rotated in part."""
    llama_like(c, sequence=131072, epsilon=1e-5, share=0.5)
    biases(c, attention=c.flag("attention_bias", default=False))
    if c.flag("use_qk_norm", default=False).value:
        c.put("query_key_norm", Sourced(kind=Kind.STATED, source="config use_qk_norm", value="head"))
    _late_experts(c, shared=1, routed=128, width=1408, dense=1, chosen=8)
    _sigmoid_gates(c, groups=1, of_token=1)
    _without_prediction_modules(c)


def _sigmoid_gates(c: Configuration, *, groups: int, of_token: int) -> None:
    """Sigmoid gates, balanced by biases, within the best groups of experts where there are several."""
    c.only("norm_topk_prob", True, default=True)
    c.put("gate", c.model("sigmoid"))
    c.put("balancing", c.model("bias", "e_score_correction_bias"))
    number, used = c.count("n_group", default=groups), c.count("topk_group", default=of_token)
    if number.value != 1:
        c.put("expert_groups", number)
        c.put("groups_per_token", used)


def _without_use(c: Configuration, *keys: str) -> None:
    """Keys that the family's model does not read, given its other keys."""
    for key in keys:
        c.raw(key)


def _softmax(renormalised: Sourced) -> Sourced:
    """A softmax over all experts; where the chosen ones' weights are divided by their sum, a softmax over these."""
    gate, flag = ("softmax-of-chosen", "true") if renormalised.value else ("softmax", "false")
    return Sourced(kind=Kind.STATED, source=f"{renormalised.source} = {flag}", value=gate)


def _auxiliary_loss(c: Configuration, key: str, *, default: float) -> None:
    """The router's loss where it has a weight; transformers adds it where output_router_logits is set."""
    weight, _ = c.number(key, default=default), c.raw("output_router_logits")
    if not weight.value:
        c.put("balancing", Sourced(kind=Kind.STATED, source=f"{weight.source} = 0", value="none"))
        return
    why = "there is a weight for that loss; transformers adds it where output_router_logits is set, for training"
    effect = "the router's gradients, and so losses; no count of a step"
    loss = Sourced(kind=Kind.ASSUMED, source=weight.source, value="auxiliary-loss", why=why, effect=effect)
    c.put("balancing", loss)
    c.put("auxiliary_loss_weight", weight)


def _latent(c: Configuration, *, sequence: int) -> None:
    """DeepSeek's block: keys and values expanded from a latent vector, a part of each key rotated and shared."""
    shape(c)
    _without_use(
        c, "num_key_value_heads", "head_dim", "qk_head_dim", "rope_interleave"
    )  # interleaved pairs: a permutation of rows
    rotated, rest = c.count("qk_rope_head_dim", default=64), c.count("qk_nope_head_dim", default=128)
    assert isinstance(rotated.value, int)
    assert isinstance(rest.value, int)
    c.put("kv_heads", c.derived(c.known("heads"), "equal to heads: every head has keys from the latent vector"))
    c.put("head_dim", c.derived(rotated.value + rest.value, "qk_nope_head_dim + qk_rope_head_dim"))
    if c.raw("q_lora_rank") is not None or not c.given("q_lora_rank"):
        c.put("query_rank", c.count("q_lora_rank", default=1536))
    c.put("key_value_rank", c.count("kv_lora_rank", default=512))
    c.put("value_head_dim", c.count("v_head_dim", default=128))
    c.training_sequence("max_position_embeddings", default=sequence)
    rotary(c, rotated=rotated, scales_scores=True)
    pre_norm_block(c, "pre-rms-norm", c.number("rms_norm_eps", default=1e-6))
    activation(c, "hidden_act", default="silu", gated=True)
    c.only("attention_bias", False, default=False)
    c.only("mlp_bias", False, default=False)
    biases(c)
    tied(c, default=False)
    training(c)
    c.only("moe_layer_freq", 1, default=1)
    _without_prediction_modules(c)


def _without_prediction_modules(c: Configuration) -> None:
    """A note on modules of multi-token prediction, where there are any."""
    for key in ("num_nextn_predict_layers", "num_mtp_layers"):
        if modules := c.raw(key):
            c.notes.append(f"{key} = {modules}: the modules of multi-token prediction are left out")


def _late_experts(
    c: Configuration, *, shared: int, routed: int, width: int, dense: int, chosen: int | None = None, scale: float = 1.0
) -> None:
    """Routed and shared experts after the first dense layers; by default so many."""
    first = c.raw("first_k_dense_replace") if c.given("first_k_dense_replace") else dense
    if first:
        c.put("dense_layers", c.count("first_k_dense_replace", default=dense))
    c.put("experts", c.count("n_routed_experts", default=routed))
    c.put("experts_per_token", c.count("num_experts_per_tok", default=chosen))
    c.put("expert_ffn_hidden", c.count("moe_intermediate_size", default=width))
    if c.raw("n_shared_experts") or not c.given("n_shared_experts"):
        c.put("shared_experts", c.count("n_shared_experts", default=shared))
    factor = c.number("routed_scaling_factor", default=scale)
    if factor.value != 1:
        c.put("gate_scale", factor)
