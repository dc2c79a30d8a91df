"""`show` of an accelerator prints its floors, and says of which rates there are none."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from reference_runs.accelerator import accelerator, accelerator_names
from suite.__main__ import main


def test_the_floors_of_an_accelerator_have_interval_kind_date_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "b200"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"bf16 GEMM 1,420 to 1,510 Tflop/s published by others 2026-11-28 collected B200", out)
    assert re.search(r"all-reduce of 8 \(nvls\) 690 GB/s assumed 2026-11-28 general", out)
    assert re.search(r"fp8 GEMM 2,500 Tflop/s or more assumed 2026-11-29 general; from the bf16 floor", out)
    assert main(["show", "gb10"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"fp8 GEMM no floor no rate of a working part is known", out)


def test_floors_have_base_units_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "h100", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    measured = [floor for floor in shown["floors"] if floor["kind"] == "measured by us"]
    assert {(floor["quantity"], floor["lower"], floor["upper"], floor["unit"]) for floor in measured} == {
        ("bf16_gemm", 770e12, 777e12, "flop/s"),
        ("sustained_gemm", 674e12, 680e12, "flop/s"),
        ("copy", 3022e9, 3025e9, "byte/s"),
    }
    assert {floor["date"] for floor in measured} == {"2026-11-25"}
    assert all(floor["source"].split()[0] in shown["sources"] for floor in shown["floors"])
    assert main(["show", "rubin", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["floors"], [*shown["no_floor"]]) == ([], ["bf16_gemm", "fp8_gemm", "copy", "all_reduce"])


@pytest.mark.parametrize("name", accelerator_names())
def test_show_prints_every_fact_and_floor_of_an_accelerator_with_its_source(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", name]) == 0
    out = capsys.readouterr().out
    joined = "".join(out.split())
    device = accelerator(name)
    for key, fact in device.facts.items():
        assert key in joined
        # a source is folded over lines of its own column: its first word stands beside the value
        assert f"{fact.kind.value.replace(' ', '')}{fact.source.split()[0]}" in joined, key
        assert fact.source.split()[0].rstrip(":;,") in device.sources, key
    for floor in device.floors:
        assert floor.source.split()[0].rstrip(":;,") in device.sources, floor.of
        assert "".join(floor.interval.split()) in joined
    for document in device.sources.values():
        assert "".join(document.split())[:40] in joined


LLAMA3_8B = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
LLAMA3_8B |= {"num_hidden_layers": 32, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False}


@pytest.mark.ranks
def test_the_miniature_of_a_configuration_is_shown_by_rule_and_as_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA3_8B))
    # an eighth of heads and widths
    width, heads, key_value, feed_forward, layers, vocabulary = 512, 4, 128, 1792, 2, 1024
    a_layer = 2 * width * width + 2 * width * key_value + 3 * width * feed_forward + 2 * width
    parameters = 2 * vocabulary * width + layers * a_layer + width
    assert main(["show", str(path), "--mini"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"layers: the first of every kind, at least 2: num_hidden_layers 32 -> {layers}" in out
    assert f"{parameters:,} parameters" in out
    assert main(["show", str(path), "--mini", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["model"], shown["parameters"]) == ("LlamaForCausalLM", parameters)
    changes = {each["key"]: (each["given"], each["here"]) for each in shown["scaled"]}
    assert changes["num_attention_heads"] == (32, heads)
    assert (shown["configuration"]["hidden_size"], shown["configuration"]["intermediate_size"]) == (width, feed_forward)


def test_a_configuration_has_no_scale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA3_8B))
    assert main(["show", str(path), "--mini", "--scale", "cuda"]) == 2
    assert "--scale: a configuration has one miniature; got cuda" in capsys.readouterr().err


def test_a_model_of_the_table_says_which_commands_take_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "Qwen/Qwen2.5-7B"]) == 2
    what = "qwen2.5-7b is a model without a run: there is nothing to show"
    allowed = "`predict`, `fit` or `plan` with it"
    assert capsys.readouterr().err == f"error: {what}; got 'Qwen/Qwen2.5-7B', allowed: {allowed}\n"
