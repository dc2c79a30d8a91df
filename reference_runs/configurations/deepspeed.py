"""DeepSpeed's JSON, and the same table within configurations of other software.

Source: DeepSpeed 0.19.8, runtime/config.py, runtime/zero/config.py, runtime/zero/offload_config.py.
"""

from __future__ import annotations

from reference_runs.configurations.configuration import Framework, Keys, TrainingConfiguration, chosen
from reference_runs.layout import Offload
from reference_runs.run import Optimizer, Precision

STACK = "deepspeed"
_OPTIMIZERS = {"sgd": Optimizer.SGD, "muon": Optimizer.MUON}


def deepspeed(keys: Keys) -> TrainingConfiguration:
    """Training of a DeepSpeed configuration; the model is that of the program which reads it.

    Raises:
        InputError: a value that is none of the key's.
    """
    micro, steps = keys.count("train_micro_batch_size_per_gpu"), keys.count("gradient_accumulation_steps")
    batch = keys.count("train_batch_size")
    tensors = keys.size("tensor_parallel.autotp_size", "tensor_parallel.tp.tp_size", automatic=(0,))  # 0: none
    stages = keys.size("pipeline.stages", "pipeline.pipe_parallel_size")
    notes, refused = [], []
    if any(keys.flag(f"{name}.enabled") for name in ("bf16", "bfloat16")) and keys.flag("fp16.enabled"):
        refused.append("fp16 and bf16 are both enabled")
    ranks = None
    if batch is not None and micro is not None and steps is not None:
        ranks = batch // (micro * steps) * tensors * stages
        if batch % (micro * steps):
            refused.append(f"train_batch_size {batch} is no multiple of micro-batch {micro} * accumulation {steps}")
            ranks = None
        else:
            notes.append(f"{ranks} ranks: train_batch_size / (micro-batch * accumulation)")
    if batch is None and micro is None and keys.given("train_micro_batch_size_per_gpu") is None:
        notes.append("micro-batch of 1, which it does not say")
    return TrainingConfiguration(
        Framework.DEEPSPEED,
        STACK,
        ranks=ranks,
        tensor_parallel=tensors,
        pipeline_stages=stages,
        zero_stage=zero_stage(keys),
        offload=offload(keys),
        micro_batch=micro or 1,
        batch=batch,
        accumulation=None if batch is not None else steps,
        precision=_precision(keys),
        optimizer=_OPTIMIZERS.get(keys.text("optimizer.type").casefold()),
        refused=tuple(refused),
        notes=tuple(notes),
    )


def zero_stage(keys: Keys) -> int:
    """The stage of ZeRO; 0 where it says none.

    Raises:
        InputError: another number.
    """
    stage = keys.count("zero_optimization.stage", "zero_stage", least=0)
    return chosen(str(stage or 0), {"0": 0, "1": 1, "2": 2, "3": 3}, "zero_optimization.stage")


def offload(keys: Keys) -> Offload:
    """State on the host: weights and optimizer state, or the state alone."""
    zero = "zero_optimization"
    kept = ("cpu", "nvme")
    if keys.text(f"{zero}.offload_param.device", "offload_param_device") in kept:
        return Offload.STATE
    of_state = keys.text(f"{zero}.offload_optimizer.device", "offload_optimizer_device") in kept
    return Offload.OPTIMIZER if of_state or keys.flag(f"{zero}.cpu_offload") else Offload.NONE


def _precision(keys: Keys) -> Precision | None:
    """bf16 or fp16 with fp32 master weights, else fp32; None where "auto" leaves it to the program."""
    if any(keys.values.get(f"{name}.enabled") == "auto" for name in ("bf16", "fp16")):
        return None
    if keys.flag("bf16.enabled", "bfloat16.enabled"):
        return Precision.BF16
    if keys.flag("fp16.enabled"):
        return Precision.FP16
    return Precision.FP32 if keys.within("fp16") or keys.within("bf16") else None
