"""Recipes of torchtune.

Source: torchtune 0.6.1, recipes/full_finetune_distributed.py, training/_distributed.py.
"""

from __future__ import annotations

from pathlib import Path

from reference_runs.configurations.configuration import (
    ConfiguredAdapters,
    Framework,
    Keys,
    TrainingConfiguration,
    chosen,
)
from reference_runs.layout import Offload, Recomputation
from reference_runs.run import Moments, Optimizer, Precision

_SMALLER = ("enable_activation_offloading", "optimizer_in_bwd")


def torchtune(keys: Keys, path: Path) -> TrainingConfiguration:
    """Training of torchtune: FSDP2 over all accelerators, unless the file's name says that it is of one.

    Raises:
        InputError: a value that is none of the key's.
    """
    tuned, name = torchtune_model(keys)
    tensors, copies = keys.size("tensor_parallel_dim"), keys.count("data_parallel_replicate_dim")
    optimizer = keys.text("optimizer._component_")
    dtype = {"bf16": Precision.BF16_PURE, "fp32": Precision.FP32, "fp16": Precision.FP16}
    host = keys.flag("fsdp_cpu_offload")
    alone = "single_device" in path.stem or "low_memory" in path.stem
    unlike = [name for name in _SMALLER if keys.flag(name)]
    return TrainingConfiguration(
        Framework.TORCHTUNE,
        "pytorch",
        model=name,
        tensor_parallel=tensors,
        sequence_parallel=tensors > 1,
        replicas=copies,
        ranks=1 if alone else None,
        zero_stage=0 if alone else 3,
        recomputation=Recomputation.FULL if keys.flag("enable_activation_checkpointing") else Recomputation.NONE,
        offload=Offload.STATE if host else Offload.NONE,
        micro_batch=keys.size("batch_size"),
        accumulation=keys.size("gradient_accumulation_steps"),
        sequence=keys.count("tokenizer.max_seq_len", "dataset.max_seq_len", "max_seq_len"),
        shorter=not keys.flag("dataset.packed"),
        precision=chosen(keys.text("dtype") or "fp32", dtype, "dtype"),
        moments=Moments.FP8 if "8bit" in optimizer else Moments.FP32,
        optimizer=Optimizer.SGD if optimizer.endswith("SGD") else None,
        adapters=ConfiguredAdapters(keys.count("model.lora_rank") or 8, tuned == "qlora") if tuned else None,
        chunked_loss=any(word in keys.text("loss._component_") for word in ("Chunked", "LinearCrossEntropy")),
        undescribed=tuple(unlike),
    )


def torchtune_model(keys: Keys) -> tuple[str, str]:
    """Kind of adapters, "lora" or "qlora" or none, and name of the model."""
    component = keys.text("model._component_").rpartition(".")[2]
    tuned, _, name = component.partition("_") if component.startswith(("lora_", "qlora_")) else ("", "", component)
    return tuned, name
