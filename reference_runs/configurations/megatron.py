"""Megatron-LM's arguments and Megatron-Bridge's recipes: `--tensor-model-parallel-size 8`, `model.seq_length=4096`.

Source: Megatron-Core 0.16.1, model_parallel_config.py, transformer/transformer_config.py; Megatron-Bridge 0.3.1,
training/config.py, recipes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from reference_runs.configurations.configuration import (
    OF_NODE,
    ConfiguredAdapters,
    Framework,
    Keys,
    TrainingConfiguration,
    chosen,
)
from reference_runs.hugging_face.configuration import NotDescribedError
from reference_runs.layout import Offload, Recomputation
from reference_runs.run import Moments, Optimizer, Precision

_RECIPE = re.compile(r"(?:_(?:pretrain|sft|finetune|peft|lora|config|low_precision|16k|64k|128k))+$")
_PRECISIONS = {"bf16": Precision.BF16, "fp16": Precision.FP16, "32": Precision.FP32, "fp32": Precision.FP32}
_GRANULARITIES = {"full": Recomputation.FULL, "selective": Recomputation.SELECTIVE}
_MODEL_KEYS = (
    "hf_model_id",
    "hf_path",
    "hf_model_path",
    "hf_model",
    "model_name_or_path",
    "pretrained_checkpoint",
    "tokenizer_model",
)
_UNEVEN = (  # keys that deal layers to stages one by one
    *("pipeline_model_parallel_layout", "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"),
    *("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"),
)

_SHARDED = ("use_distributed_optimizer", "use-distributed-optimizer")  # Bridge: of one of two tables makes it both


def megatron(keys: Keys) -> TrainingConfiguration:
    """Training that arguments or overrides describe.

    Megatron-Core counts the ranks of expert parallelism among those of data, context and tensor parallelism.

    Raises:
        InputError: a value that is none of the key's.
    """
    bridge = any("." in name for name in keys.values) or "recipe" in keys.values
    flags = [keys.flag(name) for name in keys.values if name.endswith(_SHARDED)]
    sharded = any(flags) if flags else "recipe" in keys.values  # as Bridge's recipes begin
    keys = Keys(last_words(keys.values))
    tensors, contexts, stages = (
        keys.size(f"{axis}_size") for axis in ("tensor_model_parallel", "context_parallel", "pipeline_model_parallel")
    )
    experts = keys.size("expert_model_parallel_size")
    whole = keys.count("expert_tensor_parallel_size") == 1 and tensors > 1 and experts > 1
    refused = _refusals(keys, bridge=bridge)
    uneven = whole and experts % tensors > 0
    if uneven:
        refused.append(f"expert_model_parallel_size {experts} is no multiple of tensor_model_parallel_size {tensors}")
    fsdp = keys.flag("use_megatron_fsdp", "use_torch_fsdp2")
    shape = megatron_shape(keys)
    notes = ["its model is that of the recipe's name"] if not shape and not _named(keys) and keys.text("recipe") else []
    return TrainingConfiguration(
        Framework.MEGATRON_BRIDGE if bridge else Framework.MEGATRON,
        "megatron-core-bridge" if bridge else "megatron-core",
        model=megatron_model(keys),
        shape=shape,
        ranks=_ranks(keys),
        tensor_parallel=tensors,
        sequence_parallel=tensors > 1 and keys.flag("sequence_parallel"),
        context_parallel=contexts,
        pipeline_stages=stages,
        virtual_stages=_chunks(keys, stages),
        even_stages=stages > 1 and keys.given(*_UNEVEN) is None,
        with_tables=sum(keys.flag(f"account_for_{table}_in_pipeline_split") for table in ("embedding", "loss")),
        expert_parallel=experts // tensors if whole and not uneven else experts,
        whole_experts=whole,
        zero_stage=3 if fsdp else 1 if sharded else 0,
        reduce_scatter=sharded and not fsdp,
        recomputation=_recomputation(keys),
        offload=Offload.OPTIMIZER if keys.flag("optimizer_cpu_offload") else Offload.NONE,
        micro_batch=keys.size("micro_batch_size", "per_device_train_batch_size"),
        accumulation=keys.count("gradient_accumulation_steps"),
        batch=keys.count("global_batch_size"),
        sequence=keys.count("seq_length", "encoder_seq_length", "cutoff_len"),
        precision=_precision(keys, bridge=bridge),
        moments=Moments.BF16 if "bfloat16" in keys.text("exp_avg_dtype") else Moments.FP32,
        optimizer=Optimizer.SGD if keys.text("optimizer") == "sgd" else None,
        adapters=_adapters(keys),
        refused=tuple(refused),
        notes=tuple(notes),
    )


def _refusals(keys: Keys, *, bridge: bool) -> list[str]:
    """Reasons of Megatron-LM's validate_args; Megatron-Core rounds the size of a head down."""
    refused = []
    hidden, heads = keys.count("hidden_size"), keys.count("num_attention_heads")
    said = bridge or keys.given("kv_channels") is not None
    if hidden is not None and heads is not None and hidden % heads and not said:
        refused.append(f"num_attention_heads {heads} do not divide hidden_size {hidden}, and kv_channels is missing")
    if keys.flag("bf16") and keys.flag("fp16"):
        refused.append("bf16 and fp16 are both true")
    return refused


def megatron_model(keys: Keys) -> str:
    """Name of the model or of its recipe."""
    return _named(keys) or _RECIPE.sub("", keys.text("recipe"))


def last_words(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the last word of their key, with underscores: "--seq-length" and "model.seq_length" are one.

    Where several end alike, that of the model comes first.
    """
    found: dict[str, Any] = {}
    for name, value in sorted(values.items(), key=lambda item: not item[0].startswith("model.")):
        word = name.rpartition(".")[2].replace("-", "_").strip()
        if word not in found or found[word] is None:
            found[word] = value
        if name.startswith("peft."):
            found[f"peft_{word}"] = value
    return found


def megatron_shape(keys: Keys) -> dict[str, Any] | None:
    """The sizes of a model as a config.json's keys; None where the arguments do not say them."""
    layers, hidden, heads = (keys.count(name) for name in ("num_layers", "hidden_size", "num_attention_heads"))
    if layers is None or hidden is None or heads is None:
        return None
    gated = keys.flag("swiglu", "gated_linear_unit") or "silu" in str(keys.values.get("activation_func", ""))
    shape: dict[str, Any] = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": keys.count("vocab_size", "padded_vocab_size") or 50_304,
        "intermediate_size": keys.count("ffn_hidden_size") or 4 * hidden,
        "max_position_embeddings": keys.count("max_position_embeddings", "seq_length") or 2048,
        "tie_word_embeddings": not (
            keys.flag("untie_embeddings_and_output_weights")
            or (
                keys.given("share_embeddings_and_output_weights") is not None
                and not keys.flag("share_embeddings_and_output_weights")
            )
        ),
    }
    if (groups := keys.count("num_query_groups")) is not None:
        shape["num_key_value_heads"] = groups
    channels = keys.count("kv_channels") or hidden // heads
    if channels * heads != hidden:
        shape["head_dim"] = channels
    if (experts := keys.count("num_experts", "num_moe_experts")) is not None:
        width = keys.count("moe_ffn_hidden_size") or shape["intermediate_size"]
        return shape | {
            "model_type": "mixtral",
            "intermediate_size": width,
            "num_local_experts": experts,
            "num_experts_per_tok": keys.count("moe_router_topk") or 2,
        }
    if gated:
        return shape | {"model_type": "llama"}
    if "head_dim" in shape:
        what = f"kv_channels {channels} of {heads} heads, which are no hidden_size {hidden}, are not described"
        raise NotDescribedError(f"{what} without --swiglu", reason="kv_channels")
    return {
        "model_type": "gpt2",
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "n_inner": shape["intermediate_size"],
        "n_positions": shape["max_position_embeddings"],
        "vocab_size": shape["vocab_size"],
    }


def _named(keys: Keys) -> str:
    name = keys.text(*_MODEL_KEYS[:-1]) or _of_provider(keys.text("_target_"))
    return name or ("" if keys.text("tokenizer_model").endswith(".model") else keys.text("tokenizer_model"))


def _of_provider(target: str) -> str:
    """The model of a provider's class: "…Llama3ModelProvider8B" provides Llama3-8B."""
    name, _, size = target.rpartition(".")[2].partition("Provider")
    return "-".join(part for part in (name.removesuffix("Model"), size) if part)


def _ranks(keys: Keys) -> int | None:
    """Accelerators: those of a node times nodes, as torchrun or a recipe's launcher is asked for them."""
    world, nodes = keys.count("world_size", "num_gpus", "ngpus"), keys.count("nnodes", "num_nodes")
    of_node = keys.count("nproc_per_node", "gpus_per_node", "devices", automatic=OF_NODE)
    return world or (of_node * (nodes or 1) if of_node is not None else None)


def _chunks(keys: Keys, stages: int) -> int:
    """Chunks of layers of one stage."""
    if stages == 1:
        return 1
    if (chunks := keys.count("virtual_pipeline_model_parallel_size")) is not None:
        return chunks
    layers, of_chunk = keys.count("num_layers"), keys.count("num_layers_per_virtual_pipeline_stage")
    return max(1, layers // stages // of_chunk) if layers is not None and of_chunk is not None else 1


def _recomputation(keys: Keys) -> Recomputation:
    if keys.flag("recompute_activations"):
        return Recomputation.SELECTIVE
    granularity = keys.text("recompute_granularity")
    return chosen(granularity, _GRANULARITIES, "recompute_granularity") if granularity else Recomputation.NONE


def _precision(keys: Keys, *, bridge: bool) -> Precision:
    """The precision: of Megatron-LM fp32 unless a flag says otherwise, of recipes bf16."""
    mixed = keys.text("mixed_precision", "precision")
    for name, precision in _PRECISIONS.items():
        if mixed.startswith(name) or keys.flag(name):
            return precision
    return Precision.BF16 if bridge else Precision.FP32


def _adapters(keys: Keys) -> ConfiguredAdapters | None:
    kind = keys.text("peft_type", "peft_scheme", "peft")
    rank = keys.count("peft_dim", "lora_dim", "lora_rank")
    return None if rank is None and kind not in ("lora", "dora") else ConfiguredAdapters(rank or 32)
