"""Megatron-Core's fields of recorded models, and features that it has no field for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout
from reference_runs.run import Norm, Position, Precision, Residual, Workload
from suite.report.export.formats import FORMATS
from suite.report.export.job import ExportedJob
from suite.report.export.megatron_core import core_fields, core_limits
from suite.report.export.names import recorded_names, target_software


def job_of(name: str, layout: Layout, architecture: dict[str, Any], recipe: dict[str, Any]) -> ExportedJob:
    run = reference_run(name)
    workload = Workload(
        msgspec.structs.replace(run.architecture, **architecture),
        msgspec.structs.replace(run.recipe, **{"global_batch": 1536 * layout.replicas * layout.micro_batch, **recipe}),
        layout,
    )
    return ExportedJob(name, workload, 8, "megatron-core", tokens=10**12)


def limits(name: str, layout: Layout | None = None, **architecture: Any) -> list[str]:
    job = job_of(name, layout or Layout(), architecture, {})
    return [words for wrong, words in core_limits(job) if wrong]


def test_latent_attention_and_experts_of_deepseek() -> None:
    fields = core_fields(job_of("deepseek-v3", Layout(expert_parallel=8, zero_stage=1, reduce_scatter=True), {}, {}))
    wanted = {
        "multi_latent_attention": True,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_head_dim": 128,
        "qk_pos_emb_head_dim": 64,
        "v_head_dim": 128,
        "num_moe_experts": 256,
        "moe_router_topk": 8,
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_num_groups": 8,
        "moe_router_group_topk": 4,
        "moe_shared_expert_intermediate_size": 2048,
        "moe_layer_freq": [0] * 3 + [1] * 58,
        "expert_model_parallel_size": 8,
    }
    assert {field: fields[field] for field in wanted} == wanted
    assert limits("deepseek-v3") == []


def test_recorded_models_of_megatrons_family_have_a_place() -> None:
    names = ("gpt3-175b", "llama2-70b", "llama3.1-405b", "nemotron4-340b", "qwen3-30b-a3b", "mixtral-8x22b")
    assert {name: limits(name) for name in names} == {name: [] for name in names}


WITHOUT_A_PLACE: dict[str, dict[str, Any]] = {
    "ALiBi": {"position": Position.ALIBI, "rotary_dim": None, "rotary_base": None},
    "a norm of embeddings": {"embedding_norm": True},
    "the norm output-rms-norm": {"norm": Norm.OUTPUT_RMS_NORM},
    "parallel branches of a block": {"residual": Residual.PARALLEL},
    "a sliding_window": {"sliding_window": 4096},
    "biases of these places alone": {"projection_bias": True},
    "scaled embeddings": {"scaled_embedding": True},
}


def test_what_has_no_place_is_named() -> None:
    named = {words: limits("llama2-70b", **change) for words, change in WITHOUT_A_PLACE.items()}
    assert named == {words: [words] for words in WITHOUT_A_PLACE}


def test_an_order_of_ranks_is_one_of_megatrons_two() -> None:
    axes = {"data_parallel": 2, "tensor_parallel": 2, "pipeline_stages": 2}
    for order, mapped in (("tp-cp-dp-pp", False), ("tp-cp-pp-dp", True)):
        job = job_of("llama2-70b", Layout(**axes, rank_order=order), {}, {})
        assert core_fields(job)["use_tp_pp_dp_mapping"] is mapped
    assert limits("llama2-70b", Layout(**axes, rank_order="dp-tp-cp-pp")) == ["the order dp-tp-cp-pp"]
    alone = Layout(tensor_parallel=2, rank_order="dp-tp-cp-pp")
    assert limits("llama2-70b", alone) == []


@pytest.mark.parametrize("export", ["megatron", "nemo"])
@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP16, Precision.FP32])
def test_the_precision_is_the_runs(export: str, precision: Precision) -> None:
    scaling = {"initial_loss_scale": 65536.0, "loss_scale_window": 1000} if precision.scaled else {}
    job = job_of("llama2-70b", Layout(), {}, {"precision": precision, **scaling})
    text = FORMATS[export].text(job)
    if export == "megatron":
        assert ("--bf16\n" in text, "--fp16\n" in text) == (precision is Precision.BF16, precision is Precision.FP16)
        assert ("--initial-loss-scale 65536" in text) == precision.scaled
    else:
        named = {Precision.BF16: "bf16-mixed", Precision.FP16: "16-mixed", Precision.FP32: "32"}[precision]
        assert f"precision='{named}'" in text


def test_places_of_names_are_complete() -> None:
    for export in recorded_names():
        for place in target_software(export).places.values():
            assert "==" in place.release
            assert place.file.endswith(".py")
            assert place.name
