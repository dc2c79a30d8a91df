"""torchtitan's configurations: TOML files up to 0.2, and what `Trainer.Config.to_dict` of its registry gives since 0.3.

Source: torchtitan 0.2.2, config/job_config.py, distributed/parallel_dims.py, train.py; torchtitan 0.3.0,
config/configs.py, trainer.py, distributed/activation_checkpoint.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reference_runs.configurations.configuration import Framework, Keys, TrainingConfiguration, chosen
from reference_runs.layout import Offload, Recomputation, Schedule
from reference_runs.run import Precision

_SCHEDULES: dict[str, tuple[Schedule, int]] = {  # with chunks of a rank
    "1f1b": (Schedule.ONE_F_ONE_B, 1),
    "gpipe": (Schedule.GPIPE, 1),
    "interleaved1f1b": (Schedule.ONE_F_ONE_B, 2),
    "interleavedzerobubble": (Schedule.ZERO_BUBBLE, 2),
    "zbvzerobubble": (Schedule.ZBV, 2),
    "dualpipev": (Schedule.DUALPIPEV, 2),
    "loopedbfs": (Schedule.GPIPE, 1),
}
_DTYPES = {"float32": Precision.BF16, "bfloat16": Precision.BF16_PURE}
_P = "parallelism"


def torchtitan(keys: Keys, model: Mapping[str, Any] | None = None) -> TrainingConfiguration:
    """Training of torchtitan.

    A shard degree of -1 takes the ranks that are left over. The global batch of -1 is one local batch of every replica.

    Args:
        model: every layer of the model, as an exported registry has it.

    Raises:
        InputError: a value that is none of the key's.
    """
    tensors, contexts, stages = (
        keys.size(f"{_P}.{axis}_parallel_degree") for axis in ("tensor", "context", "pipeline")
    )
    experts = keys.size(f"{_P}.expert_parallel_degree")
    copies = keys.size(f"{_P}.data_parallel_replicate_degree")
    shards = keys.count(f"{_P}.data_parallel_shard_degree", automatic=(-1,))
    schedule, chunks = chosen(
        keys.text(f"{_P}.pipeline_parallel_schedule") or "1F1B", _SCHEDULES, f"{_P}.pipeline_parallel_schedule"
    )
    local = keys.count("training.local_batch_size", "training.batch_size") or 8
    micro_batch = local if stages == 1 else keys.size(f"{_P}.pipeline_parallel_microbatch_size")
    ranks = None if shards is None else copies * shards * tensors * contexts * stages
    batch = keys.count("training.global_batch_size", automatic=(-1,))
    sequence = keys.count("training.seq_len") or 2048
    replicated = shards == 1 and contexts == 1
    return TrainingConfiguration(
        Framework.TORCHTITAN,
        "torchtitan-compiled" if keys.flag("compile.enable", "training.compile") else "torchtitan",
        model=torchtitan_model(keys),
        shape=None if model is None else exported_shape(model, keys.text("model_spec.name"), sequence),
        ranks=ranks,
        tensor_parallel=tensors,
        sequence_parallel=tensors > 1
        and (keys.given(f"{_P}.enable_sequence_parallel") is None or keys.flag(f"{_P}.enable_sequence_parallel")),
        context_parallel=contexts,
        pipeline_stages=stages,
        virtual_stages=chunks if stages > 1 else 1,
        schedule=schedule if stages > 1 else Schedule.ONE_F_ONE_B,
        expert_parallel=experts,
        whole_experts=tensors > 1 and keys.size(f"{_P}.expert_tensor_parallel_degree") == 1,
        data_parallel=None if shards is None else copies * shards,
        replicas=copies,
        zero_stage=0 if replicated else 3,
        reshard=_reshards(keys, stages=stages),
        recomputation=_recomputation(keys),
        offload=Offload.STATE if keys.flag("training.enable_cpu_offload") else Offload.NONE,
        micro_batch=micro_batch,
        accumulation=None if batch is not None else local // micro_batch,
        batch=batch,
        sequence=sequence,
        precision=_precision(keys),
        chunked_loss=(keys.count("loss.num_chunks") or 1) > 1,
        refused=tuple(_refusals(local, micro_batch, sequence, tensors, contexts)),
        notes=("selective recomputation as of every operator",) if _every_layer(keys) else (),
    )


def torchtitan_model(keys: Keys) -> str:
    """Name and flavor, such as llama3-8B."""
    name, flavor = keys.text("model.name", "model_spec.name"), keys.text("model.flavor", "model_spec.flavor")
    return "-".join(part for part in (name, flavor) if part)


def _reshards(keys: Keys, *, stages: int) -> bool:
    """Whether gathered weights go after the forward pass: by default where there are no pipeline stages."""
    policy = keys.text(f"{_P}.fsdp_reshard_after_forward") or "default"
    return chosen(policy, {"default": stages == 1, "always": True, "never": False}, f"{_P}.fsdp_reshard_after_forward")


def _recomputation(keys: Keys) -> Recomputation:
    """Recomputation: of an exported registry, fields of SelectiveAC or of FullAC alone say which it is."""
    table = "activation_checkpoint"
    if policy := keys.text("compile.memory_policy"):  # of its graph trainer
        policies = dict.fromkeys(("default", "eager", "sac_and_offload"), Recomputation.SELECTIVE_OP)
        return chosen(policy, policies | {"full": Recomputation.FULL}, "compile.memory_policy")
    if mode := keys.text(f"{table}.mode"):
        modes = {
            "none": Recomputation.NONE,
            "full": Recomputation.FULL,
            "selective": Recomputation.SELECTIVE_OP,
            "memory_budget": Recomputation.SELECTIVE_OP,
        }
        return chosen(mode, modes, f"{table}.mode")
    if f"{table}.preserve_rng_state" not in keys.values:
        return Recomputation.NONE if table in keys.values else Recomputation.SELECTIVE_OP
    selective = f"{table}.force_recompute_mm_shapes_by_fqns" in keys.values
    return Recomputation.SELECTIVE_OP if selective else Recomputation.FULL


def _every_layer(keys: Keys) -> bool:
    return keys.text("activation_checkpoint.selective_ac_option").isdigit()


def _precision(keys: Keys) -> Precision:
    dtype = keys.text("training.dtype") or "float32"
    precision = chosen(dtype, _DTYPES, "training.dtype")
    narrow = keys.text("training.mixed_precision_param") or "bfloat16"
    return Precision.FP32 if precision is Precision.BF16 and narrow == "float32" else precision


def _refusals(local: int, micro_batch: int, sequence: int, tensors: int, contexts: int) -> list[str]:
    refused = []
    if local % micro_batch:
        refused.append(f"training.local_batch_size {local} is no multiple of the pipeline's micro-batch {micro_batch}")
    divisor = tensors * (2 * contexts if contexts > 1 else 1)
    if sequence % divisor:
        named = "tp * 2 cp" if contexts > 1 else "tp"
        refused.append(f"training.seq_len {sequence} is no multiple of {divisor}: {named}")
    return refused


def exported_shape(model: Mapping[str, Any], name: str, sequence: int) -> dict[str, Any] | None:
    """The model of an exported registry as keys of a config.json; None where it is of another kind.

    Sizes are of the first layer's attention, of the first dense layer's and the last layer's feed-forward part.
    """
    layers = model.get("layers")
    family = next((each for each in _TYPES if name.endswith(each)), None)
    if family is None or not isinstance(layers, list) or not layers or not all(isinstance(x, dict) for x in layers):
        return None
    try:
        return _shape_of(model, layers, family, sequence)
    except (KeyError, TypeError):
        return None


_TYPES = {  # Model of torchtitan -> model_type of its dense model, and of that with experts
    "llama3": ("llama", ""),
    "qwen3": ("qwen3", "qwen3_moe"),
    "deepseek_v3": ("", "deepseek_v3"),
    "gpt_oss": ("", "gpt_oss"),
}


def _shape_of(model: Mapping[str, Any], layers: list[Any], family: str, sequence: int) -> dict[str, Any] | None:
    attention, last = layers[0]["attention"], layers[-1]
    dense = next((layer["feed_forward"]["w1"]["out_features"] for layer in layers if layer.get("feed_forward")), None)
    mixture = last.get("moe")
    kind = _TYPES[family][mixture is not None]
    if not kind:
        return None
    shape: dict[str, Any] = {
        "model_type": kind,
        "hidden_size": model["dim"],
        "vocab_size": model["vocab_size"],
        "num_hidden_layers": len(layers),
        "num_attention_heads": attention["n_heads"],
        "num_key_value_heads": attention.get("n_kv_heads") or attention["n_heads"],
        "tie_word_embeddings": bool(model.get("enable_weight_tying")),
        "max_position_embeddings": sequence,
        "rope_theta": attention["rope"]["theta"],
        "rms_norm_eps": last["ffn_norm"]["eps"],
    }
    if attention.get("head_dim") is not None:
        shape["head_dim"] = attention["head_dim"]
    if mixture is None:
        return shape | {"intermediate_size": dense}
    width, experts = mixture["routed_experts"]["inner_experts"]["hidden_dim"], mixture["num_experts"]
    shape |= {"num_experts_per_tok": mixture["router"]["top_k"]}
    if family == "qwen3":
        return shape | {"num_experts": experts, "moe_intermediate_size": width, "intermediate_size": dense or width}
    if family == "gpt_oss":
        window = attention.get("sliding_window_size") or 128
        return shape | {
            "num_local_experts": experts,
            "intermediate_size": width,
            "attention_bias": True,
            "sliding_window": window,
        }
    shared = mixture.get("shared_experts")
    return shape | {
        "intermediate_size": dense or width,
        "moe_intermediate_size": width,
        "n_routed_experts": experts,
        "n_shared_experts": shared["w1"]["out_features"] // width if shared else 0,
        "first_k_dense_replace": sum(layer.get("moe") is None for layer in layers),
        "kv_lora_rank": attention["kv_lora_rank"],
        "q_lora_rank": attention["q_lora_rank"] or None,
        **{name: attention[name] for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")},
        **{"n_group": 1, "topk_group": 1, "topk_method": "noaux_tc", "moe_layer_freq": 1},
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": mixture["router"].get("route_scale") or 1.0,
    }
