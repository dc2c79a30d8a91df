"""Arguments of Hugging Face's Trainer, of axolotl and LLaMA-Factory, which are built on it, and accelerate's files.

Source: transformers 5, training_args.py; axolotl 0.19.0, utils/schemas; LLaMA-Factory 0.9.5, hparams and
model/adapter.py; accelerate 1.15.0, utils/dataclasses.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reference_runs.configurations import deepspeed
from reference_runs.configurations.configuration import (
    OF_NODE,
    ConfiguredAdapters,
    Framework,
    Keys,
    TrainingConfiguration,
    chosen,
    is_file,
)
from reference_runs.configurations.document import flat, read_document
from reference_runs.errors import InputError
from reference_runs.layout import Offload, Recomputation
from reference_runs.run import Moments, Optimizer, Precision

STACK = "transformers"
MODEL_KEYS = {
    Framework.TRAINER: ("model_name_or_path", "model_name", "model"),
    Framework.AXOLOTL: ("base_model",),
    Framework.LLAMA_FACTORY: ("model_name_or_path",),
}
MOST_ABOVE = 6  # directories above a file in which a path that it names may begin
_STATELESS = ("adafactor", "sgd", "apollo", "galore", "badam", "lomo")


def beside(path: Path, name: str) -> Path | None:
    """The file that a configuration names: from its own directory, or from one above it; None: there is none."""
    if Path(name).is_absolute():
        return None
    places = [path.parent, *path.absolute().parent.parents][:MOST_ABOVE]
    return next((place / name for place in places if is_file(place / name)), None)


def trainer(keys: Keys, path: Path) -> TrainingConfiguration:
    """Training of TrainingArguments; the program loads the model, whose weights are taken to be fp32 under autocast.

    Raises:
        InputError: a value that is none of the key's.
    """
    read = _common(keys, path, micro="per_device_train_batch_size", software=Framework.TRAINER)
    lora = keys.flag("use_peft") or keys.count("lora_r", "lora_rank") is not None
    dtype = keys.text("torch_dtype", "dtype", "model_init_kwargs.dtype", "model_init_kwargs.torch_dtype")
    precision = Precision.BF16_PURE if "bf16" in dtype or "bfloat16" in dtype else _mixed(keys)
    return read._replace(
        model=keys.text(*MODEL_KEYS[Framework.TRAINER]),
        precision=read.precision or precision,
        sequence=keys.count("max_seq_length", "max_length", "block_size", "cutoff_len"),
        shorter=not keys.flag("packing") and keys.given("block_size") is None,
        adapters=ConfiguredAdapters(keys.count("lora_r", "lora_rank") or 16, _four_bits(keys)) if lora else None,
    )


def axolotl(keys: Keys, path: Path) -> TrainingConfiguration:
    """Training of axolotl. Without DeepSpeed the model is trained in the dtype that it is loaded in.

    Raises:
        InputError: a value that is none of the key's.
    """
    read = _common(keys, path, micro="micro_batch_size", software=Framework.AXOLOTL)
    adapter = keys.text("adapter")
    autocast_off = str(keys.values.get("bf16", "")).casefold() == "false"
    narrow = keys.flag("float16", "bfloat16")  # weights, gradients and moments in 16 bits: of fp16 the bytes of bf16
    pure = Precision.FP32 if autocast_off and not narrow else Precision.BF16_PURE
    if keys.flag("fp16") and pure is Precision.FP32:
        pure = Precision.FP16
    copies, shards = keys.count("dp_replicate_size"), keys.count("dp_shard_size")
    experts = keys.size("expert_parallel_size")
    tensors, contexts = (
        keys.size("tensor_parallel_size"),
        keys.size("context_parallel_size", "sequence_parallel_degree"),
    )
    ranks = (copies or 1) * (shards or 1) * experts * tensors * contexts
    notes = read.notes
    if keys.given("rl") is not None:
        notes += (f"memory of {keys.text('rl')}'s further models is not counted",)
    return read._replace(
        model=keys.text(*MODEL_KEYS[Framework.AXOLOTL]),
        precision=read.precision or pure,
        sequence=keys.count("sequence_len"),
        ranks=None if copies is None and shards is None else ranks,
        tensor_parallel=tensors,
        context_parallel=contexts,
        sequence_parallel=tensors > 1,
        expert_parallel=experts,
        replicas=copies,
        shorter=not keys.flag("sample_packing"),
        adapters=_adapters(keys, adapter, "lora_r", 8) if adapter else None,
        notes=notes,
    )


def llama_factory(keys: Keys, path: Path) -> TrainingConfiguration:
    """Training of LLaMA-Factory; it recomputes layers unless `disable_gradient_checkpointing` is true.

    Raises:
        InputError: a value that is none of the key's.
    """
    read = _common(keys, path, micro="per_device_train_batch_size", software=Framework.LLAMA_FACTORY)
    kind = keys.text("finetuning_type") or "lora"
    kept = keys.flag("disable_gradient_checkpointing")
    adapters = None
    if kind in ("lora", "oft"):
        four = keys.count("quantization_bit") in (2, 3, 4)
        adapters = ConfiguredAdapters(keys.count("lora_rank", "oft_block_size") or 8, four or _four_bits(keys))
    notes = read.notes
    if kind == "freeze":
        notes += ("all weights are taken to be trained, and it freezes some",)
    if keys.text("stage") in ("dpo", "ppo", "kto") and adapters is None:
        notes += (f"memory of {keys.text('stage')}'s further models is not counted",)
    return read._replace(
        model=keys.text(*MODEL_KEYS[Framework.LLAMA_FACTORY]),
        precision=Precision.BF16_PURE if keys.flag("pure_bf16") else read.precision or _mixed(keys),
        sequence=keys.count("cutoff_len") or 2048,
        recomputation=Recomputation.NONE if kept else Recomputation.FULL,
        shorter=not keys.flag("packing") and keys.text("stage") != "pt",
        adapters=adapters,
        notes=notes,
    )


def accelerate(keys: Keys) -> TrainingConfiguration:
    """Training of `accelerate config`: processes, and how state is sharded; model and batch are the program's.

    Raises:
        InputError: a value that is none of the key's.
    """
    kind, notes = keys.text("distributed_type").upper(), ["micro-batch of 1, which it does not say"]
    stage, offload, stack = 0, Offload.NONE, STACK
    if kind == "DEEPSPEED":
        values = {name.removeprefix("deepspeed_config."): value for name, value in keys.values.items()}
        inner = Keys(values, has_auto=True)
        stage, offload, stack = deepspeed.zero_stage(inner), deepspeed.offload(inner), deepspeed.STACK
    elif kind == "FSDP":
        stage, offload = 3, Offload.STATE if keys.flag("fsdp_config.fsdp_offload_params") else Offload.NONE
    checkpoints = keys.flag("fsdp_config.fsdp_activation_checkpointing")
    mixed = keys.text("mixed_precision")
    named = {"bf16": Precision.BF16, "fp16": Precision.FP16, "no": Precision.FP32, "fp8": Precision.BF16}
    return TrainingConfiguration(
        Framework.ACCELERATE,
        stack,
        ranks=keys.count("num_processes"),
        zero_stage=stage,
        offload=offload,
        recomputation=Recomputation.FULL if checkpoints else Recomputation.NONE,
        precision=chosen(mixed, named, "mixed_precision") if mixed else None,
        notes=tuple(notes),
    )


_SPLIT = ("tensor_parallel_size", "context_parallel_size", "sequence_parallel_degree", "sequence_parallel_size")
_CHUNKED = (  # keys of a loss whose logits are never whole
    *("cut_cross_entropy", "liger_fused_linear_cross_entropy", "chunked_cross_entropy"),
    *("enable_liger_kernel", "use_liger_kernel"),
)
_SMALLER = (  # keys that make memory smaller in a way of their own
    *("quantize_moe_experts", "use_kt", "use_badam", "use_galore", "use_apollo", "tiled_mlp", "layer_offloading"),
    *("use_adam_mini", "lisa_n_layers", "unfrozen_parameters", "activation_offloading"),
)


def _common(keys: Keys, path: Path, *, micro: str, software: Framework) -> TrainingConfiguration:
    """Keys that Trainer, axolotl and LLaMA-Factory have in common."""
    stage, offload, precision, notes = 0, Offload.NONE, None, []
    stack, ranks = STACK, keys.count("num_processes", "nproc_per_node", automatic=OF_NODE)
    inner = {k.removeprefix("deepspeed."): v for k, v in keys.values.items() if k.startswith("deepspeed.")}
    if name := keys.text("deepspeed"):
        named = beside(path, name)
        if named is None:
            raise InputError(f"deepspeed: {name} is not there", allowed="a file beside it, or in a directory above")
        inner = flat(_of_deepspeed(named, name))
    refused: list[str] = []
    if software in (Framework.TRAINER, Framework.LLAMA_FACTORY) and keys.flag("bf16") and keys.flag("fp16"):
        refused.append("bf16 and fp16 are both true")
    if inner:
        of_deepspeed = Keys(inner, has_auto=True)
        read = deepspeed.deepspeed(of_deepspeed)
        refused += [*read.refused, *_mismatches(keys, of_deepspeed, micro=micro, ranks=ranks)]
        stage, offload, precision, stack = read.zero_stage, read.offload, read.precision, deepspeed.STACK
    elif keys.given("fsdp") is not None or keys.within("fsdp_config"):
        stage = 3
        host = keys.flag("fsdp_config.offload_params", "fsdp_config.fsdp_offload_params")
        offload = Offload.STATE if host or "offload" in str(keys.values.get("fsdp")) else Offload.NONE
    name = keys.text("optim", "optimizer")
    if "paged" in name:
        notes.append("its paged optimizer may keep state on the host")
    return TrainingConfiguration(
        software,
        stack,
        ranks=ranks,
        zero_stage=stage,
        offload=offload,
        recomputation=Recomputation.FULL if _recomputes(keys) else Recomputation.NONE,
        micro_batch=keys.count(micro) or (8 if software is Framework.TRAINER else 1),
        accumulation=keys.size("gradient_accumulation_steps"),
        precision=precision,
        moments=Moments.FP8 if "8bit" in name else Moments.FP32,
        optimizer=Optimizer.SGD if name.startswith(_STATELESS) else None,
        launcher_shards=stage < 3,
        chunked_loss=any(keys.flag(name) for name in _CHUNKED),
        undescribed=tuple(_smaller(keys)),
        refused=tuple(refused),
        notes=(*notes, *(f"{name}: counted as without moments" for _ in range(name.startswith(_STATELESS)))),
    )


def _of_deepspeed(path: Path, name: str) -> dict[str, Any]:
    try:
        return read_document(path).values
    except InputError as error:
        raise InputError(f"deepspeed: {name}: {error}") from error


def _mismatches(keys: Keys, inner: Keys, *, micro: str, ranks: int | None) -> Iterator[str]:
    """Numbers of a DeepSpeed configuration that differ from those of the file which names it, as transformers refuses.

    Source: transformers 4.57.6, integrations/deepspeed.py, fill_match.
    """
    own = {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": "gradient_accumulation_steps"}
    for name, called in own.items():
        there, here = inner.count(name), keys.count(called)
        if there is not None and here is not None and there != here:
            yield f"DeepSpeed's {name} is {there}, and {called} is {here}"
    there, each = inner.count("train_batch_size"), keys.count(micro)
    if there is None or each is None:
        return
    steps = keys.size("gradient_accumulation_steps")
    if there % (each * steps):
        yield f"DeepSpeed's train_batch_size {there} is no multiple of {micro} {each} * accumulation {steps}"
    elif ranks is not None and keys.size(*_SPLIT) == 1 and there != each * steps * ranks:
        whole = each * steps * ranks
        yield f"DeepSpeed's train_batch_size is {there}, and {each} * {steps} * {ranks} ranks are {whole}"


def _smaller(keys: Keys) -> Iterator[str]:
    """Keys that are on and that nothing here describes the memory of."""
    yield from (name for name in _SMALLER if keys.flag(name))
    if str(keys.values.get("gradient_checkpointing", "")).startswith("offload"):
        yield "gradient_checkpointing: offload"


def _recomputes(keys: Keys) -> bool:
    """Whether gradient checkpointing is on; axolotl's "offload" is too."""
    value = keys.values.get("gradient_checkpointing")
    fsdp = keys.flag("fsdp_config.activation_checkpointing", "fsdp_config.fsdp_activation_checkpointing")
    return fsdp or (isinstance(value, str) and value.startswith("offload")) or keys.flag("gradient_checkpointing")


def _mixed(keys: Keys) -> Precision:
    return Precision.BF16 if keys.flag("bf16") else Precision.FP16 if keys.flag("fp16") else Precision.FP32


def _adapters(keys: Keys, kind: str, rank: str, usual: int) -> ConfiguredAdapters:
    return ConfiguredAdapters(keys.count(rank) or usual, kind == "qlora" or _four_bits(keys))


def _four_bits(keys: Keys) -> bool:
    """Whether weights are loaded in 4 bits, as a key or the name of the stored model says."""
    name = keys.text("base_model", "model_name_or_path", "model_name", "model").casefold()
    return keys.flag("load_in_4bit") or re.search(r"4-?bit|nf4", name) is not None
