"""`fit --serve` as a user sees it."""

from __future__ import annotations

import json

import pytest

from reference_runs.catalog import reference_run
from suite.predict.analytic.parameters import parameter_count

ON_TWO = ("fit", "llama3.1-70b", "--serve", "--on", "h100-sxm", "--gpus", "2")


def test_the_first_line_says_in_which_formats_it_fits(said):
    lines = said(*ON_TWO, "--sequences", "16").splitlines()
    assert lines[0] == ("fits: llama3.1-70b on 2 h100-sxm with fp8, int8 or int4 weights, 16 sequences of 8,192 tokens")
    assert any(line.startswith("cache: 160 KiB a token, 1.25 GiB a sequence of 8,192; ") for line in lines)
    first = said("fit", "llama3.1-70b", "--serve", "--on", "rtx-4090", code=1).splitlines()[0]
    assert first == "does not fit: llama3.1-70b on 1 rtx-4090, 1 sequence of 8,192 tokens"


def test_as_many_sequences_fit_as_are_said_to_and_not_one_more(answered):
    found = answered(*ON_TWO, "--context", "4096")
    for number, each in enumerate(found["serving"]["formats"]):
        most = each["fitting"]
        assert each["weight_bytes"] < found["memory_bytes"]
        for sequences, fits in ((most, True), (most + 1, False)):
            again = answered(
                *ON_TWO, "--context", "4096", "--sequences", str(sequences), code=int(number == 3 and not fits)
            )
            assert (again["serving"]["formats"][number]["needed"] <= found["memory_bytes"]) is fits, each


def test_the_accelerators_that_are_said_to_be_enough_are(answered):
    asked = ("fit", "llama3.1-405b", "--serve", "--on", "h100-sxm", "--gpus")
    for each in answered(*asked, "1", code=1)["serving"]["formats"]:
        for ranks, fits in ((each["enough"], True), (each["enough"] // 2, False)):
            found = answered(*asked, str(ranks), code=0 if fits or each["weight_format"] != "int4" else 1)
            (own,) = (o for o in found["serving"]["formats"] if o["weight_format"] == each["weight_format"])
            assert (own["needed"] <= found["memory_bytes"]) is fits, (each, ranks)


def test_vllms_names_and_an_fp8_cache(answered):
    asked = ("fit", "deepseek-v3", "--serve", "--on", "h200", "--gpus", "8")
    ours = answered(*asked, "--context", "16384", "--sequences", "8", "--chunk", "512", "--cache", "fp8")
    theirs = ("--max-model-len", "16384", "--max-num-seqs", "8", "--max-num-batched-tokens", "512")
    assert answered(*asked, *theirs, "--kv-cache-dtype", "fp8", "--gpu-memory-utilization", "0.9") == ours
    assert ours["serving"]["token_cache_bytes"] == 61 * (512 + 64)
    assert ours["assumed"] == []


def test_a_configuration_is_served_as_the_run_that_it_describes(answered, tmp_path):
    values = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
    values |= {"num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    found = answered("fit", str(path), "--serve")
    assert found["serving"] == answered("fit", "llama2-7b", "--serve")["serving"]
    assert found["traced"] is None
    formats = {each["weight_format"]: each["weight_bytes"] for each in found["serving"]["formats"]}
    assert formats["bf16"] == 2 * parameter_count(reference_run("llama2-7b").architecture)


def test_what_does_not_go_together_is_one_line(not_refused):
    table = [
        ("llama2-7b --serve --batch 8", "--batch: is of training, not of --serve"),
        ("llama2-7b --serve --fix zero3", "--fix: is of training, not of --serve"),
        ("llama2-7b --serve --stack pytorch", "--stack: is of training, not of --serve"),
        ("llama2-7b --serve --any-software", "--any-software: is of training, not of --serve"),
        ("llama2-7b --context 8", "--context: is of --serve"),
        ("llama2-7b --memory-share 0.5", "--memory-share: is of --serve"),
        ("llama2-7b --serve --gpus 3", "does not divide the model's heads = 32"),
        ("gpt2-124m --serve --context 2048", "--context: too many tokens; got 2048, allowed: at most 1,024"),
        ("llama2-7b --serve --context 0", "--context: not a usable number"),
        ("llama2-7b --serve --memory-share nan", "--memory-share: not a share"),
        ("llama2-7b --serve --on abacus", "abacus"),
        ("llama2-8b --serve", "unknown run"),
        ("bloom-mini --serve", "bloom-176b"),
        ("no_such.json --serve", "no_such.json"),
    ]
    assert not_refused("fit", table) == []


@pytest.mark.ranks
def test_a_model_that_no_formula_describes_is_traced(said, refused, tmp_path):
    values = {"model_type": "gemma2", "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 4}
    values |= {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000}
    values |= {"sliding_window": 128}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    lines = said("fit", str(path), "--serve", "--context", "1024", "--gpus", "4").splitlines()
    assert lines[0].startswith("traced: Gemma2ForCausalLM of transformers ")
    assert lines[1].startswith("no formula: ")
    assert lines[2].startswith("fits: ")
    (cache,) = (line for line in lines if line.startswith("cache: "))
    # of one layer: key and value, 2 heads of 64, 16 bits; a rank of 4 has one of the heads
    token = 2 * 2 * 64 * 2
    held = (2 * token // 2 * 1024 + 2 * token // 2 * 127) / 2**10
    assert cache == (
        f"cache: {token} B a token, {held:.4g} KiB a sequence of 1,024; 2 x DynamicSlidingWindowLayer "
        f"{2 * token * 127 / 2**10:.4g} KiB, 2 x DynamicLayer {2 * token * 1024 / 2**20:.4g} MiB"
    )
    module = tmp_path / "mine.py"
    module.write_text("def build(): ...")
    assert "a module of one's own has no cache that is known" in refused("fit", f"{module}:build", "--serve")
