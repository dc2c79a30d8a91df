"""Columns and names of tables of 2024 to 2026: read as meant, or refused in a line; never read as something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_runs.published import PublishedTable, load_table
from reference_runs.published_words import names_mixture, other_model, without_training
from reference_runs.run import AdapterTargets, Precision

NVIDIA = "Model,#-GPUs,System,Precision,GBS,MBS,Sequence Length,FSDP,TP,PP,CP,VP,EP,GA,Tokens / sec / GPU,framework"
SHAPED = "model,layers,hidden,heads,vocab,ffn_hidden,gpu,gpus,dtype,global_batch,micro_batch,seq_len,framework,source"
SHAPED += ",method,tp,pp,measured_step_time_s"


def read(tmp_path: Path, header: str, *rows: str) -> PublishedTable:
    path = tmp_path / "own.csv"
    path.write_text("\n".join([header, *rows]), encoding="utf-8")
    return load_table(path)


def reason(tmp_path: Path, header: str, row: str) -> str:
    (skipped,) = read(tmp_path, header, row).skipped
    return skipped.reason


def shaped(model: str, source: str = "", method: str = "") -> str:
    return f"{model},4,4096,32,32000,14336,H100,8,bf16,64,1,4096,Megatron-Core,{source},{method},1,1,2"


def test_nvidias_column_fsdp_shards_weights(tmp_path: Path) -> None:
    row = "LLAMA3_70B,64,DGX-GB200,FP8-CS,256,2,8192,{},1,1,1,1,1,2,4312,Megatron-Bridge"
    sharded, plain = read(tmp_path, NVIDIA, row.format(1), row.format(0)).rows
    assert (sharded.layout.zero_stage, plain.layout.zero_stage) == (3, 1)
    assert "fsdp 1 = zero_stage 3" in sharded.assumed
    assert "'64' is not known" in reason(tmp_path, NVIDIA, row.format(64))


def test_sharded_weights_contradict_a_zero_stage_below_three(tmp_path: Path) -> None:
    header, row = f"{SHAPED},fsdp,zero_stage", shaped("my own") + ",1,{}"
    assert "but zero_stage = 1" in reason(tmp_path, header, row.format(1))
    assert read(tmp_path, header, row.format(3)).rows[0].layout.zero_stage == 3


def test_hybrid_sharding_is_within_nodes_or_groups_as_large_as_stated(tmp_path: Path) -> None:
    header = "model,gpu,gpus,dtype,global_batch,micro_batch,seq_len,tp,pp,framework,sharding_strategy,dp_shard"
    header += ",measured_step_time_s"
    row = "llama2-70b,A100 80GB,64,bf16,64,1,4096,1,1,{},9"
    words = ("PyTorch,HYBRID_SHARD,", "PyTorch,hsdp,16", "PyTorch FSDP (HSDP),,", "torchtitan,,32", "FSDP,FULL_SHARD,")
    rows = read(tmp_path, header, *(row.format(each) for each in words)).rows
    assert [(each.layout.zero_stage, each.layout.shard_ranks) for each in rows] == [
        *((3, 8), (3, 16), (3, 8), (3, 32), (3, None))
    ]
    assert [each.stack for each in rows] == ["pytorch", "pytorch", "pytorch", "torchtitan", "pytorch"]
    assert "groups of dp x cp ranks" in reason(tmp_path, header, row.format("FSDP,hsdp,24"))


def test_accumulation_gives_a_blank_micro_batch_and_is_noted_where_the_batches_say_another(tmp_path: Path) -> None:
    row = "LLAMA3_8B,8,DGX-H100,BF16,128,{},8192,0,1,1,1,1,1,{},4312,Megatron-Bridge"
    given, agreeing, other = read(tmp_path, NVIDIA, *(row.format(*each) for each in (("", 8), (2, 8), (2, 4)))).rows
    assert [each.layout.micro_batch for each in (given, agreeing, other)] == [2, 2, 2]
    notes = [[note for note in each.assumed if "accumulation" in note] for each in (given, agreeing, other)]
    assert notes == [
        ["micro_batch = global_batch / (dp * accumulation) = 2"],
        [],
        ["accumulation 4 = 8, global_batch / (micro_batch * dp)"],
    ]
    assert "does not divide global_batch = 128" in reason(tmp_path, NVIDIA, row.format("", 7))


def test_gpt3_5b_is_a_gpt_3_of_5_billion_and_not_one_of_35(tmp_path: Path) -> None:
    header = "model,gpu,gpus,dtype,global_batch,micro_batch,seq_len,framework,measured_tokens_per_s_per_gpu"
    named = [f"{name},H100,64,FP8,2048,4,2048,NeMo 24.07,23406" for name in ("GPT3-5B", "GPT-3 20B", "GPT3 5B")]
    rows = read(tmp_path, header, *named).rows
    assert [(row.architecture.layers, row.architecture.hidden) for row in rows] == [(24, 4096), (44, 6144), (24, 4096)]
    for model in ("GPT-35B", "GPT35B", "GPT-5B", "GPT3-6B"):
        assert "layers, hidden, heads are blank" in reason(tmp_path, header, named[0].replace("GPT3-5B", model))


def test_a_source_that_is_a_shipped_tables_gives_no_assumption_to_another_model(tmp_path: Path) -> None:
    source = "MLPerf Training v5.0"
    names = ("Llama3.1 405B", "GPT-3 of ours", "175B")
    llama, gpt, unnamed = read(tmp_path, SHAPED, *(shaped(name, source) for name in names)).rows
    assert [bool(row.origin) for row in (llama, gpt, unnamed)] == [False, True, True]
    alone = read(tmp_path, SHAPED, shaped("Llama3.1 405B")).rows[0]
    assert (llama.architecture, llama.recipe, llama.layout, llama.assumed) == (
        *(alone.architecture, alone.recipe, alone.layout, alone.assumed),
    )


@pytest.mark.parametrize("model", ["deepseekv3-layer4", "Mixtral-8x7B-4L", "Qwen3-30B-A3B (4 layers)", "my MoE"])
def test_the_name_of_a_mixture_without_experts_is_refused(model: str, tmp_path: Path) -> None:
    words = f"experts is blank, but {model!r} is the name of a mixture of experts"
    assert reason(tmp_path, SHAPED, shaped(model)) == words
    header = SHAPED.replace("ffn_hidden", "ffn_hidden,experts,experts_per_token")
    said = shaped(model).replace("14336,", "14336,8,2,")
    assert read(tmp_path, header, said).rows[0].architecture.experts == 8


def test_a_mixture_of_the_catalog_has_its_experts_by_its_name_alone(tmp_path: Path) -> None:
    header = "model,gpu,gpus,dtype,global_batch,micro_batch,seq_len,tp,pp,framework,measured_step_time_s"
    (row,) = read(tmp_path, header, "Mixtral-8x7B,H100,8,bf16,64,1,4096,1,1,Megatron-Core,9").rows
    assert row.architecture.experts == 8


def test_names_of_dense_models_are_of_no_mixture_and_have_nothing_that_a_decoder_lacks() -> None:
    dense = ("llama3.18b", "gpt3175b", "gemma227b", "deepseekr1distillllama8b", "phi4", "qwen332b", "nemotron4340b")
    dense += (
        "llama3.1nemotronnano8b",
        "deepseekllm67b",
        "deepseekcoder33b",
        "mistrallarge2",
        "stringllm",
        "granite3.38b",
    )
    assert [name for name in dense if names_mixture(name) or other_model(name)] == []


@pytest.mark.parametrize("model", ["Hunyuan-Large", "MiniMax-M2", "DeepSeek-Coder-V2", "granite-3.0-3b-a800m", "GLM-5"])
def test_later_mixtures_are_known_by_their_names(model: str, tmp_path: Path) -> None:
    assert "is the name of a mixture of experts" in reason(tmp_path, SHAPED, shaped(model))


@pytest.mark.parametrize(
    ("model", "what"),
    [
        ("Nemotron-H 47B", "layers without attention"),
        ("Mamba-2 2.7B", "layers without attention"),
        ("flan-t5-xxl", "an encoder"),
        ("Llama 3.2 11B Vision", "images"),
    ],
)
def test_a_model_that_is_no_decoder_of_text_is_not_predicted_by_its_sizes(
    model: str, what: str, tmp_path: Path
) -> None:
    assert f"the name of a model with {what}" in reason(tmp_path, SHAPED, shaped(model))


def test_an_unsaid_expert_parallelism_is_noted_and_unsaid_modules_are_not_recomputed(tmp_path: Path) -> None:
    header = "model,gpu,gpus,dtype,global_batch,micro_batch,seq_len,tp,pp,recompute,framework,measured_step_time_s"
    (row,) = read(tmp_path, header, "DeepSeek-V3,H100,64,bf16,256,1,4096,8,1,none,Megatron-Core,9").rows
    assert "ep = 1" in row.assumed
    assert row.layout.recomputed_modules == ()


@pytest.mark.parametrize(
    ("model", "source", "method"),
    [
        ("Llama2-70B LoRA", "", ""),
        ("my own", "results/llama2_70b_lora", ""),
        ("my own", "", "PEFT"),
        ("my own", "", "rank 16 LoRA adapters"),
    ],
)
def test_adapters_are_read_wherever_they_are_said(model: str, source: str, method: str, tmp_path: Path) -> None:
    (row,) = read(tmp_path, SHAPED, shaped(model, source, method)).rows
    assert (row.recipe.adapter_rank, row.recipe.adapter_targets) == (16, AdapterTargets.ATTENTION)
    assert {"adapter_rank = 16", "adapter_targets = attention"} <= {*row.assumed}
    (full,) = read(tmp_path, SHAPED, shaped("my own", "", "SFT")).rows
    assert full.recipe.adapter_rank is None


def test_adapters_beside_weights_in_4_bits_are_refused(tmp_path: Path) -> None:
    assert reason(tmp_path, SHAPED, shaped("my own", "", "QLoRA")) == (
        "method: 'QLoRA' means training adapters beside weights in 4 bits, which is not predicted"
    )


@pytest.mark.parametrize(
    ("framework", "method", "words"),
    [
        ("NeMo-Aligner PPO", "", "framework: 'NeMo-Aligner PPO' means a step of reinforcement learning"),
        ("TRL GRPOTrainer", "", "framework: 'TRL GRPOTrainer' means a step of reinforcement learning"),
        ("NeMo", "from a GRPO recipe", "method: 'from a GRPO recipe' means a step of reinforcement learning"),
        ("veRL", "", "framework: 'veRL' is software for reinforcement learning"),
        ("NeMo-RL", "", "framework: 'NeMo-RL' is software for reinforcement learning"),
        ("TRL DPOTrainer", "", "means preference optimization beside a second, frozen reference model"),
        ("NeMo", "P-tuning", "means training adapters of another kind than LoRA's"),
    ],
)
def test_other_training_is_refused_wherever_it_is_said(framework: str, method: str, words: str, tmp_path: Path) -> None:
    row = shaped("my own", "", method).replace("Megatron-Core", framework)
    assert words in reason(tmp_path, SHAPED, row)


@pytest.mark.parametrize(
    ("framework", "method"),
    [
        ("NeMo", "Florada explores DPOS"),
        ("NeMo", "full training and not LoRA"),
        ("NeMo", "two network adapters a node"),
        ("verl", "SFT"),
        ("TRL SFTTrainer", ""),
    ],
)
def test_words_that_say_no_other_training_change_nothing(framework: str, method: str, tmp_path: Path) -> None:
    (row,) = read(tmp_path, SHAPED, shaped("my own", "", method).replace("Megatron-Core", framework)).rows
    assert row.recipe.adapter_rank is None


def test_a_column_that_says_what_is_trained_is_not_listed_as_unread(tmp_path: Path) -> None:
    header = f"{SHAPED},colour"
    assert read(tmp_path, header, shaped("my own", "", "LoRA") + ",red").unread == ("colour",)
    assert read(tmp_path, header, shaped("my own", "", "GRPO") + ",red").unread == ("colour",)
    assert read(tmp_path, header, shaped("my own", "", "none") + ",red").unread == ("method", "colour")


@pytest.mark.parametrize(
    "model", ["llama2-70b-lora", "meta-llama/Llama-2-70b-hf LoRA", "Llama2 70B SFT", "Llama 2 70B (full fine-tuning)"]
)
def test_words_of_training_are_no_part_of_the_models_name(model: str, tmp_path: Path) -> None:
    header = "model,gpu,gpus,dtype,global_batch,micro_batch,seq_len,tp,pp,framework,measured_step_time_s"
    (row,) = read(tmp_path, header, f"{model},H100,8,bf16,8,1,8192,4,1,NeMo,4.15").rows
    assert (row.architecture.layers, row.architecture.hidden) == (80, 8192)
    assert (row.recipe.adapter_rank == 16) == ("LoRA" in model or "lora" in model)


def test_a_name_of_training_alone_is_no_model() -> None:
    assert (without_training("LoRA"), without_training("Florafta 7B")) == ("", "Florafta 7B")


@pytest.mark.parametrize("model", ["nvidia/Nemotron-H-56B-Base-8K", "NVIDIA Nemotron-H 56B"])
def test_nemotron_h_is_known_by_its_model_cards_name_and_count_of_layers(model: str, tmp_path: Path) -> None:
    header = "model,layers,gpu,gpus,dtype,global_batch,micro_batch,seq_len,tp,pp,framework,measured_step_time_s"
    row = f"{model},{{}},H100,64,bf16,64,1,8192,8,1,NeMo,4.15"
    assert [each.architecture.layers for each in read(tmp_path, header, row.format(""), row.format(118)).rows] == [
        64,
        64,
    ]
    assert reason(tmp_path, header, row.format(96)) == (
        "layers: nemotron-h-56b has 64, or 118 with feed-forward parts counted apart; got 96"
    )


@pytest.mark.parametrize("dtype", ["pure_bf16", "bf16-true", "bf16-pure"])
def test_words_for_pure_bf16_keep_no_fp32_weights(dtype: str, tmp_path: Path) -> None:
    header = "model,gpu,gpus,dp,global_batch,micro_batch,seq_len,dtype,recompute,framework,measured_step_time_s"
    header += ",measured_mem_gb_per_gpu"
    (row,) = read(tmp_path, header, f"Llama-2-7b,A100 80GB,1,1,1,1,512,{dtype},full,torchtune,,54.4").rows
    assert row.recipe.precision is Precision.BF16_PURE
