"""The audit of a directory: each file's verdict and its reason, and nothing that a broken file can stop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reference_runs.errors import InputError
from suite.predict.plan.audit import Audited, AuditVerdict, Filling, audit

TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = {sequence}
[parallelism]
data_parallel_shard_degree = {shards}
tensor_parallel_degree = {tensors}
context_parallel_degree = {contexts}
[activation_checkpoint]
mode = "full"
"""


def _titan(*, shards: int = 8, tensors: int = 1, contexts: int = 1, sequence: int = 8192) -> str:
    return TITAN.format(shards=shards, tensors=tensors, contexts=contexts, sequence=sequence)


def _row(directory: Path, name: str, text: str, filling: Filling | None = None) -> Audited:
    directory.mkdir(exist_ok=True, parents=True)
    (directory / name).write_text(text, encoding="utf-8")
    rows = {row.file: row for row in audit(directory, filling or Filling())}
    return rows[name]


def test_a_training_that_divides_and_fits_runs_on_the_accelerators_that_the_file_says(tmp_path: Path) -> None:
    row = _row(tmp_path, "a.toml", _titan())
    assert (row.verdict, row.accelerators, row.accelerators_assumed) == (AuditVerdict.RUNS, 8, False)
    assert row.layout.startswith("dp8,tp1,pp1,zero3")
    assert row.peak_bytes is not None
    assert row.usable_bytes is not None
    assert 16 * 8.03e9 / 8 < row.peak_bytes < row.usable_bytes  # fp32 weights, gradients and moments, over 8


def test_options_fill_in_what_a_file_does_not_say_and_nothing_else(tmp_path: Path) -> None:
    filling = Filling(on="a100-sxm-40gb", ranks=64)
    assert _row(tmp_path, "a.toml", _titan(), filling).accelerators == 8
    row = _row(tmp_path, "b.toml", _titan(shards=-1), filling)
    assert (row.accelerators, row.accelerator, row.accelerators_assumed) == (64, "a100-sxm-40gb", False)


def test_where_nothing_says_how_many_accelerators_they_are_the_fewest_that_do(tmp_path: Path) -> None:
    text = _titan(shards=-1).replace("8B", "70B")
    row = _row(tmp_path, "a.toml", text)
    assert row.accelerators is not None
    assert (row.verdict, row.accelerators_assumed) == (AuditVerdict.RUNS, True)
    half = _row(tmp_path, "b.toml", text, Filling(ranks=row.accelerators // 2))
    assert half.verdict is AuditVerdict.CANNOT
    assert half.why.startswith("memory: needs")


@pytest.mark.parametrize(
    ("text", "filling", "why"),
    [
        (_titan(shards=-1, tensors=16), Filling(ranks=24), "16 (tp) = 16 does not divide 24 accelerators"),
        (_titan(tensors=3, sequence=8190), Filling(), "layout.tensor_parallel does not divide architecture.heads = 32"),
        (_titan(contexts=2, sequence=8190), Filling(), "training.seq_len 8190 is no multiple of 4: tp * 2 cp"),
        (_titan(tensors=3), Filling(), "training.seq_len 8192 is no multiple of 3: tp;"),
        (_titan().replace("seq_len", "seq_lem"), Filling(), "unknown word seq_lem; did you mean seq_len?"),
        (_titan(shards=1), Filling(), "memory: needs"),
        (_titan().replace('name = "llama3"\nflavor = "8B"', ""), Filling(), "missing model: it names none"),
        (_titan(shards=0) + "x = = 1", Filling(), "broken TOML"),
    ],
    ids=["accelerators", "heads", "sequence", "tensors", "word", "memory", "model", "broken"],
)
def test_a_training_that_cannot_run_says_why(tmp_path: Path, text: str, filling: Filling, why: str) -> None:
    row = _row(tmp_path, "a.toml", text, filling)
    assert row.verdict is AuditVerdict.CANNOT
    assert why in f"{row.why};"


def test_megatron_refuses_layers_that_stages_do_not_divide_unless_a_key_deals_them(tmp_path: Path) -> None:
    arguments = "--num-layers 46 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --micro-batch-size 1"
    arguments += " --global-batch-size 32 --bf16 --pipeline-model-parallel-size 4"
    row = _row(tmp_path, "a.txt", arguments)
    assert (row.verdict, row.why) == (AuditVerdict.CANNOT, "4 (pp) * 1 chunks do not divide 46 layers")
    counted = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    assert _row(tmp_path, "a.txt", f"{arguments} {counted}").verdict is AuditVerdict.RUNS
    dealt = "--decoder-first-pipeline-num-layers 10"
    assert _row(tmp_path, "a.txt", f"{arguments} {dealt}").verdict is AuditVerdict.RUNS


def test_megatron_lists_all_that_it_refuses_by_its_own_options(tmp_path: Path) -> None:
    arguments = "--num-layers 4 --hidden-size 4096 --num-attention-heads 30 --seq-length 2048 --micro-batch-size 1"
    arguments += " --global-batch-size 32 --swiglu --bf16"
    heads = "num_attention_heads 30 do not divide hidden_size 4096, and kv_channels is missing"
    row = _row(tmp_path, "a.txt", f"{arguments} --fp16")
    assert (row.verdict, row.why) == (AuditVerdict.CANNOT, f"{heads}; bf16 and fp16 are both true")
    assert _row(tmp_path, "a.txt", f"{arguments} --kv-channels 128").verdict is AuditVerdict.RUNS


def test_a_model_without_a_file_is_refused_by_what_it_is_called(tmp_path: Path) -> None:
    row = _row(tmp_path, "a.toml", _titan().replace('"llama3"', '"google/gemma-2"').replace('"8B"', '"9B"'))
    assert row.verdict is AuditVerdict.NOT_JUDGED
    assert row.why.startswith("google/gemma-2-9B: ")


def test_a_model_is_found_in_a_config_json_beside_and_by_an_option(tmp_path: Path) -> None:
    zero = json.dumps(
        {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    )
    row = _row(tmp_path / "alone", "ds.json", zero)
    assert row.verdict is AuditVerdict.NOT_JUDGED
    assert row.why.startswith("missing model")
    assert _row(tmp_path / "alone", "ds.json", zero, Filling(model="gpt2-124m")).verdict is AuditVerdict.RUNS
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,'
        ' "intermediate_size": 11008, "vocab_size": 32000, "architectures": ["LlamaForCausalLM"]}',
        encoding="utf-8",
    )
    row = _row(beside, "ds.json", zero, Filling(ranks=16, training=Filling().training._replace(sequence=2048)))
    assert (row.verdict, row.accelerators) == (AuditVerdict.RUNS, 16)
    assert {each.file: each.verdict for each in audit(beside, Filling())}["config.json"] is AuditVerdict.NONE


def test_an_unknown_model_is_not_judged_rather_than_refused(tmp_path: Path) -> None:
    row = _row(tmp_path, "a.toml", _titan().replace("llama3", "nobodys"))
    assert row.verdict is AuditVerdict.NOT_JUDGED
    assert "unknown model" in row.why


def test_replicated_state_that_a_launcher_may_shard_and_short_samples_are_not_refused(tmp_path: Path) -> None:
    text = "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 8192\nsample_packing: true\nmicro_batch_size: 1\n"
    text += "gradient_checkpointing: true\nbf16: true\n"
    row = _row(tmp_path, "a.yml", text, Filling(on="a100-sxm-40gb", ranks=8))
    assert row.verdict is AuditVerdict.NOT_JUDGED
    assert "if its launcher shards the state" in row.why
    short = text.replace("true\nmicro_batch_size: 1", "false\nmicro_batch_size: 64")
    row = _row(tmp_path, "b.yml", short + "fsdp_config: {offload_params: false}\n", Filling(ranks=64))
    assert row.verdict is AuditVerdict.NOT_JUDGED
    assert "fits at 512 tokens a sample" in row.why


def test_a_chunked_loss_leaves_open_what_its_logits_alone_exceed_and_nothing_else(tmp_path: Path) -> None:
    text = "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 8192\nsample_packing: true\nmicro_batch_size: 8\n"
    text += "gradient_checkpointing: true\nfsdp_config: {offload_params: false}\n"
    assert _row(tmp_path, "a.yml", text, Filling(ranks=8)).verdict is AuditVerdict.CANNOT
    row = _row(tmp_path, "b.yml", f"{text}cut_cross_entropy: true\n", Filling(ranks=8))
    assert row.verdict is AuditVerdict.NOT_JUDGED
    assert "chunked loss" in row.why
    large = f"{text}cut_cross_entropy: true\n".replace("0.5B", "72B")
    assert _row(tmp_path, "c.yml", large, Filling(ranks=8)).verdict is AuditVerdict.CANNOT


def test_adapters_beside_four_bits_need_less_than_beside_sixteen(tmp_path: Path) -> None:
    text = "base_model: meta-llama/Llama-3.1-70B\nsequence_len: 2048\nsample_packing: true\nmicro_batch_size: 1\n"
    text += "gradient_checkpointing: true\n"
    lora = _row(tmp_path, "a.yml", f"{text}adapter: lora\n", Filling(ranks=8))
    qlora = _row(tmp_path, "b.yml", f"{text}adapter: qlora\n", Filling(ranks=8))
    assert lora.peak_bytes is not None
    assert qlora.peak_bytes is not None
    assert lora.peak_bytes > 2 * 70.5e9  # weights in bf16
    assert 70.5e9 / 2 < qlora.peak_bytes < 70.5e9


def test_hidden_files_links_and_other_suffixes_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".hidden").mkdir()
    for name in (".hidden/a.toml", ".a.toml", "a.py", "b.toml"):
        (tmp_path / name).write_text(_titan(), encoding="utf-8")
    (tmp_path / "link.toml").symlink_to(tmp_path / "b.toml")
    assert [row.file for row in audit(tmp_path, Filling())] == ["b.toml"]


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the directory"):
        list(audit(tmp_path / "nothing", Filling()))


@pytest.mark.parametrize(
    "number", ["0", "-7", "1e400", "99999999999999999999", '"x"', "true", "[1]", "nan", "1000000000"]
)
def test_no_number_stops_the_audit(tmp_path: Path, number: str) -> None:
    for key in ("local_batch_size", "seq_len", "data_parallel_shard_degree", "tensor_parallel_degree"):
        text = "\n".join(f"{key} = {number}" if line.startswith(key) else line for line in _titan().splitlines())
        row = _row(tmp_path, "a.toml", text)
        assert row.verdict in (AuditVerdict.CANNOT, AuditVerdict.RUNS, AuditVerdict.NOT_JUDGED)


DEEPSPEED = {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
AXOLOTL = "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 2048\nsample_packing: true\nbf16: true\n"


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        (
            "ds.json",
            json.dumps(DEEPSPEED | {"train_micro_batch_size_per_gpu": -3}),
            "train_micro_batch_size_per_gpu; got -3, allowed: 1 or more",
        ),
        (
            "a.yml",
            f"{AXOLOTL}micro_batch_size: 1\ngradient_accumulation_steps: -1\n",
            "gradient_accumulation_steps; got -1, allowed: 1 or more",
        ),
        ("b.yml", f"{AXOLOTL}micro_batch_size: -2\n", "micro_batch_size; got -2, allowed: 1 or more"),
        (
            "a.toml",
            _titan().replace("local_batch_size = 1", "local_batch_size = 0"),
            "training.local_batch_size; got 0, allowed: 1 or more",
        ),
        ("b.toml", _titan(tensors=-1), "parallelism.tensor_parallel_degree; got -1, allowed: 1 or more"),
    ],
)
def test_numbers_below_the_least_are_refused_and_no_defaults(tmp_path: Path, name: str, text: str, why: str) -> None:
    row = _row(tmp_path, name, text, Filling(ranks=64, model="gpt2-124m"))
    assert (row.verdict, row.why) == (AuditVerdict.CANNOT, why)


def test_numbers_that_the_software_documents_as_automatic_pass(tmp_path: Path) -> None:
    row = _row(tmp_path, "a.toml", _titan(shards=-1).replace("seq_len", "global_batch_size = -1\nseq_len"))
    assert row.verdict is AuditVerdict.RUNS
    text = json.dumps(DEEPSPEED | {"tensor_parallel": {"autotp_size": 0}})
    assert _row(tmp_path, "ds.json", text, Filling(ranks=8, model="gpt2-124m")).verdict is AuditVerdict.RUNS


def test_software_that_does_not_copy_key_value_heads_refuses_more_tensor_parallel_ranks(tmp_path: Path) -> None:
    row = _row(tmp_path, "a.toml", _titan(shards=4, tensors=16))
    assert (row.verdict, row.why) == (AuditVerdict.CANNOT, "16 (tp) does not divide 8 key-value heads")
    arguments = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --num-query-groups 8 --seq-length 2048"
    arguments += " --micro-batch-size 1 --global-batch-size 32 --bf16 --swiglu --tensor-model-parallel-size 16"
    assert _row(tmp_path, "a.txt", arguments, Filling(ranks=16)).verdict is AuditVerdict.RUNS  # Megatron-Core copies


def test_what_the_software_refuses_waits_for_no_model(tmp_path: Path) -> None:
    odd = DEEPSPEED | {"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}
    row = _row(tmp_path, "odd.json", json.dumps(odd))
    assert (row.verdict, row.why) == (
        AuditVerdict.CANNOT,
        "train_batch_size 7 is no multiple of micro-batch 2 * accumulation 2",
    )
    row = _row(tmp_path, "both.json", json.dumps(DEEPSPEED | {"fp16": {"enabled": True}}))
    assert (row.verdict, row.why) == (AuditVerdict.CANNOT, "fp16 and bf16 are both enabled")


TRAINER = "model_name_or_path: meta-llama/Llama-3.1-8B\nper_device_train_batch_size: 2\nlearning_rate: 1.0e-5\n"


@pytest.mark.parametrize(
    ("inner", "why"),
    [
        (
            {"train_micro_batch_size_per_gpu": 4},
            "DeepSpeed's train_micro_batch_size_per_gpu is 4, and per_device_train_batch_size is 2",
        ),
        (
            {"gradient_accumulation_steps": 8},
            "DeepSpeed's gradient_accumulation_steps is 8, and gradient_accumulation_steps is 4",
        ),
        (
            {"train_batch_size": 12},
            "DeepSpeed's train_batch_size 12 is no multiple of per_device_train_batch_size 2 * accumulation 4",
        ),
        ({"train_batch_size": 128}, "DeepSpeed's train_batch_size is 128, and 2 * 4 * 8 ranks are 64"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "fp16 and bf16 are both enabled"),
        ({"train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto"}, ""),
        ({"train_micro_batch_size_per_gpu": 2, "train_batch_size": 64}, ""),
    ],
)
def test_numbers_of_a_deepspeed_file_that_differ_from_its_users_are_refused(
    tmp_path: Path, inner: dict[str, object], why: str
) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 3}} | inner), encoding="utf-8")
    text = (
        f"{TRAINER}deepspeed: ds.json\nnum_processes: 8\ngradient_accumulation_steps: 4\ngradient_checkpointing: true\n"
    )
    row = _row(tmp_path, "a.yml", f"{text}packing: true\nmax_length: 2048\n")
    assert (row.verdict, row.why) == (AuditVerdict.CANNOT if why else AuditVerdict.RUNS, why)


def test_trainer_refuses_two_precisions(tmp_path: Path) -> None:
    row = _row(tmp_path, "a.yml", f"{TRAINER}bf16: true\nfp16: true\n")
    assert (row.verdict, row.why) == (AuditVerdict.CANNOT, "bf16 and fp16 are both true")


@pytest.mark.parametrize(
    ("name", "text", "read_as", "model"),
    [
        ("a.yml", f"{AXOLOTL}micro_batch_size: -1\n", "axolotl", "meta-llama/Llama-3.1-8B"),
        ("b.yml", f"{TRAINER}lora_rank: 0\n", "Hugging Face Trainer", "meta-llama/Llama-3.1-8B"),
        ("c.toml", _titan().replace("seq_len = 8192", 'seq_len = "eight"'), "torchtitan", "llama3-8B"),
        ("d.json", json.dumps(DEEPSPEED | {"zero_optimization": {"stage": 7}}), "DeepSpeed", ""),
    ],
)
def test_a_refused_value_leaves_software_and_model_in_the_row(
    tmp_path: Path, name: str, text: str, read_as: str, model: str
) -> None:
    row = _row(tmp_path, name, text)
    assert (row.verdict, row.read_as, row.model) == (AuditVerdict.CANNOT, read_as, model)


def test_a_value_that_a_shell_computes_leaves_the_software_in_the_row(tmp_path: Path) -> None:
    assert _row(tmp_path, "a.sh", SHELL.format(tp="2", nodes="$1")).read_as == "Megatron"


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        ("a.yml", TRAINER.replace("size: 2", "size: auto"), "per_device_train_batch_size"),
        ("b.yml", f"{AXOLOTL}micro_batch_size: auto\n", "micro_batch_size"),
        ("c.toml", _titan().replace("seq_len = 8192", 'seq_len = "auto"'), "training.seq_len"),
        ("d.yml", f"{TRAINER}gradient_accumulation_steps: auto\n", "gradient_accumulation_steps"),
    ],
)
def test_auto_is_no_number_of_software_that_does_not_have_it(tmp_path: Path, name: str, text: str, key: str) -> None:
    row = _row(tmp_path, name, text)
    assert (row.verdict, row.why) == (AuditVerdict.CANNOT, f"{key}; got auto, allowed: a whole number")


def test_auto_leaves_numbers_of_deepspeed_and_of_torchruns_ranks_unsaid(tmp_path: Path) -> None:
    automatic = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "bf16": {"enabled": "auto"},
    }
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED | automatic), encoding="utf-8")
    text = f"{TRAINER}deepspeed: ds.json\ngradient_checkpointing: true\npacking: true\nmax_length: 2048\n"
    row = _row(tmp_path, "a.yml", text, Filling(ranks=8))
    assert (row.verdict, row.why) == (AuditVerdict.RUNS, "")
    rows = {row.file: row for row in audit(tmp_path, Filling(model="gpt2-124m"))}
    assert rows["ds.json"].verdict is AuditVerdict.RUNS
    shell = SHELL.format(tp="4", nodes="2").replace("--nproc-per-node 8", "--nproc-per-node auto")
    row = _row(tmp_path, "a.sh", shell)
    assert (row.verdict, row.accelerators_assumed) == (AuditVerdict.RUNS, True)


SHELL = """#!/bin/bash
GPUS=4
TP=$(({tp}))
torchrun --nproc-per-node 8 --nnodes {nodes} pretrain_gpt.py --tensor-model-parallel-size $TP \\
  --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 4096 --swiglu --micro-batch-size 2 \\
  --global-batch-size 64 --bf16 --recompute-granularity full
"""


def test_whole_number_arithmetic_of_a_shell_file_is_worked_out(tmp_path: Path) -> None:
    row = _row(tmp_path, "a.sh", SHELL.format(tp="GPUS * (3 - 1) / 2", nodes="$((1+1))"))
    assert (row.verdict, row.accelerators) == (AuditVerdict.RUNS, 16)
    assert "tp4" in row.layout


@pytest.mark.parametrize(
    "text", ["$(nproc)", "$(cat $(ls) | wc -l)", "$1", "$NODES", "`nproc`", "$((2 ** 70 ** 9))", "$((1/0))"]
)
def test_values_that_a_shell_computes_are_not_judged(tmp_path: Path, text: str) -> None:
    row = _row(tmp_path, "a.sh", SHELL.format(tp="2", nodes=text))
    assert (row.verdict, row.why) == (AuditVerdict.NOT_JUDGED, "value of nnodes is computed when it runs")


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("records.json", '[{"bf16": 1}]', "JSON of a list, no table of keys"),
        ("list.yaml", "- a\n- b\n", "YAML of a list, no table of keys"),
        ("empty.yaml", "", "YAML of nothing, no table of keys"),
        (
            "lines.json",
            '{"a": 1}\n{"a": 2}\n',
            "no key of a training is in it; broken JSON: Extra data: line 2 column 1 (char 9)",
        ),
    ],
)
def test_a_file_without_a_table_of_keys_is_no_configuration(tmp_path: Path, name: str, text: str, why: str) -> None:
    row = _row(tmp_path, name, text)
    assert (row.verdict, row.why) == (AuditVerdict.NONE, why)


@pytest.mark.parametrize(
    ("name", "broken"), [("a.yaml", ": {key}: ["), ("a.json", '{{"{key}": 1'), ("a.toml", "{key} = = 1")]
)
def test_a_broken_file_cannot_run_if_a_key_of_a_training_is_in_it(tmp_path: Path, name: str, broken: str) -> None:
    found = {key: _row(tmp_path, name, broken.format(key=key)) for key in ("train_batch_size", "bad")}
    assert [row.verdict for row in found.values()] == [AuditVerdict.CANNOT, AuditVerdict.NONE]
    assert found["train_batch_size"].why.startswith("broken ")
    assert found["bad"].why.startswith("no key of a training is in it; broken ")


def test_bytes_that_are_no_text_are_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"\x89PNG\xff\x00")
    assert [row.verdict for row in audit(tmp_path, Filling())] == [AuditVerdict.NONE]


def test_an_option_does_not_rename_a_model_that_the_file_or_its_neighbour_says(tmp_path: Path) -> None:
    row = _row(tmp_path, "a.sh", SHELL.format(tp="4", nodes="2"), Filling(model="gpt2-124m"))
    assert row.model == "its own sizes"
    zero = json.dumps(DEEPSPEED)
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,'
        ' "intermediate_size": 11008, "vocab_size": 32000, "architectures": ["LlamaForCausalLM"]}',
        encoding="utf-8",
    )
    row = _row(tmp_path, "ds.json", zero, Filling(model="gpt2-124m"))
    assert "gpt2" not in row.model


def test_a_models_path_begins_beside_the_file_and_then_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = (
        '{"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16,'
        ' "intermediate_size": 4096, "vocab_size": 32000, "architectures": ["LlamaForCausalLM"]}'
    )
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "small.json").write_text(config, encoding="utf-8")
    (tmp_path / "models" / "config.json").write_text(config, encoding="utf-8")
    for name in ("models/small.json", "models"):
        text = AXOLOTL.replace("meta-llama/Llama-3.1-8B", name)
        row = _row(tmp_path, "a.yml", text, Filling(ranks=8))
        assert (row.verdict, row.model) == (AuditVerdict.RUNS, name)
        monkeypatch.chdir(tmp_path)
        assert _row(tmp_path / "below", "a.yml", text, Filling(ranks=8)).verdict is AuditVerdict.RUNS
        monkeypatch.chdir("/")


def test_memory_that_may_be_enough_all_the_same_has_its_probability(tmp_path: Path) -> None:
    found = [
        _row(tmp_path, f"{size}.toml", _titan(shards=4).replace("local_batch_size = 1", f"local_batch_size = {size}"))
        for size in range(1, 30)
    ]
    near = [row for row in found if row.probability_fits is not None and 0.05 <= row.probability_fits < 0.5]
    far = [row for row in found if row.probability_fits is not None and row.probability_fits < 0.045]
    assert near
    assert far
    for row in near:
        assert row.probability_fits is not None
        assert row.why.endswith(f": {100 * row.probability_fits:.0f} % likely to fit")
    assert not any("likely" in row.why for row in far)
