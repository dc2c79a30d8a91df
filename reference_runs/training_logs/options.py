"""Options of the frameworks whose logs are read, by what they change of a layout or a recipe."""

from __future__ import annotations

from collections.abc import Mapping

_MEGATRON = {
    "micro-batch": "--micro-batch-size",
    "global batch": "--global-batch-size",
    "tp": "--tensor-model-parallel-size",
    "pp": "--pipeline-model-parallel-size",
    "cp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size",
    "interleave": "--num-layers-per-virtual-pipeline-stage",
    "sequence parallelism": "--sequence-parallel",
    "recompute": "--recompute-granularity, --recompute-method",
    "zero": "--use-distributed-optimizer",
}
_NEMO = {
    "micro-batch": "data.micro_batch_size",
    "global batch": "data.global_batch_size",
    "tp": "strategy.tensor_model_parallel_size",
    "pp": "strategy.pipeline_model_parallel_size",
    "cp": "strategy.context_parallel_size",
    "ep": "strategy.expert_model_parallel_size",
    "interleave": "strategy.virtual_pipeline_model_parallel_size",
    "sequence parallelism": "strategy.sequence_parallel",
    "recompute": "model.config.recompute_granularity",
}
# Framework of a log -> what a change begins with -> the framework's option. Source: each framework's documentation and
# configuration classes (known, not re-read for this file).
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "Megatron-LM": _MEGATRON,
    "Megatron-DeepSpeed": {**_MEGATRON, "cp": "--ds-sequence-parallel-size", "zero": "zero_optimization.stage"},
    "GPT-NeoX": {
        "micro-batch": "train_micro_batch_size_per_gpu",
        "global batch": "train_batch_size",
        "tp": "model_parallel_size",
        "pp": "pipe_parallel_size",
        "recompute": "checkpoint_activations",
        "zero": "zero_optimization.stage",
    },
    "NeMo": _NEMO,
    "Megatron-Bridge": {word: option.replace("strategy.", "model.") for word, option in _NEMO.items()},
    "torchtitan": {
        "micro-batch": "training.local_batch_size",
        "global batch": "training.global_batch_size",
        "tp": "parallelism.tensor_parallel_degree",
        "pp": "parallelism.pipeline_parallel_degree",
        "cp": "parallelism.context_parallel_degree",
        "ep": "parallelism.expert_parallel_degree",
        **dict.fromkeys(("interleave", "1f1b", "gpipe"), "parallelism.pipeline_parallel_schedule"),
        "recompute": "activation_checkpoint.mode",
        "zero3 -> zero0": "parallelism.data_parallel_replicate_degree",
        "zero": "parallelism.fsdp_reshard_after_forward",
    },
    "nanotron": {
        "micro-batch": "tokens.micro_batch_size",
        "global batch": "tokens.batch_accumulation_per_replica",
        "tp": "parallelism.tp",
        "pp": "parallelism.pp",
        "ep": "parallelism.expert_parallel_size",
        "recompute": "parallelism.recompute_layer",
        "zero": "optimizer.zero_stage",
    },
    "DeepSpeed": {
        "micro-batch": "train_micro_batch_size_per_gpu",
        "global batch": "gradient_accumulation_steps",
        "zero": "zero_optimization.stage",
    },
    "Hugging Face Trainer": {
        "micro-batch": "per_device_train_batch_size",
        "global batch": "gradient_accumulation_steps",
        "recompute": "gradient_checkpointing",
        "zero": "fsdp, or the DeepSpeed configuration's stage",
    },
    "Composer": {
        "micro-batch": "device_train_microbatch_size",
        "global batch": "global_train_batch_size",
        "recompute": "fsdp_config.activation_checkpointing",
        "zero": "fsdp_config.sharding_strategy",
    },
    "nanoGPT": {"micro-batch": "batch_size", "global batch": "gradient_accumulation_steps"},
    "llm.c": {"micro-batch": "-b", "global batch": "-d", "recompute": "-r", "zero": "-z"},
    "litgpt": {"micro-batch": "train.micro_batch_size", "global batch": "train.global_batch_size"},
}


_OF_STACKS = {  # what a stack's name begins with -> framework
    "megatron-core-nemo": "NeMo",
    "megatron-core-bridge": "Megatron-Bridge",
    "megatron-deepspeed": "Megatron-DeepSpeed",
    "megatron": "Megatron-LM",
    "gpt-neox": "GPT-NeoX",
    "torchtitan": "torchtitan",
    "nanotron": "nanotron",
    "deepspeed": "DeepSpeed",
    "transformers": "Hugging Face Trainer",
    "composer": "Composer",
    "llm-c": "llm.c",
}


def framework_of_stack(stack: str) -> str:
    """The framework that a stack is of; empty: several have it."""
    return next((framework for begins, framework in _OF_STACKS.items() if stack.startswith(begins)), "")


def option_of(framework: str, change: str) -> str | None:
    """The framework's option for a change such as "micro-batch 1 -> 2"; None: not known."""
    known = OPTIONS.get(framework, {})
    return next((option for word, option in known.items() if change.startswith(word)), None)
