"""A training as fields of Megatron-Core's configurations, which Megatron-LM and NeMo share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from reference_runs.layout import Layout, Offload, Recomputation, Schedule
from reference_runs.placement import chunk_layers
from reference_runs.run import (
    Activation,
    Architecture,
    Balancing,
    Gate,
    Mask,
    Objective,
    Position,
    Precision,
    ProductFormat,
    QueryKeyNorm,
    Recipe,
    Residual,
    RotaryScaling,
)
from suite.report.export.job import ExportedJob
from suite.report.export.schedule import schedule_of

ORDERS = {"tp-cp-ep-dp-pp": False, "tp-cp-ep-pp-dp": True}  # -> use_tp_pp_dp_mapping
BANDS = (1.0, 4.0, 8192)  # rotary_pos_embedding.py, _apply_scaling: low and high frequency factor, old context
FORMATS: dict[ProductFormat, dict[str, str]] = {
    ProductFormat.NONE: {},
    ProductFormat.FP8_DELAYED: {"fp8": "hybrid", "fp8_recipe": "delayed"},
    ProductFormat.FP8_CURRENT: {"fp8": "hybrid", "fp8_recipe": "tensorwise"},
    ProductFormat.FP8_BLOCKWISE: {"fp8": "e4m3", "fp8_recipe": "blockwise"},
    ProductFormat.MXFP8: {"fp8": "e4m3", "fp8_recipe": "mxfp8"},
    ProductFormat.NVFP4: {"fp4": "e2m1", "fp4_recipe": "nvfp4"},
}


def core_fields(job: ExportedJob) -> dict[str, Any]:
    """Field of Megatron-Core -> value, of all that `core_limits` lets through; fields at their default are left out."""
    architecture, recipe, layout = job.workload
    return {
        **_axes(architecture, layout),
        **_recomputation(layout),
        **_model(architecture, layout),
        **_attention(architecture),
        "attention_backend": "fused" if layout.fused_attention else "unfused",
        **_experts(architecture),
        **_arithmetic(recipe),
        **_optimizer(job),
        "micro_batch_size": layout.micro_batch,
        "global_batch_size": recipe.global_batch,
        **({"rampup_batch_size": job.ramp_up} if job.ramp_up else {}),
    }


def core_limits(job: ExportedJob) -> Iterator[tuple[bool, str]]:
    """Features that Megatron-Core has no place for: whether the training has each, and its name."""
    architecture, recipe, layout = job.workload
    objective = job.recorded("objective")
    yield from _layout_limits(architecture, layout)
    yield from _model_limits(architecture)
    yield _ramp_up_limit(job)
    width, normed = architecture.query_key_norm, architecture.bias.norm
    yield width is QueryKeyNorm.PROJECTION, "query_key_norm projection"
    yield normed is architecture.norm.root_mean_square and architecture.norm_gain, "norms without their biases"
    yield objective not in (None, Objective.CAUSAL_LM), f"the objective {objective}"
    yield not recipe.precision.has_masters, f"{recipe.precision}: no master weights"
    apart = job.recorded("embedding_dropout") != job.recorded("hidden_dropout")
    yield apart, "an embedding_dropout other than hidden_dropout"


def _ramp_up_limit(job: ExportedJob) -> tuple[bool, str]:
    """A batch whose growth does not end at the whole one, or is not always whole micro-batches of all replicas.

    Source: Megatron-Core 0.16.1, num_microbatches_calculator.py, asserts in RampupBatchsizeNumMicroBatchesCalculator.
    """
    if job.ramp_up is None:
        return False, ""
    start, increment, _ = job.ramp_up
    batch, layout = job.workload.recipe.global_batch, job.workload.layout
    pieces = layout.replicas * layout.micro_batch
    wrong = bool((batch - start) % increment or start % pieces or increment % pieces)
    return wrong, f"a batch that grows from {start} by {increment} to {batch} in micro-batches of {pieces} samples"


def _layout_limits(architecture: Architecture, layout: Layout) -> Iterator[tuple[bool, str]]:
    tensor, kv_heads = layout.tensor_parallel, architecture.kv_heads
    yield layout.pipeline_stages > 1 and layout.schedule is not Schedule.ONE_F_ONE_B, layout.schedule.value
    yield layout.stage_replicas is not None, "replicas of each stage"
    yield layout.zero_stage > 1, f"zero{layout.zero_stage}"
    yield layout.zero_stage == 1 and not layout.reduce_scatter, "zero1,all-reduce: its optimizer reduce-scatters"
    yield layout.recomputation is Recomputation.FROM_INPUT, "recompute-from-input"
    yield layout.offload is not Offload.NONE, "offload"
    yield _order(layout) is None, f"the order {layout.rank_order}"
    yield bool(kv_heads % tensor), "copies of key-value heads"
    yield bool(architecture.padded_vocabulary % tensor), f"a vocabulary that tp{tensor} does not divide"
    mixed = architecture.experts is not None and tensor > 1 and not layout.sequence_parallel
    yield mixed, "experts in tensor-parallel ranks without sp"


def _model_limits(architecture: Architecture) -> Iterator[tuple[bool, str]]:
    bias, activation = architecture.bias, architecture.activation
    biases = (bias.attention, bias.projection, bias.feed_forward or bool(architecture.experts and bias.projection))
    yield architecture.embedding_norm, "a norm of embeddings"
    yield architecture.position is Position.ALIBI, "ALiBi"
    yield architecture.position is Position.NONE, "attention without positions"
    yield architecture.extra_positions > 0, "extra_positions"
    yield not architecture.norm.before, f"the norm {architecture.norm.value}"
    yield not architecture.norm_gain, "norms without gain"
    yield architecture.residual is Residual.PARALLEL, "parallel branches of a block"
    yield architecture.mask is not Mask.CAUSAL, f"the mask {architecture.mask.value}"
    yield architecture.sliding_window is not None, "a sliding_window"
    yield architecture.attention_sinks, "attention sinks"
    yield architecture.expert_bias, "biases of experts"
    yield architecture.linear_heads is not None or architecture.attention_gate, "linear or gated attention"
    yield architecture.top_query_layer, "a top_query_layer"
    yield architecture.head_bias, "a bias of the head"
    yield architecture.scaled_embedding, "scaled embeddings"
    yield biases not in ((False,) * 3, (True,) * 3, (True, False, False)), "biases of these places alone"
    yield activation in (Activation.GEGLU_TANH, Activation.GEGLU, Activation.RELU), f"the activation {activation.value}"
    approximate = activation in (Activation.GELU_TANH, Activation.FAST_GELU)
    yield approximate and not bias.feed_forward, f"{activation.value} without biases"
    yield architecture.capacity_factor is not None, "experts with a capacity"
    if architecture.rotary_scaling_factor:
        low, high = architecture.rotary_scaling_low, architecture.rotary_scaling_high
        bands = (low, high, architecture.rotary_scaling_sequence)
        yarn, latent = architecture.rotary_scaling is not RotaryScaling.BANDS, architecture.key_value_rank is not None
        yield architecture.rotary_scaling is RotaryScaling.YARN_UNROUNDED, "YaRN without rounded ends"
        yield yarn != latent, f"rotary_scaling {architecture.rotary_scaling.value} with this attention"
        yield not yarn and bands != BANDS, "bands of rotary scaling other than Llama 3.1's"
        yield yarn and not _is_deepseeks(architecture), "amplitudes of YaRN other than DeepSeek's"


def _is_deepseeks(architecture: Architecture) -> bool:
    """Whether mscale = mscale_all_dim = 1: rotations keep their length, scores are (0.1 ln f + 1)^2 larger.

    Source: Megatron-Core 0.16.1, transformer/multi_latent_attention.py and yarn_rotary_pos_embedding.py.
    """
    scale = (0.1 * math.log(architecture.rotary_scaling_factor or 1) + 1) ** 2
    amplitude = architecture.rotary_scaling_amplitude
    return amplitude in (None, 1) and math.isclose(architecture.score_scale or 1, scale, rel_tol=1e-3)


def _order(layout: Layout) -> bool | None:
    """Whether pipeline stages come before replicas in the order of ranks; None: another order of several ranks."""
    sizes = {
        "tp": layout.tensor_parallel,
        "cp": layout.context_parallel,
        "ep": layout.expert_parallel,
        "dp": layout.data_parallel,
        "pp": layout.pipeline_stages,
    }
    own = [axis for axis in layout.axis_order if sizes[axis] > 1]
    for order, mapping in ORDERS.items():
        if own == [axis for axis in order.split("-") if sizes[axis] > 1]:
            return mapping
    return None


def _axes(architecture: Architecture, layout: Layout) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "tensor_model_parallel_size": layout.tensor_parallel,
        "pipeline_model_parallel_size": layout.pipeline_stages,
        "context_parallel_size": layout.context_parallel,
        "expert_model_parallel_size": layout.expert_ranks,
        "sequence_parallel": layout.sequence_parallel and layout.tensor_parallel > 1,
        "use_tp_pp_dp_mapping": bool(_order(layout)),
        "use_distributed_optimizer": layout.zero_stage == 1,
    }
    if layout.whole_experts:
        fields["expert_tensor_parallel_size"] = 1
    counts = [len(layers) for layers in chunk_layers(architecture.layers, layout)]
    if layout.virtual_stages > 1 or len(set(counts)) > 1:  # as many parts as chunks, from which it counts them
        fields["pipeline_model_parallel_layout"] = f"E{'|'.join('t' * count for count in counts)}L"
    return fields


def _recomputation(layout: Layout) -> dict[str, Any]:
    kind = layout.recomputation
    if kind is Recomputation.NONE:
        return {}
    if kind is Recomputation.SELECTIVE:
        named = {"recompute_modules": list(layout.recomputed_modules)} if layout.recomputed_modules else {}
        return {"recompute_granularity": "selective", **named}
    shares = layout.partitioned_checkpoints and layout.tensor_parallel > 1
    return {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": layout.checkpoint_layers,
        "distribute_saved_activations": shares and not layout.sequence_parallel,
    }


def _model(architecture: Architecture, layout: Layout) -> dict[str, Any]:
    activation, bias = architecture.activation, architecture.bias
    return {
        "num_layers": architecture.layers,
        "hidden_size": architecture.hidden,
        "ffn_hidden_size": architecture.ffn_hidden,
        "num_attention_heads": architecture.heads,
        "num_query_groups": architecture.kv_heads,
        "kv_channels": architecture.head_dim,
        "seq_length": architecture.sequence,
        "vocab_size": architecture.vocabulary,
        "make_vocab_size_divisible_by": architecture.padded_vocabulary // layout.tensor_parallel,
        "share_embeddings_and_output_weights": architecture.tied_embeddings,
        "normalization": "RMSNorm" if architecture.norm.root_mean_square else "LayerNorm",
        "layernorm_epsilon": architecture.norm_epsilon,
        "add_bias_linear": bias.projection,
        "add_qkv_bias": bias.attention and not bias.projection,
        "gated_linear_unit": activation.gated,
        "activation_func": {Activation.SWIGLU: "silu", Activation.RELU_SQUARED: "squared_relu"}.get(activation, "gelu"),
        "bias_activation_fusion": activation in (Activation.GELU_TANH, Activation.FAST_GELU, Activation.SWIGLU),
    }


def _attention(architecture: Architecture) -> dict[str, Any]:
    rotary = architecture.position is Position.ROTARY
    fields: dict[str, Any] = {
        "position_embedding_type": "rope" if rotary else "learned_absolute",
        "qk_layernorm": architecture.query_key_norm is QueryKeyNorm.HEAD,
    }
    latent, turned = architecture.key_value_rank, architecture.rotary_dim or 0
    if rotary:
        fields["rotary_base"] = architecture.rotary_base
        fields["rotary_percent"] = 1.0 if latent else turned / architecture.head_dim
    if latent is not None:
        fields |= {
            "multi_latent_attention": True,
            "q_lora_rank": architecture.query_rank,
            "kv_lora_rank": latent,
            "qk_head_dim": architecture.head_dim - turned,
            "qk_pos_emb_head_dim": turned,
            "v_head_dim": architecture.value_head_dim,
            "rope_type": "yarn" if architecture.rotary_scaling_factor else "rope",
        }
    if architecture.rotary_scaling_factor and latent is not None:
        fields |= {
            "rotary_scaling_factor": architecture.rotary_scaling_factor,
            "original_max_position_embeddings": architecture.rotary_scaling_sequence,
            "beta_fast": architecture.rotary_scaling_high,
            "beta_slow": architecture.rotary_scaling_low,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        }
    elif architecture.rotary_scaling_factor:
        fields |= {"rope_scaling": True, "rope_scaling_factor": architecture.rotary_scaling_factor}
    return fields


def _experts(architecture: Architecture) -> dict[str, Any]:
    if architecture.experts is None:
        return {}
    balancing, sequences = architecture.balancing, architecture.sequence_loss_weight
    fields: dict[str, Any] = {
        "num_moe_experts": architecture.experts,
        "moe_router_topk": architecture.experts_per_token,
        "moe_ffn_hidden_size": architecture.expert_width,
        "moe_router_pre_softmax": architecture.gate is Gate.SOFTMAX,
        "moe_router_score_function": "sigmoid" if architecture.gate is Gate.SIGMOID else "softmax",
        "moe_token_dispatcher_type": "alltoall",
        "moe_grouped_gemm": True,
        "moe_router_load_balancing_type": "none",
    }
    if balancing is Balancing.AUXILIARY_LOSS:
        fields |= {
            "moe_router_load_balancing_type": "aux_loss",
            "moe_aux_loss_coeff": architecture.auxiliary_loss_weight,
        }
    if balancing is Balancing.BIAS:
        fields |= {"moe_router_enable_expert_bias": True, "moe_router_bias_update_rate": architecture.balancing_rate}
    if sequences is not None:
        fields |= {"moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": sequences}
    if architecture.dense_layers:
        fields["moe_layer_freq"] = [0] * architecture.dense_layers + [1] * (
            architecture.layers - architecture.dense_layers
        )
    if architecture.shared_experts:
        fields["moe_shared_expert_intermediate_size"] = architecture.shared_experts * architecture.expert_width
        fields["moe_shared_expert_gate"] = architecture.shared_gate
    if architecture.expert_groups is not None:
        fields["moe_router_num_groups"] = architecture.expert_groups
        fields["moe_router_group_topk"] = architecture.groups_per_token
    if architecture.gate_scale is not None:
        fields["moe_router_topk_scaling_factor"] = architecture.gate_scale
    return fields


def _arithmetic(recipe: Recipe) -> dict[str, Any]:
    return {
        "bf16": recipe.precision is Precision.BF16,
        "fp16": recipe.precision in (Precision.FP16, Precision.FP16_GRADIENT_COPY),
        **FORMATS[ProductFormat(recipe.product_format)],
    }


def _optimizer(job: ExportedJob) -> dict[str, Any]:
    decay = job.recorded("learning_rate_decay")
    named = {
        "lr": "learning_rate",
        "min_lr": "minimum_learning_rate",
        "adam_beta1": "beta1",
        "adam_beta2": "beta2",
        "adam_eps": "epsilon",
        "weight_decay": "weight_decay",
        "clip_grad": "gradient_clip",
        "init_method_std": "init_std",
        "hidden_dropout": "hidden_dropout",
        "attention_dropout": "attention_dropout",
        "initial_loss_scale": "initial_loss_scale",
        "loss_scale_window": "loss_scale_window",
    }
    fields = {field: job.recorded(key) for field, key in named.items()}
    schedule = schedule_of(job)
    fields |= {"lr_warmup_samples": schedule.warmup, "lr_decay_samples": schedule.decay}
    fields |= {"train_samples": job.samples, "lr_decay_style": None if decay is None else str(decay)}
    return {field: value for field, value in fields.items() if value is not None}
