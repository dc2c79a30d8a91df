"""A training as DeepSpeed's JSON: batch, ZeRO, tensor parallelism, precision, optimizer; the script has the model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from reference_runs.layout import Layout, Offload, Recomputation
from reference_runs.run import Architecture, Optimizer, Precision, ProductFormat, Recipe
from suite.report.export.job import ExportedJob, refuse
from suite.report.export.names import target_software


def deepspeed(job: ExportedJob) -> str:
    """The configuration, as `--deepspeed_config` reads it.

    Raises:
        InputError: something of the training has no key; the line names it.
    """
    return json.dumps(deepspeed_configuration(job), indent=2) + "\n"


def deepspeed_configuration(job: ExportedJob) -> dict[str, Any]:
    """Section or key -> value.

    Raises:
        InputError: as `deepspeed`.
    """
    architecture, recipe, layout = job.workload
    limits = [*_limits(architecture, recipe, layout), (job.ramp_up is not None, "a batch that grows")]
    refuse(f"{target_software('deepspeed').title}'s JSON", limits)
    zero: dict[str, Any] = {"stage": layout.zero_stage}
    if layout.zero_stage == 1:
        zero["reduce_scatter"] = layout.reduce_scatter
    found: dict[str, Any] = {
        "train_batch_size": recipe.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": job.micro_batches,
        "zero_optimization": zero,
        **_precision(job),
        "optimizer": _optimizer(job),
    }
    if (clip := job.recorded("gradient_clip")) is not None:
        found["gradient_clipping"] = clip
    if layout.tensor_parallel > 1:
        found["tensor_parallel"] = {"autotp_size": layout.tensor_parallel}
    if layout.recomputation is Recomputation.FULL:
        found["activation_checkpointing"] = {
            "number_checkpoints": -(-architecture.layers // layout.checkpoint_layers),
            "partition_activations": layout.partitioned_checkpoints and layout.tensor_parallel > 1,
        }
    return found


def _limits(architecture: Architecture, recipe: Recipe, layout: Layout) -> Iterator[tuple[bool, str]]:
    sharded = layout.zero_stage == 3 and layout.state_ranks > 1
    engine = "pipeline stages, which its pipeline engine takes from the script"
    yield layout.pipeline_stages > 1, f"pp{layout.pipeline_stages}: {engine}"
    yield layout.stage_replicas is not None, "replicas of each stage"
    yield layout.context_parallel > 1, f"cp{layout.context_parallel}"
    yield layout.expert_parallel > 1, f"ep{layout.expert_parallel}: ranks of experts, which the script says"
    yield layout.whole_experts and layout.tensor_parallel > 1, "whole experts over tensor-parallel ranks"
    yield layout.sequence_parallel and layout.tensor_parallel > 1, "sp"
    yield sharded and not layout.reshard_after_forward, "noreshard"
    yield layout.shard_ranks is not None, f"shard{layout.shard_ranks}"
    yield layout.offload is not Offload.NONE, "offload"
    kinds = (Recomputation.NONE, Recomputation.FULL)
    yield layout.recomputation not in kinds, f"recompute-{layout.recomputation.value}"
    yield bool(architecture.kv_heads % layout.tensor_parallel), "copies of key-value heads"
    order = [axis for axis in layout.axis_order if axis in ("tp", "dp")]
    alone = layout.tensor_parallel == 1 or layout.data_parallel == 1
    yield order != ["tp", "dp"] and not alone, f"the order {layout.rank_order}"
    yield not recipe.precision.has_masters, f"{recipe.precision}: no master weights"
    yield recipe.product_format is not ProductFormat.NONE, f"products in {recipe.product_format}"


def _precision(job: ExportedJob) -> dict[str, Any]:
    precision, window = job.workload.recipe.precision, job.recorded("loss_scale_window")
    if not precision.scaled:
        return {"bf16": {"enabled": precision is Precision.BF16}}
    scaling: dict[str, Any] = {"enabled": True}
    if isinstance(scale := job.recorded("initial_loss_scale"), float | int):
        scaling["initial_scale_power"] = round(math.log2(scale))
    if window is not None:
        scaling["loss_scale_window"] = window
    return {"fp16": scaling}


def _optimizer(job: ExportedJob) -> dict[str, Any]:
    found = {"lr": job.recorded("learning_rate"), "eps": job.recorded("epsilon")}
    betas = [job.recorded("beta1"), job.recorded("beta2")]
    found |= {"betas": None if None in betas else betas, "weight_decay": job.recorded("weight_decay")}
    name = "Adam" if job.recorded("optimizer") is Optimizer.ADAM else "AdamW"
    return {"type": name, "params": {key: value for key, value in found.items() if value is not None}}
