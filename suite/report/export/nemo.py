"""A training as a script of NeMo 2."""

from __future__ import annotations

from typing import Any

from suite.report.export.job import ExportedJob, on_each, refuse, torchrun_options
from suite.report.export.left_out import comment, writes_cosine
from suite.report.export.megatron_core import core_fields, core_limits
from suite.report.export.names import target_software

PRECISIONS = {"bf16": "bf16-mixed", "fp16": "16-mixed"}
DTYPES = {"bf16-mixed": "bfloat16", "16-mixed": "float16"}
STRATEGY = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "sequence_parallel",
    "use_tp_pp_dp_mapping",
    "pipeline_model_parallel_layout",
)
DATA = ("micro_batch_size", "global_batch_size", "rampup_batch_size")
FORMATS = ("fp8", "fp8_recipe", "fp4", "fp4_recipe")
SCALES = {"initial_loss_scale": "fp16_initial_loss_scale", "loss_scale_window": "fp16_loss_scale_window"}
OPTIMIZER = ("lr", "adam_beta1", "adam_beta2", "adam_eps", "weight_decay", "clip_grad")
ELSEWHERE = (
    *("use_distributed_optimizer", "bf16", "fp16", "min_lr", "lr_warmup_samples", "lr_decay_samples"),
    *("train_samples", "lr_decay_style", "make_vocab_size_divisible_by", "vocab_size", "rope_scaling"),
)
EXPRESSIONS = {
    "activation_func": {"gelu": "F.gelu", "silu": "F.silu", "squared_relu": "squared_relu"},
    "attention_backend": {"fused": "AttnBackend.fused", "unfused": "AttnBackend.unfused"},
}

Arguments = dict[str, Any]


def nemo(job: ExportedJob) -> str:
    """A Python script that trains; to be started by torchrun, `job.ranks_of_node` processes on each node.

    Raises:
        InputError: something of the training has no argument; the line names it.
    """
    calls = nemo_arguments(job)
    config = "Llama31Config" if job.workload.architecture.rotary_scaling_factor else "GPTConfig"
    number = DTYPES.get(calls["MegatronMixedPrecision"]["precision"], "float32")
    strategy = _call("nl.MegatronStrategy", calls["MegatronStrategy"], f"pipeline_dtype=torch.{number}", "ddp=ddp")
    schedule = "None"
    if "CosineAnnealingScheduler" in calls:
        schedule = _call("nl.lr_scheduler.CosineAnnealingScheduler", calls["CosineAnnealingScheduler"])
    return f"""\
# {job.title}
# {target_software("nemo").title}. Start {on_each(job)} with: torchrun {torchrun_options(job, head="HEAD")} FILE.py
# To fill in: the data (llm.PreTrainingDataModule(paths=..., tokenizer=..., ...) with the same sizes) and checkpoints.
{comment(job, "nemo")}
import torch
import torch.nn.functional as F
from megatron.core.activations import squared_relu
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.enums import AttnBackend
from nemo import lightning as nl
from nemo.collections import llm

if __name__ == "__main__":
    ddp = {_call("DistributedDataParallelConfig", calls["DistributedDataParallelConfig"])}
    strategy = {strategy}
    precision = {_call("nl.MegatronMixedPrecision", calls["MegatronMixedPrecision"])}
    config = {_call(f"llm.{config}", calls["GPTConfig"])}
    data = {_call("llm.MockDataModule", calls["MockDataModule"])}
    optimizer = {_call("OptimizerConfig", calls["OptimizerConfig"])}
    schedule = {schedule}
    trainer = {_call("nl.Trainer", calls["Trainer"], "strategy=strategy", "plugins=precision")}
    llm.pretrain(
        model=llm.GPTModel(config),
        data=data,
        trainer=trainer,
        optim=nl.MegatronOptimizerModule(config=optimizer, lr_scheduler=schedule),
    )
"""


def nemo_arguments(job: ExportedJob) -> dict[str, Arguments]:
    """Class -> arguments that are no objects of the script.

    Raises:
        InputError: something of the training has no argument.
    """
    architecture, _, layout = job.workload
    limits = [*core_limits(job), (architecture.key_value_rank is not None, "latent attention: llm.GPTConfig has none")]
    refuse(target_software("nemo").title, limits)
    fields = core_fields(job)
    shares = fields["use_distributed_optimizer"]
    calls: dict[str, Arguments] = {
        "MegatronStrategy": _taken(fields, STRATEGY),
        "DistributedDataParallelConfig": {
            "use_distributed_optimizer": shares,
            "grad_reduce_in_fp32": not fields["fp16"],
        },
        "MegatronMixedPrecision": {
            "precision": next((text for field, text in PRECISIONS.items() if fields[field]), "32"),
            **_taken(fields, FORMATS),
            **{SCALES[field]: value for field, value in _taken(fields, SCALES).items() if fields["fp16"]},
        },
        "MockDataModule": {"seq_length": architecture.sequence, **_taken(fields, DATA)},
        "OptimizerConfig": {
            "optimizer": "adam",
            "use_distributed_optimizer": shares,
            "bf16": fields["bf16"],
            "fp16": fields["fp16"],
            **_taken(fields, OPTIMIZER),
        },
        "Trainer": {
            "accelerator": "gpu",
            "devices": job.ranks_of_node,
            "num_nodes": job.nodes,
            "max_steps": job.steps,
            "use_distributed_sampler": False,
        },
    }
    if layout.virtual_stages > 1:
        calls["MegatronStrategy"]["virtual_pipeline_model_parallel_size"] = layout.virtual_stages
    if writes_cosine(job):
        calls["CosineAnnealingScheduler"] = {
            "max_steps": job.steps_of(fields["lr_decay_samples"]),
            "warmup_steps": job.steps_of(fields["lr_warmup_samples"]),
            "constant_steps": 0,
            "min_lr": fields["min_lr"],
        }
    model = {field: value for field, value in fields.items() if field not in ELSEWHERE}
    model["vocab_size"] = architecture.padded_vocabulary
    if factor := model.pop("rope_scaling_factor", None):
        model["scale_factor"] = factor
    calls["GPTConfig"] = model
    return calls


def _taken(fields: Arguments, names: Any) -> Arguments:
    """The named fields, which are taken out."""
    return {name: fields.pop(name) for name in names if name in fields}


def _call(name: str, arguments: Arguments, *more: str) -> str:
    words = [f"{key}={_literal(key, value)}" for key, value in arguments.items()]
    lines = "".join(f"\n        {word}," for word in (*words, *more))
    return f"{name}({lines}\n    )"


def _literal(key: str, value: Any) -> str:
    if key in EXPRESSIONS:
        return EXPRESSIONS[key][value]
    return repr(list(value)) if isinstance(value, tuple) else repr(value)
