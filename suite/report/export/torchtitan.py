"""A training as torchtitan's TOML."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reference_runs.layout import Layout, Offload, Recomputation, Schedule
from reference_runs.placement import chunk_layers
from reference_runs.run import Architecture, Objective, Optimizer, Precision, ProductFormat
from reference_runs.run_text import toml_value
from suite.report.export.job import ExportedJob, on_each, refuse, torchrun_options
from suite.report.export.left_out import comment
from suite.report.export.names import recorded_names, target_software
from suite.report.export.schedule import schedule_of

SCHEDULES = {
    (Schedule.GPIPE, False): "GPipe",
    (Schedule.ONE_F_ONE_B, False): "1F1B",
    (Schedule.ONE_F_ONE_B, True): "Interleaved1F1B",
    (Schedule.ZERO_BUBBLE, True): "InterleavedZeroBubble",
}
ORDER = ["tp", "cp", "dp", "pp"]


def torchtitan(job: ExportedJob) -> str:
    """The configuration, as `--job.config_file` reads it.

    Raises:
        InputError: something of the training has no key, or the model is none of torchtitan's flavors.
    """
    start = f"torchrun {torchrun_options(job, head='HEAD')} -m torchtitan.train --job.config_file FILE.toml"
    lines = [
        f"# {job.title}",
        f"# {target_software('torchtitan').title}. Start {on_each(job)} with: {start}",
        *comment(job, "torchtitan").splitlines(),
        "# To fill in: [model] hf_assets_path (tokenizer), [training] dataset, [checkpoint].",
    ]
    for section, values in torchtitan_sections(job).items():
        lines += ["", f"[{section}]", *(f"{key} = {toml_value(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def torchtitan_sections(job: ExportedJob) -> dict[str, dict[str, Any]]:
    """Section -> key -> value.

    Raises:
        InputError: as `torchtitan`.
    """
    architecture, recipe, layout = job.workload
    flavor = _flavor(architecture)
    shapes = ", ".join(recorded_names()["torchtitan"]["flavors"])
    limits = [
        (flavor is None, f"this model's shape (it has Llama 3.1's {shapes})"),
        *_limits(job),
        (job.ramp_up is not None, "a batch that grows"),
    ]
    refuse(target_software("torchtitan").title, limits)
    in_pipeline = job.micro_batches if layout.pipeline_stages > 1 else 1
    return {
        "job": {"description": job.name},
        "model": {"name": "llama3", "flavor": flavor},
        "training": {
            "local_batch_size": layout.micro_batch * in_pipeline,
            "global_batch_size": recipe.global_batch,
            "seq_len": architecture.sequence,
            "steps": job.steps,
            **_given(job, max_norm="gradient_clip"),
            "dtype": "float32",
            "mixed_precision_param": "bfloat16" if recipe.precision is Precision.BF16 else "float32",
            "mixed_precision_reduce": "float32",
        },
        "optimizer": {
            "name": "Adam" if job.recorded("optimizer") is Optimizer.ADAM else "AdamW",
            **_given(job, lr="learning_rate", beta1="beta1", beta2="beta2", eps="epsilon", weight_decay="weight_decay"),
        },
        "lr_scheduler": _schedule(job),
        "parallelism": _parallelism(architecture, layout),
        "activation_checkpoint": {"mode": layout.recomputation.value},
    }


def _limits(job: ExportedJob) -> Iterator[tuple[bool, str]]:
    _, recipe, layout = job.workload
    objective, dropouts = job.recorded("objective"), ("hidden_dropout", "attention_dropout", "embedding_dropout")
    several = layout.state_ranks > 1
    apart = layout.tensor_parallel > 1 or layout.pipeline_stages > 1 or layout.context_parallel > 1
    piped, interleaved = layout.pipeline_stages > 1, layout.virtual_stages > 1
    sizes = {
        "tp": layout.tensor_parallel,
        "cp": layout.context_parallel,
        "dp": layout.data_parallel,
        "pp": layout.pipeline_stages,
    }
    order = [axis for axis in layout.axis_order if sizes.get(axis, 1) > 1]
    recomputed = layout.recomputation
    yield layout.stage_replicas is not None, "replicas of each stage"
    yield layout.expert_parallel > 1, "ep without experts"
    yield layout.whole_experts and layout.tensor_parallel > 1, "whole experts over tensor-parallel ranks"
    yield several and layout.zero_stage == 1, "zero1"
    yield several and layout.zero_stage == 0 and apart, "replicas of zero0 beside other axes"
    yield several and layout.zero_stage > 1 and layout.sharding_ranks % layout.context_parallel > 0, "these shards"
    yield layout.tensor_parallel > 1 and not layout.sequence_parallel, "tp without sp"
    named = f"{layout.schedule.value}{',interleave' if interleaved else ' without interleave'}"
    yield piped and (layout.schedule, interleaved) not in SCHEDULES, f"the schedule {named}"
    yield recomputed not in (Recomputation.NONE, Recomputation.FULL), f"recompute-{recomputed.value} as it is here"
    yield layout.checkpoint_layers > 1, f"every{layout.checkpoint_layers}"
    yield not layout.fused_attention, "unfused attention"
    yield layout.offload is not Offload.NONE, "offload"
    yield layout.partitioned_checkpoints and layout.tensor_parallel > 1, "partitioned checkpoints"
    yield order != [axis for axis in ORDER if sizes[axis] > 1], f"the order {layout.rank_order}"
    yield recipe.precision not in (Precision.BF16, Precision.FP32), recipe.precision.value
    yield recipe.product_format is not ProductFormat.NONE, f"products in {recipe.product_format}"
    yield objective not in (None, Objective.CAUSAL_LM), f"the objective {objective}"
    yield any(job.recorded(key) for key in dropouts), "dropout"


def _flavor(architecture: Architecture) -> str | None:
    """The flavor that has this shape."""
    recorded = recorded_names()["torchtitan"]
    for name, shape in recorded["flavors"].items():
        wanted = {**recorded["common"], **shape, "rotary_dim": recorded["common"]["head_dim"], "experts": None}
        wanted |= {"key_value_rank": None, "sliding_window": None, "attention_bias": None, "norm_gain": True}
        wanted |= {"attention_sinks": False, "attention_gate": False, "linear_heads": None}
        if all(getattr(architecture, field) == value for field, value in wanted.items()):
            return str(name)
    return None


def _parallelism(architecture: Architecture, layout: Layout) -> dict[str, Any]:
    shards = layout.sharding_ranks // layout.context_parallel if layout.zero_stage > 1 else 1
    kept = layout.zero_stage == 2 or not layout.reshard_after_forward
    found: dict[str, Any] = {
        "data_parallel_replicate_degree": layout.replicas // shards,
        "data_parallel_shard_degree": shards,
        "fsdp_reshard_after_forward": "never" if kept else "always",
        "tensor_parallel_degree": layout.tensor_parallel,
        "context_parallel_degree": layout.context_parallel,
        "pipeline_parallel_degree": layout.pipeline_stages,
    }
    if layout.pipeline_stages > 1:
        parts = [[f"layers.{layer}" for layer in layers] for layers in chunk_layers(architecture.layers, layout)]
        parts[0].insert(0, "tok_embeddings")
        parts[-1] += ["norm", "output"]
        found |= {
            "pipeline_parallel_schedule": SCHEDULES[layout.schedule, layout.virtual_stages > 1],
            "pipeline_parallel_microbatch_size": layout.micro_batch,
            "module_fqns_per_model_part": parts,
        }
    return found


def _schedule(job: ExportedJob) -> dict[str, Any]:
    """Keys of [lr_scheduler]. Beyond total_steps its cosine rises again, so that they are never below the training's.

    Source: torchtitan 0.2.2, components/lr_scheduler.py, linear_warmup_stable_decay.
    """
    peak, (warmup, decay, _) = job.recorded("learning_rate"), schedule_of(job)
    found: dict[str, Any] = {}
    if warmup is not None:
        found["warmup_steps"] = job.steps_of(warmup)
    if decay is not None:
        found["total_steps"] = max(job.steps, job.steps_of(decay))
    if (shape := job.recorded("learning_rate_decay")) is not None:
        found["decay_type"] = str(shape)
    least = job.recorded("minimum_learning_rate")
    if isinstance(least, float | int) and isinstance(peak, float | int):
        found["min_lr_factor"] = least / peak
    return found


def _given(job: ExportedJob, **keys: str) -> dict[str, object]:
    """Name there -> value, of the keys of the recipe that are recorded."""
    return {name: job.recorded(key) for name, key in keys.items() if job.recorded(key) is not None}
