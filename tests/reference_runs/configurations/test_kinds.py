"""Configurations of other software: which software's they are, what their keys mean, and which names are misspelled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reference_runs.configurations.configuration import ConfiguredAdapters, Framework, TrainingConfiguration
from reference_runs.configurations.kinds import ReadFile, UnknownWord, configuration, model_named, read_file
from reference_runs.errors import InputError
from reference_runs.layout import Offload, Recomputation, Schedule
from reference_runs.run import Moments, Precision
from tests.support.training_configurations import AXOLOTL, BRIDGE, DEEPSPEED, MEGATRON, TITAN

FACTORY = """
model_name_or_path: Qwen/Qwen3-8B
stage: sft
do_train: true
finetuning_type: full
deepspeed: ds.json
cutoff_len: 2048
per_device_train_batch_size: 1
bf16: true
"""


def _read(path: Path, text: str) -> TrainingConfiguration:
    path.write_text(text, encoding="utf-8")
    read = read_file(path)
    assert not isinstance(read, str)
    assert read.unknown == ()
    return configuration(read)


def test_torchtitan_counts_replicas_times_shards_and_splits_local_batches_into_micro_batches(tmp_path: Path) -> None:
    read = _read(tmp_path / "job.toml", TITAN)
    assert (read.software, read.model) == (Framework.TORCHTITAN, "llama3-8B")
    assert (read.ranks, read.data_parallel, read.replicas) == (32, 8, 2)
    assert (read.micro_batch, read.accumulation, read.virtual_stages) == (1, 4, 2)
    assert (read.zero_stage, read.schedule, read.sequence_parallel) == (3, Schedule.ONE_F_ONE_B, True)
    assert (read.recomputation, read.precision) == (Recomputation.FULL, Precision.BF16)


def test_an_exported_registry_says_its_model_and_what_it_recomputes_by_the_fields_it_has(tmp_path: Path) -> None:
    layer = {
        "attention": {"n_heads": 8, "n_kv_heads": 4, "head_dim": 16, "rope": {"theta": 1e6}},
        "feed_forward": {"w1": {"out_features": 512}},
        "ffn_norm": {"eps": 1e-6},
    }
    model = {"dim": 128, "vocab_size": 1000, "enable_weight_tying": True, "layers": [layer] * 3}
    exported = {
        "model_spec": {"name": "qwen3", "flavor": "debugmodel", "model": model},
        "training": {"local_batch_size": 2, "seq_len": 1024},
        "parallelism": {"data_parallel_shard_degree": -1, "tensor_parallel_degree": 1},
        "activation_checkpoint": {"preserve_rng_state": True},
    }
    read = _read(tmp_path / "llama.json", json.dumps(exported))
    assert read.shape is not None
    assert (read.shape["model_type"], read.shape["num_hidden_layers"], read.shape["intermediate_size"]) == (
        "qwen3",
        3,
        512,
    )
    assert (read.ranks, read.recomputation) == (None, Recomputation.FULL)
    exported["activation_checkpoint"] = {"preserve_rng_state": True, "force_recompute_mm_shapes_by_fqns": []}
    assert _read(tmp_path / "x.json", json.dumps(exported)).recomputation is Recomputation.SELECTIVE_OP


def test_megatron_arguments_in_a_shell_file_say_sizes_and_accelerators(tmp_path: Path) -> None:
    read = _read(tmp_path / "run.sh", MEGATRON)
    assert (read.software, read.ranks) == (Framework.MEGATRON, 16)
    assert (read.tensor_parallel, read.pipeline_stages, read.sequence_parallel) == (4, 2, True)
    assert read.shape is not None
    assert (read.shape["model_type"], read.shape["num_hidden_layers"], read.shape["hidden_size"]) == ("llama", 24, 2048)
    assert (read.zero_stage, read.reduce_scatter, read.precision) == (1, True, Precision.BF16)
    assert (read.recomputation, read.batch, read.micro_batch) == (Recomputation.FULL, 64, 2)


@pytest.mark.parametrize("form", ["overrides.yaml", "overrides.txt"])
def test_megatron_bridge_is_read_alike_from_yaml_and_from_a_list_of_overrides(tmp_path: Path, form: str) -> None:
    listed = """--recipe llama32_1b_peft_config
model.hf_model_id=meta-llama/Llama-3.2-1B
model.tensor_model_parallel_size=2 model.seq_length=8192
train.global_batch_size=32 train.micro_batch_size=1
ddp.use_distributed_optimizer=True mixed_precision=bf16_mixed peft.dim=16
"""
    read = _read(tmp_path / form, BRIDGE if form.endswith("yaml") else listed)
    assert (read.software, read.model) == (Framework.MEGATRON_BRIDGE, "meta-llama/Llama-3.2-1B")
    assert (read.tensor_parallel, read.batch, read.sequence, read.zero_stage) == (2, 32, 8192, 1)
    assert read.adapters == ConfiguredAdapters(16)


def test_whole_experts_are_shared_out_by_tensor_parallel_ranks_too(tmp_path: Path) -> None:
    text = "--tensor-model-parallel-size 2 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1"
    read = _read(tmp_path / "moe.txt", f"{text} --seq-length 4096 --micro-batch-size 1")
    assert (read.expert_parallel, read.whole_experts) == (4, True)


def test_deepspeeds_batch_says_how_many_ranks_there_are(tmp_path: Path) -> None:
    read = _read(tmp_path / "ds.json", json.dumps(DEEPSPEED))
    assert (read.ranks, read.zero_stage, read.offload) == (8, 3, Offload.OPTIMIZER)
    other = _read(tmp_path / "odd.json", json.dumps(DEEPSPEED | {"train_batch_size": 60}))
    assert (other.ranks, other.refused) == (
        None,
        ("train_batch_size 60 is no multiple of micro-batch 2 * accumulation 4",),
    )


def test_axolotl_says_adapters_moments_and_batch(tmp_path: Path) -> None:
    read = _read(tmp_path / "qlora.yml", AXOLOTL)
    assert (read.software, read.adapters) == (Framework.AXOLOTL, ConfiguredAdapters(32, four_bits=True))
    stored = AXOLOTL.replace("adapter: qlora", "adapter: lora").replace("7b-hf", "7b-bnb-4bit")
    assert _read(tmp_path / "stored.yml", stored).adapters == ConfiguredAdapters(32, four_bits=True)
    assert (read.moments, read.micro_batch, read.accumulation, read.shorter) == (Moments.FP8, 2, 4, False)


@pytest.mark.parametrize(
    ("words", "precision"),
    [
        ("bf16: false", Precision.FP32),
        ("bf16: false\nfloat16: true", Precision.BF16_PURE),
        ("bf16: false\nfp16: true", Precision.FP16),
        ("bfloat16: true", Precision.BF16_PURE),
    ],
)
def test_axolotl_says_the_dtype_of_weights(tmp_path: Path, words: str, precision: Precision) -> None:
    text = "base_model: openlm-research/open_llama_3b\nmicro_batch_size: 2\nsequence_len: 1024\n" + words
    assert _read(tmp_path / "full.yml", text).precision is precision


def test_a_deepspeed_file_that_a_configuration_names_is_read_from_beside_it_or_from_above(tmp_path: Path) -> None:
    below = tmp_path / "examples" / "train"
    below.mkdir(parents=True)
    with pytest.raises(InputError, match=r"deepspeed: ds.json is not there"):
        _read(below / "sft.yaml", FACTORY)
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED), encoding="utf-8")
    read = _read(below / "sft.yaml", FACTORY)
    assert (read.software, read.zero_stage, read.stack) == (Framework.LLAMA_FACTORY, 3, "deepspeed")


@pytest.mark.parametrize(
    ("name", "text", "word", "meant"),
    [
        ("job.toml", TITAN.replace("tensor_parallel_degree", "tensor_paralel_degree"), *("tensor_paralel_degree",) * 2),
        ("run.sh", MEGATRON.replace("--seq-length", "--seq-lenght"), "seq_lenght", "seq_length"),
        ("q.yml", AXOLOTL.replace("sequence_len", "sequense_len"), "sequense_len", "sequence_len"),
        ("ds.json", json.dumps(DEEPSPEED | {"gradient_clippping": 1.0}), "gradient_clippping", "gradient_clipping"),
    ],
)
def test_a_misspelled_name_is_found_with_the_nearest_one(
    tmp_path: Path, name: str, text: str, word: str, meant: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    read = read_file(tmp_path / name)
    assert not isinstance(read, str)
    assert read.unknown == (UnknownWord(word, meant.replace("paralel", "parallel")),)


def test_a_name_that_is_near_none_is_of_an_extension_and_left_alone(tmp_path: Path) -> None:
    _read(tmp_path / "job.toml", TITAN.replace("seq_len", "our_own_switch = true\nseq_len"))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", "[1, 2]", "no table of keys"),
        ("a.toml", "[parallelism]\nx = ", "broken TOML"),
        ("a.json", '{"train_batch_size": 8,', "broken JSON"),
        ("a.yaml", "base_model: [1", "broken YAML"),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.json", '{"zero_optimization": {"stage": 7}}', "zero_optimization.stage"),
        ("a.json", '{"train_batch_size": "many"}', "train_batch_size"),
    ],
)
def test_what_is_broken_is_refused_with_its_reason(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        _read(tmp_path / name, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", '[project]\nname = "x"'),
        ("other.sh", "ls --all --human-readable --sort size"),
        ("data.json", '{"rows": []}'),
    ],
)
def test_other_files_are_no_configurations(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert isinstance(read_file(tmp_path / name), str)


TUNE = "model: {_component_: torchtune.models.llama3_1.qlora_llama3_1_8b}\noptimizer: {_component_: AdamW}\n"


@pytest.mark.parametrize(
    ("name", "text", "model"),
    [
        ("job.toml", TITAN, "llama3-8B"),
        ("run.sh", MEGATRON, ""),
        ("bridge.yaml", BRIDGE, "meta-llama/Llama-3.2-1B"),
        ("ds.json", json.dumps(DEEPSPEED), ""),
        ("qlora.yml", AXOLOTL, "NousResearch/Llama-2-7b-hf"),
        ("sft.yaml", FACTORY.replace("deepspeed: ds.json\n", ""), "Qwen/Qwen3-8B"),
        ("tune.yaml", TUNE, "llama3_1_8b"),
    ],
)
def test_a_files_model_is_known_before_its_values_are_read(tmp_path: Path, name: str, text: str, model: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    read = read_file(tmp_path / name)
    assert isinstance(read, ReadFile)
    assert model_named(read) == configuration(read).model == model
