"""Whatever of a run and a layout a format does not write, it refuses or names: each field is varied alone."""

from __future__ import annotations

from typing import Any

import pytest

from reference_runs.catalog import reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Layout, Offload, Recomputation, RecomputedModule, Schedule, StageAssignment
from reference_runs.run import (
    LearningRateDecay,
    Moments,
    Objective,
    Optimizer,
    Precision,
    ProductFormat,
    Recipe,
    Workload,
)
from suite.report.export.formats import FORMATS
from suite.report.export.job import ExportedJob

RUN = reference_run("llama3.1-8b")
# of each field of a recipe the usual value, None where it is not said, and another one
RECIPE_FIELDS: dict[str, tuple[Any, Any]] = {
    "objective": (Objective.CAUSAL_LM, Objective.BLANK_INFILLING),
    "global_batch": (64, 128),
    "batch_rampup_start": (None, (16, 16, 1600)),
    "tokens": (10**9, 2 * 10**9),
    "precision": (Precision.FP16, Precision.FP32),
    "product_format": (None, ProductFormat.FP8_DELAYED),
    "moments": (None, Moments.BF16),
    "adapter_rank": (None, 16),
    "optimizer": (Optimizer.ADAMW, Optimizer.ADAM),
    "beta1": (0.9, 0.8),
    "beta2": (0.95, 0.9),
    "epsilon": (1e-08, 1e-06),
    "weight_decay": (0.1, 0.2),
    "decay_of_vectors": (False, True),
    "gradient_clip": (1.0, 2.0),
    "learning_rate": (0.0003, 0.0001),
    "minimum_learning_rate": (3e-05, 1e-05),
    "learning_rate_decay": (LearningRateDecay.COSINE, LearningRateDecay.LINEAR),
    "warmup": (640, 1280),
    "decay": (6400, 12800),
    "init_std": (0.02, 0.01),
    "residual_init_scaled": (True, False),
    "embedding_dropout": (0.1, 0.2),
    "hidden_dropout": (0.1, 0.2),
    "attention_dropout": (0.1, 0.2),
    "initial_loss_scale": (65536.0, 4096.0),
    "loss_scale_window": (1000, 500),
    "embedding_gradient_shrink": (None, 0.1),
}
RECIPE = {name: usual for name, (usual, _) in RECIPE_FIELDS.items() if usual is not None}
OTHER_RECIPE = {name: other for name, (_, other) in RECIPE_FIELDS.items()}
WITH_ANOTHER = {"batch_rampup_increment", "batch_rampup_samples", "adapter_targets"}  # of the key before them
OF_BLANK_INFILLING = {"gmask_share", "mask_share", "mean_span", "packed_samples", "instruction_share"}  # refused
OBSERVED = {"expert_imbalance"}  # what a router did: no software sets it
OTHER_LAYOUT: dict[str, Any] = {
    "micro_batch": 2,
    "data_parallel": 8,
    "tensor_parallel": 4,
    "pipeline_stages": 2,
    "context_parallel": 2,
    "expert_parallel": 2,
    "whole_experts": True,
    "sequence_parallel": None,
    "zero_stage": None,
    "shard_ranks": 2,
    "virtual_stages": 2,
    "schedule": Schedule.ZERO_BUBBLE,
    "recomputation": Recomputation.NONE,
    "bucket_bytes": 50 * 10**6,
    "rank_order": "dp-tp-cp-pp",
    "stage_assignment": StageAssignment.LAYERS_AND_TABLES,
    "reduce_scatter": None,
    "reshard_after_forward": False,
    "checkpoint_layers": 2,
    "partitioned_checkpoints": True,
    "fused_attention": False,
    "scatter_gather": True,
    "offload": Offload.STATE,
    "stage_layer_counts": (7, 9, 8, 8),
    "stage_replicas": (2, 2, 2, 1),
    "recomputed_modules": (RecomputedModule.MLP,),
}
IMPLIED = {"accumulation"}  # by the batch, the replicas and the micro-batch
BASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "megatron": ({}, {"pipeline_stages": 4, "zero_stage": 1, "reduce_scatter": True}),
    "nemo": ({}, {"pipeline_stages": 4, "zero_stage": 1, "reduce_scatter": True}),
    "torchtitan": (
        {
            "precision": Precision.BF16,
            **dict.fromkeys(("embedding_dropout", "hidden_dropout", "attention_dropout"), 0.0),
        },
        {"pipeline_stages": 4, "zero_stage": 3, "sequence_parallel": True},
    ),
    "deepspeed": ({}, {"zero_stage": 1}),
}
NEUTRAL: dict[str, set[str]] = {
    "megatron": {"reshard_after_forward", "shard_ranks"},  # of ZeRO-3, which is refused
    "nemo": {"reshard_after_forward", "shard_ranks"},
    # loss scales are of fp16, which is refused; Adam's decay is its own key there; stages send as PyTorch does
    "torchtitan": {"initial_loss_scale", "loss_scale_window", "bucket_bytes", "reduce_scatter", "scatter_gather"},
    # no stages, which are refused
    "deepspeed": {"virtual_stages", "schedule", "stage_assignment", "stage_layer_counts", "scatter_gather"}
    | {"reshard_after_forward", "shard_ranks"},
}


def job_of(export: str, recipe: dict[str, Any], layout: dict[str, Any]) -> ExportedJob:
    of_recipe, of_layout = BASES[export]
    values = {**RECIPE, **of_recipe, **recipe}
    axes = {"data_parallel": 4, "tensor_parallel": 2, "fused_attention": True, "recomputation": Recomputation.FULL}
    workload = Workload(RUN.architecture, Recipe(**values), Layout(**{**axes, **of_layout, **layout}))
    return ExportedJob("llama3.1-8b", workload, 8, "megatron-core", tokens=values["tokens"])


def said(export: str, job: ExportedJob) -> str | None:
    """The file without its title, and what is said of it; None where it is refused."""
    try:
        text = FORMATS[export].text(job)
    except InputError:
        return None
    return "\n".join([text.replace(job.title, ""), *FORMATS[export].remarks(job)])


def changed(export: str, field: str) -> ExportedJob:
    if field == "batch_rampup_start":
        start, increment, samples = OTHER_RECIPE[field]
        ramp_up = {field: start, "batch_rampup_increment": increment, "batch_rampup_samples": samples}
        return job_of(export, ramp_up, {})
    if field in OTHER_RECIPE:
        return job_of(export, {field: OTHER_RECIPE[field]}, {})
    own = job_of(export, {}, {}).workload.layout
    value = OTHER_LAYOUT[field]
    if value is None:  # of two values, the other one; of ZeRO stages, none
        value = 0 if field == "zero_stage" else not getattr(own, field)
    more: dict[str, Any] = {"virtual_stages": 2} if field == "schedule" else {}
    more |= {"recomputation": Recomputation.SELECTIVE} if field == "recomputed_modules" else {}
    return job_of(export, {}, {field: value, **more})


def test_every_field_of_a_recipe_and_a_layout_is_varied() -> None:
    assert set(OTHER_RECIPE) | WITH_ANOTHER | OF_BLANK_INFILLING | OBSERVED == set(Recipe.__struct_fields__)
    assert set(OTHER_LAYOUT) | IMPLIED == set(Layout.__struct_fields__)


@pytest.mark.parametrize("export", BASES)
def test_no_field_is_lost_in_silence(export: str) -> None:
    before = said(export, job_of(export, {}, {}))
    assert before is not None
    varied = [field for field in (*OTHER_RECIPE, *OTHER_LAYOUT) if field not in NEUTRAL[export]]
    assert [field for field in varied if said(export, changed(export, field)) == before] == []


@pytest.mark.parametrize("export", ["megatron", "nemo", "torchtitan"])
def test_the_file_itself_says_what_it_leaves_out(export: str) -> None:
    job = job_of(export, {"embedding_gradient_shrink": 0.1}, {})
    words = FORMATS[export].remarks(job)
    assert "embedding_gradient_shrink = 0.1" in words[0]
    text = FORMATS[export].text(job).casefold()
    assert [sentence for sentence in words if sentence.casefold() not in text] == []


def test_a_linear_decay_is_none_of_nemos_and_is_named() -> None:
    job = job_of("nemo", {"learning_rate_decay": LearningRateDecay.LINEAR}, {})
    for word in ("learning_rate_decay = linear", "minimum_learning_rate = 3e-05", "warmup = 640", "decay = 6400"):
        assert word in FORMATS["nemo"].remarks(job)[0]
    assert "schedule = None" in FORMATS["nemo"].text(job)


def test_what_slurm_starts_leaves_out_what_its_file_does() -> None:
    job = job_of("deepspeed", {}, {})._replace(stack="megatron-deepspeed")
    words = FORMATS["slurm"].remarks(job)
    assert words == FORMATS["deepspeed"].remarks(job)
    assert words[0][1:] in FORMATS["slurm"].text(job)
