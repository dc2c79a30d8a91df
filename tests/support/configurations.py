"""Configurations of public models as transformers writes them, and the configuration that a shape would have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reference_runs.architecture import Activation, Architecture, Gate, QueryKeyNorm, Residual, RotaryScaling

Values = dict[str, Any]


def _hidden(layers: int, hidden: int, heads: int, vocabulary: int, **more: Any) -> Values:
    widths = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "vocab_size": vocabulary,
    }
    return widths | more


def _llama(kind: str, *widths: int, kv: int | None = None, ffn: int, **more: Any) -> Values:
    grouped = {} if kv is None else {"num_key_value_heads": kv}
    return {"model_type": kind} | _hidden(*widths, intermediate_size=ffn, **grouped, **more)


BANDS = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LLAMA3 = {"rope_theta": 500000.0, "rope_scaling": BANDS, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5}
PHI_4 = {"rope_theta": 250000, "rope_scaling": None, "max_position_embeddings": 16384, "embd_pdrop": 0.0}
PHI_4 |= {"resid_pdrop": 0.0, "original_max_position_embeddings": 16384, "sliding_window": None}
GPT_J = {"n_layer": 28, "n_embd": 4096, "n_head": 16, "n_inner": None, "rotary_dim": 64, "vocab_size": 50400}
STARCODER = {"n_layer": 40, "n_embd": 6144, "n_head": 48, "n_inner": 24576, "n_positions": 8192, "vocab_size": 49152}
BLOOM_7B1 = {"n_layer": 30, "num_attention_heads": 32, "n_embed": 4096, "vocab_size": 250880, "seq_length": 2048}
MPT_7B = {"n_layers": 32, "d_model": 4096, "n_heads": 32, "vocab_size": 50432, "attn_config": {"attn_impl": "torch"}}

MOE = {"norm_topk_prob": True, "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1}
QWEN3_30B = _llama("qwen3_moe", 48, 2048, 32, 151936, kv=4, ffn=6144, head_dim=128, moe_intermediate_size=768, **MOE)
QWEN3_235B = _llama("qwen3_moe", 94, 4096, 64, 151936, kv=4, ffn=12288, head_dim=128, moe_intermediate_size=1536, **MOE)
QWEN15_MOE = {"num_experts": 60, "num_experts_per_tok": 4, "norm_topk_prob": False, "decoder_sparse_step": 1}
QWEN15_MOE |= {"moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632}
V2_YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "mscale": 0.707, "beta_fast": 32}
V2 = {"n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "norm_topk_prob": False}
V2 |= {"kv_lora_rank": 512, "scoring_func": "softmax", "aux_loss_alpha": 0.001, "seq_aux": True, "moe_layer_freq": 1}
V2_LITE = {"q_lora_rank": None, "n_routed_experts": 64, "moe_intermediate_size": 1408, "topk_method": "greedy"}
V2_WHOLE = {"q_lora_rank": 1536, "n_routed_experts": 160, "moe_intermediate_size": 1536, "n_group": 8, "topk_group": 3}
V2_WHOLE |= {"topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0}
V3 = {"n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048}
V3 |= {"q_lora_rank": 1536, "kv_lora_rank": 512, "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4}
V3 |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 2.5}
V3 |= {"num_nextn_predict_layers": 1, "aux_loss_alpha": 0.001, "seq_aux": True, "moe_layer_freq": 1, "ep_size": 1}
V3 |= {
    "max_position_embeddings": 163840,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}

NEXT = {"head_dim": 256, "partial_rotary_factor": 0.25, "rope_theta": 10000000, "max_position_embeddings": 262144}
NEXT |= {"full_attention_interval": 4, "linear_num_value_heads": 32, "linear_num_key_heads": 16}
NEXT |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "mlp_only_layers": []}
NEXT |= {"num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512, "norm_topk_prob": True}
NEXT |= {"shared_expert_intermediate_size": 512, "decoder_sparse_step": 1}
QWEN3_NEXT = _llama("qwen3_next", 48, 2048, 16, 151936, kv=2, ffn=5632, **NEXT)
PATTERN = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
STATES = {"mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4}
STATES |= {"head_dim": 128, "max_position_embeddings": 8192, "mlp_hidden_act": "relu2", "chunk_size": 128}
NEMOTRON_H = _llama("nemotron_h", 52, 4096, 32, 131072, kv=8, ffn=21504, hybrid_override_pattern=PATTERN, **STATES)
GLM = {"n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 1408}
GLM |= {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.0}
GLM |= {"head_dim": 128, "partial_rotary_factor": 0.5, "attention_bias": True, "use_qk_norm": False}
GLM |= {"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 1000000, "num_nextn_predict_layers": 1}
GLM_AIR = _llama("glm4_moe", 46, 4096, 96, 151552, kv=8, ffn=10944, **GLM)

OSS = {
    "head_dim": 64,
    "attention_bias": True,
    "sliding_window": 128,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
}
OSS |= {"layer_types": ["sliding_attention", "full_attention"] * 18, "rope_theta": 150000, "rms_norm_eps": 1e-5}
OSS |= {"router_aux_loss_coef": 0.9, "swiglu_limit": 7.0, "initial_context_length": 4096, "experts_per_token": 4}
GPT_OSS = _llama("gpt_oss", 36, 2880, 64, 201088, kv=8, ffn=2880, max_position_embeddings=131072, **OSS)

KIMI_YARN = {"type": "yarn", "factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
KIMI = {"max_position_embeddings": 131072, "n_routed_experts": 384, "first_k_dense_replace": 1, "n_group": 1}
KIMI |= {"topk_group": 1, "routed_scaling_factor": 2.827, "num_nextn_predict_layers": 0, "rope_theta": 50000.0}
KIMI |= {"rope_scaling": KIMI_YARN | {"original_max_position_embeddings": 4096}}
KIMI_K2 = _llama("kimi_k2", 61, 7168, 64, 163840, ffn=18432, **V3 | KIMI)  # transformers has it as remote code
KIMI_K2_PARAMETERS = 1_026_408_209_408 + 60 * 384  # and the routers' biases, which are buffers there

# Name -> configuration, and the parameters of the released model
PUBLISHED: dict[str, tuple[Values, int]] = {
    "llama-65b": (_llama("llama", 80, 8192, 64, 32000, ffn=22016), 65_285_660_672),
    "llama2-7b": (_llama("llama", 32, 4096, 32, 32000, ffn=11008), 6_738_415_616),
    "llama2-13b": (_llama("llama", 40, 5120, 40, 32000, ffn=13824), 13_015_864_320),
    "llama2-70b": (_llama("llama", 80, 8192, 64, 32000, kv=8, ffn=28672), 68_976_648_192),
    "llama3.1-8b": (_llama("llama", 32, 4096, 32, 128256, kv=8, ffn=14336, **LLAMA3), 8_030_261_248),
    "llama3.1-70b": (_llama("llama", 80, 8192, 64, 128256, kv=8, ffn=28672, **LLAMA3), 70_553_706_496),
    "llama3.1-405b": (_llama("llama", 126, 16384, 128, 128256, kv=8, ffn=53248, **LLAMA3), 405_853_388_800),
    "tinyllama": (_llama("llama", 22, 2048, 32, 32000, kv=4, ffn=5632), 1_100_048_384),
    "mistral-7b": (_llama("mistral", 32, 4096, 32, 32000, kv=8, ffn=14336, sliding_window=4096), 7_241_732_096),
    "qwen1.5-72b": (_llama("qwen2", 80, 8192, 64, 152064, kv=64, ffn=24576), 72_287_920_128),
    "qwen2-7b": (_llama("qwen2", 28, 3584, 28, 152064, kv=4, ffn=18944), 7_615_616_512),
    "qwen3-8b": (_llama("qwen3", 36, 4096, 32, 151936, kv=8, ffn=12288, head_dim=128), 8_190_735_360),
    "gemma-7b": (_llama("gemma", 28, 3072, 16, 256000, kv=16, ffn=24576, head_dim=256), 8_537_680_896),
    "olmo-7b": (_llama("olmo", 32, 4096, 32, 50304, ffn=11008), 6_888_095_744),
    "olmo2-7b": (_llama("olmo2", 32, 4096, 32, 100352, ffn=11008), 7_298_617_344),
    "starcoder2-3b": (_llama("starcoder2", 30, 3072, 24, 49152, kv=2, ffn=12288), 3_030_371_328),
    "phi-2": (_llama("phi", 32, 2560, 32, 51200, ffn=10240, partial_rotary_factor=0.4), 2_779_683_840),
    "phi-4": (_llama("phi3", 40, 5120, 40, 100352, kv=10, ffn=17920, **PHI_4), 14_659_507_200),
    "pythia-1b": (_llama("gpt_neox", 16, 2048, 8, 50304, ffn=8192), 1_011_781_632),
    "pythia-12b": (_llama("gpt_neox", 36, 5120, 40, 50688, ffn=20480), 11_846_072_320),
    "gpt-neox-20b": (_llama("gpt_neox", 44, 6144, 64, 50432, ffn=24576), 20_554_567_680),
    "falcon-7b": ({"model_type": "falcon"} | _hidden(32, 4544, 71, 65024), 6_921_720_704),
    "falcon-40b": (
        {"model_type": "falcon"} | _hidden(60, 8192, 128, 65024, new_decoder_architecture=True, num_kv_heads=8),
        41_303_293_952,
    ),
    "opt-6.7b": ({"model_type": "opt"} | _hidden(32, 4096, 32, 50272, ffn_dim=16384), 6_658_473_984),
    "bloom-7b1": ({"model_type": "bloom"} | BLOOM_7B1, 7_069_016_064),
    "gpt-j-6b": ({"model_type": "gptj"} | GPT_J, 6_050_882_784),
    "starcoder": ({"model_type": "gpt_bigcode"} | STARCODER, 15_517_456_384),
    "mpt-7b": ({"model_type": "mpt"} | MPT_7B, 6_649_286_656),
    "mixtral-8x7b": (
        _llama("mixtral", 32, 4096, 32, 32000, kv=8, ffn=14336, num_local_experts=8, num_experts_per_tok=2),
        46_702_792_704,
    ),
    "mixtral-8x22b": (
        _llama("mixtral", 56, 6144, 48, 32000, kv=8, ffn=16384, num_local_experts=8, num_experts_per_tok=2),
        140_620_634_112,
    ),
    "qwen1.5-moe-a2.7b": (_llama("qwen2_moe", 24, 2048, 16, 151936, kv=16, ffn=5632, **QWEN15_MOE), 14_315_784_192),
    "qwen3-30b-a3b": (QWEN3_30B, 30_532_122_624),
    "qwen3-235b-a22b": (QWEN3_235B, 235_093_634_560),
    "deepseek-v2-lite": (_llama("deepseek_v2", 27, 2048, 16, 102400, ffn=10944, **V2, **V2_LITE), 15_706_484_224),
    "deepseek-v2": (_llama("deepseek_v2", 60, 5120, 128, 102400, ffn=12288, **V2, **V2_WHOLE), 235_741_434_880),
    "deepseek-v3": (_llama("deepseek_v3", 61, 7168, 128, 129280, ffn=18432, **V3), 671_026_419_200),
    "glm-4.5-air": (GLM_AIR, 106_852_245_504 + 45 * 128),  # and the routers' biases, which are buffers there
    "gpt-oss-120b": (GPT_OSS, 116_829_156_672),
    "nemotron-h-8b": (NEMOTRON_H, 8_100_852_736),
    "qwen3-next-80b-a3b": (QWEN3_NEXT, 79_674_391_296),  # without the module of multi-token prediction
    "gpt2-xl": (
        {"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25, "n_positions": 1024, "vocab_size": 50257},
        1_557_611_200,
    ),
}


def written(path: Path, values: Values) -> Path:
    """The configuration as a file."""
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def _gpt2(a: Architecture) -> Values:
    return {
        "n_layer": a.layers,
        "n_embd": a.hidden,
        "n_head": a.heads,
        "n_inner": a.ffn_hidden,
        "n_positions": a.sequence,
        "vocab_size": a.padded_vocabulary,
        "layer_norm_epsilon": a.norm_epsilon,
        "activation_function": {Activation.GELU: "gelu", Activation.GELU_TANH: "gelu_new"}[a.activation],
        "tie_word_embeddings": a.tied_embeddings,
    }


def _widths(a: Architecture) -> Values:
    widths = _hidden(a.layers, a.hidden, a.heads, a.padded_vocabulary, max_position_embeddings=a.sequence)
    return widths | {"tie_word_embeddings": a.tied_embeddings}


def _bloom(a: Architecture) -> Values:
    widths = _hidden(a.layers, a.hidden, a.heads, a.padded_vocabulary, tie_word_embeddings=a.tied_embeddings)
    return widths | {"seq_length": a.sequence, "n_inner": a.ffn_hidden, "layer_norm_epsilon": a.norm_epsilon}


def _opt(a: Architecture) -> Values:
    return _widths(a) | {"ffn_dim": a.ffn_hidden, "activation_function": "relu", "enable_bias": a.biases}


def _gpt_neox(a: Architecture) -> Values:
    return _widths(a) | {
        "intermediate_size": a.ffn_hidden,
        "layer_norm_eps": a.norm_epsilon,
        "hidden_act": {Activation.GELU: "gelu", Activation.GELU_TANH: "gelu_fast"}[a.activation],
        "rotary_pct": (a.rotary_dim or 0) / a.head_dim,
        "rotary_emb_base": a.rotary_base,
        "use_parallel_residual": a.residual is Residual.PARALLEL,
    }


def _of_llama(a: Architecture) -> Values:
    values = _widths(a) | {
        "intermediate_size": a.ffn_hidden,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "rms_norm_eps": a.norm_epsilon,
        "rope_theta": a.rotary_base,
        "attention_bias": a.bias.attention,
        "mlp_bias": a.bias.feed_forward,
    }
    if a.rotary_scaling_factor is not None:
        low, high = ("beta_slow", "beta_fast") if _is_yarn(a) else ("low_freq_factor", "high_freq_factor")
        values["rope_scaling"] = {
            "rope_type": "yarn" if _is_yarn(a) else "llama3",
            "factor": a.rotary_scaling_factor,
            low: a.rotary_scaling_low,
            high: a.rotary_scaling_high,
            "original_max_position_embeddings": a.rotary_scaling_sequence,
        }
        if _is_yarn(a):
            values["rope_scaling"]["attention_factor"] = a.rotary_scaling_amplitude or 1.0
            values["rope_scaling"]["truncate"] = a.rotary_scaling is RotaryScaling.YARN
    return values


def _is_yarn(a: Architecture) -> bool:
    return a.rotary_scaling is not RotaryScaling.BANDS


def _qwen3(a: Architecture) -> Values:
    values = _of_llama(a) | {"use_sliding_window": a.sliding_window is not None, "max_window_layers": 0}
    return {key: value for key, value in values.items() if key != "mlp_bias"} | {"sliding_window": a.sliding_window}


def _without_biases(a: Architecture) -> Values:
    values = _of_llama(a)
    return {key: value for key, value in values.items() if key not in ("attention_bias", "mlp_bias")}


def _nemotron(a: Architecture) -> Values:
    return _widths(a) | {
        "intermediate_size": a.ffn_hidden,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "norm_eps": a.norm_epsilon,
        "hidden_act": "relu2",
        "rope_theta": a.rotary_base,
        "partial_rotary_factor": (a.rotary_dim or 0) / a.head_dim,
    }


def _mixtral(a: Architecture) -> Values:
    return _without_biases(a) | {
        "num_local_experts": a.experts,
        "num_experts_per_tok": a.experts_per_token,
        "router_aux_loss_coef": a.auxiliary_loss_weight or 0.0,
        "sliding_window": a.sliding_window,
    }


def _gpt_oss(a: Architecture) -> Values:
    kinds = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(a.layers)]
    of_llama = {key: value for key, value in _of_llama(a).items() if key != "mlp_bias"}
    return of_llama | {
        "num_local_experts": a.experts,
        "num_experts_per_tok": a.experts_per_token,
        "intermediate_size": a.expert_width,
        "router_aux_loss_coef": a.auxiliary_loss_weight or 0.0,
        "sliding_window": a.sliding_window,
        "layer_types": kinds,
    }


def _qwen3_moe(a: Architecture) -> Values:
    return _qwen3(a) | {
        "num_experts": a.experts,
        "num_experts_per_tok": a.experts_per_token,
        "moe_intermediate_size": a.expert_ffn_hidden,
        "norm_topk_prob": a.gate is Gate.SOFTMAX_OF_CHOSEN,
        "mlp_only_layers": list(range(a.dense_layers)),
        "router_aux_loss_coef": a.auxiliary_loss_weight or 0.0,
    }


def _deepseek_v3(a: Architecture) -> Values:
    return _without_biases(a) | {
        "head_dim": None,
        "q_lora_rank": a.query_rank,
        "kv_lora_rank": a.key_value_rank,
        "qk_rope_head_dim": a.rotary_dim,
        "qk_nope_head_dim": a.head_dim - (a.rotary_dim or 0),
        "v_head_dim": a.value_head_dim,
        "n_routed_experts": a.experts,
        "num_experts_per_tok": a.experts_per_token,
        "n_shared_experts": a.shared_experts,
        "moe_intermediate_size": a.expert_ffn_hidden,
        "first_k_dense_replace": a.dense_layers,
        "routed_scaling_factor": a.gate_scale or 1.0,
        "n_group": a.expert_groups or 1,
        "topk_group": a.groups_per_token or 1,
    }


def _nemotron_h(a: Architecture) -> Values:
    return _widths(a) | {
        "hybrid_override_pattern": a.layer_pattern,
        "num_hidden_layers": len(a.layer_pattern or ""),
        "intermediate_size": a.ffn_hidden,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "layer_norm_epsilon": a.norm_epsilon,
        "mamba_num_heads": a.linear_heads,
        "n_groups": a.linear_key_heads,
        "ssm_state_size": a.linear_key_dim,
        "mamba_head_dim": a.linear_value_dim,
        "conv_kernel": a.linear_convolution,
    }


def _qwen3_next(a: Architecture) -> Values:
    return _without_biases(a) | {
        "full_attention_interval": a.full_every,
        "linear_num_value_heads": a.linear_heads,
        "linear_num_key_heads": a.linear_key_heads,
        "linear_key_head_dim": a.linear_key_dim,
        "linear_value_head_dim": a.linear_value_dim,
        "linear_conv_kernel_dim": a.linear_convolution,
        "num_experts": a.experts,
        "num_experts_per_tok": a.experts_per_token,
        "moe_intermediate_size": a.expert_ffn_hidden,
        "shared_expert_intermediate_size": a.shared_experts * a.expert_width,
        "norm_topk_prob": a.gate is Gate.SOFTMAX_OF_CHOSEN,
        "router_aux_loss_coef": a.auxiliary_loss_weight or 0.0,
        "partial_rotary_factor": (a.rotary_dim or 0) / a.head_dim,
    }


def _glm4_moe(a: Architecture) -> Values:
    of_llama = {key: value for key, value in _of_llama(a).items() if key != "mlp_bias"}
    of_experts = ("n_routed_experts", "num_experts_per_tok", "n_shared_experts", "moe_intermediate_size", "n_group")
    of_experts += ("topk_group", "first_k_dense_replace", "routed_scaling_factor")
    routed = {key: value for key, value in _deepseek_v3(a).items() if key in of_experts}
    normed = {"use_qk_norm": a.query_key_norm is QueryKeyNorm.HEAD}
    return of_llama | routed | normed | {"partial_rotary_factor": (a.rotary_dim or 0) / a.head_dim}


OF_SHAPE: dict[str, Callable[[Architecture], Values]] = {
    "gpt2": _gpt2,
    "bloom": _bloom,
    "opt": _opt,
    "gpt_neox": _gpt_neox,
    "llama": _of_llama,
    "qwen3": _qwen3,
    "mixtral": _mixtral,
    "nemotron": _nemotron,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v3": _deepseek_v3,
    "kimi_k2": _deepseek_v3,
    "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss,
    "qwen3_next": _qwen3_next,
    "nemotron_h": _nemotron_h,
}


def configuration_of(architecture: Architecture, kind: str) -> Values:
    """The configuration that a model of this shape has in a family."""
    return {"model_type": kind} | OF_SHAPE[kind](architecture)
