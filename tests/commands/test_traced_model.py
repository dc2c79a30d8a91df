"""`predict` of a module of the user's own, and of a configuration, as a user sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from suite.commands.traced_model import no_formula
from suite.commands.traced_options import OF_TRACED, TracedOptions
from suite.machine.packages import PACKAGES
from suite.machine.profile import encode
from tests.execute.trace import models
from tests.predict.machine_model.test_from_profile import measured

pytestmark = pytest.mark.ranks

FILE = str(Path(models.__file__))
SHAPE = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
SHAPE |= {"num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True}
SHAPE |= {"max_position_embeddings": 4096, "head_dim": 64}  # of Llama 3.2 1B
ASKED = ("--on", "h100-sxm", "--sequence", "256", "--micro-batch", "4")


def test_a_module_of_ones_own_is_predicted_and_the_first_line_says_how(said):
    lines = said("predict", f"{FILE}:build", *ASKED).splitlines()
    assert lines[0].startswith("traced: Model of PyTorch ")
    assert lines[1] == "no formula: a module of your own, so its own code was executed"
    assert lines[2].startswith("fits (over 99 % likely): ")
    assert all(len(line) <= 80 for line in lines)
    assert "assumed: bf16 with fp32 weights (--precision)" in lines
    assert any(line.startswith("parameters: 2,616,832; buffers: 7 elements") for line in lines)


def test_the_object_has_operators_that_make_up_the_flop(answered):
    answer = answered("predict", f"{FILE}:build", *ASKED, "--precision", "bf16-pure", "--layout", "dp8,zero3")
    flop = 8 * sum(operator["calls"] * operator["flop"] for operator in answer["operators"])
    assert answer["hardware_flop"] == flop
    assert answer["job"]["sharding"] == "resharded"
    assert answer["tokens_per_second"] == pytest.approx(8 * 4 * 256 / answer["step_seconds"])


def test_a_profile_of_a_machine_prices_the_operators(answered, refused, tmp_path):
    path = tmp_path / "profile.json"
    asked = (f"{FILE}:build", *ASKED[2:], "--precision", "fp32", "--machine", str(path))
    seconds = []
    for faster in (1.0, 2.0):
        path.write_bytes(encode(measured(faster=faster)))
        seconds.append(answered("predict", *asked)["step_seconds"])
    assert seconds[0] == pytest.approx(2 * seconds[1], rel=1e-9)
    assert "excludes --on" in refused("predict", *asked, "--on", "h100-sxm")


def test_an_update_by_matrix_products_is_no_model_flop(answered):
    with_adamw, with_muon = (
        answered("predict", f"{FILE}:build", *ASKED, "--optimizer", kind) for kind in ("adamw", "muon")
    )
    assert with_muon["model_flop"] == with_adamw["model_flop"]
    assert with_muon["hardware_flop"] > with_adamw["hardware_flop"]


def test_what_cannot_be_traced_gets_one_line(refused, tmp_path):
    (tmp_path / "no.json").write_text("{")
    (tmp_path / "untyped.json").write_text("{}")
    expected = {
        f"{FILE}:nothing": "has no function nothing",
        f"{FILE}:no_module": "no_module() returns no torch.nn.Module, but a value of type int",
        f"{FILE}:raises": "raises() raises RuntimeError: no such weights",
        f"{FILE}:2": "not a function's name",
        f"{tmp_path}/none.py:build": "no such file",
        f"{tmp_path}/no.json": "not a JSON file",
        f"{tmp_path}/untyped.json": "has no model_type",
    }
    wrong = {name: line for name, words in expected.items() if words not in (line := refused("predict", name))}
    assert wrong == {}
    for layout in ("dp2,tp2", "pp2", "dp2,zero1"):
        assert "allowed: dpN, zero0" in refused("predict", f"{FILE}:build", "--layout", layout)
    assert "--gpus says 4" in refused("predict", f"{FILE}:build", "--layout", "dp2", "--gpus", "4")
    assert "makes 4 micro-batches a rank, and the layout says 2" in refused(
        "predict", f"{FILE}:build", "--layout", "dp1,accumulate2", "--batch", "4"
    )
    for option in (("--stack", "pytorch"), ("--tokens", "1e9"), ("--price", "2"), ("--choices",)):
        assert refused("predict", f"{FILE}:build", *option) == f"{option[0]}: is of runs"
    for option in (("--trace",), ("--optimizer", "sgd")):
        assert refused("predict", "gpt2-124m", *option) == f"{option[0]}: {OF_TRACED}"
    assert "excludes --lora" in refused("predict", f"{FILE}:build", "--lora", "8", "--qlora", "8")
    assert "--compile: excludes" in refused("predict", f"{FILE}:build", "--lora", "8", "--compile")
    assert "needs --lora or --qlora" in refused("predict", f"{FILE}:build", "--lora-targets", "up")
    assert "no multiple of 3 samples" in refused("predict", f"{FILE}:build", "--batch", "7", "--micro-batch", "3")


def test_a_configuration_that_a_formula_describes_is_a_run_of_its_own(said, answered, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama"} | SHAPE))
    out = said("predict", str(path))
    assert out.startswith(f"by formula: {path} on ")
    assert "1,235,814,400" in out
    assert "traced" not in out
    assert answered("predict", str(path))["answered_by"] == "formula"


REASONS: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "llama", "hidden_act": "snake", **SHAPE}, 'hidden_act = "snake"'),
    (
        {"model_type": "minimax", "layer_types": 3 * ["linear_attention"] + ["full_attention"]},
        "linear attention in 3 of 4 layers",
    ),
    ({"model_type": "new_one"}, "none was compared with model type 'new_one'"),
    ({"model_type": "gemma2"}, "soft caps of logits and scores, or norms on both sides of each part"),
    ({"model_type": "llama"}, "missing key 'num_hidden_layers'"),
]


def test_the_reason_why_no_formula_answers_is_a_part_of_the_configuration(tmp_path):
    path, wrong = tmp_path / "config.json", {}
    for values, reason in REASONS:
        path.write_text(json.dumps(values))
        if (found := no_formula(str(path), TracedOptions())) != reason:
            wrong[reason] = found
    assert wrong == {}
    assert no_formula("gpt2-124m", TracedOptions()) is None
    assert no_formula(f"{FILE}:build", TracedOptions()) == "a module of your own"
    path.write_text(json.dumps({"model_type": "llama"} | SHAPE))
    assert no_formula(str(path), TracedOptions()) is None
    assert no_formula(str(path), TracedOptions(trace=True)) == "--trace was given"


def test_a_type_by_another_name_is_traced_as_the_one_that_transformers_has(answered, tmp_path):
    path = tmp_path / "config.json"
    small = SHAPE | {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    for kind, named in (("Yi", []), ("own_llama", ["LlamaForCausalLM"])):
        path.write_text(json.dumps({"model_type": kind, "architectures": named, "auto_map": {}} | small))
        answer = answered("predict", str(path), "--trace", *ASKED)
        assert answer["traced"]["software"].endswith(" as llama")
        assert answer["traced"]["model"] == "LlamaForCausalLM"
        assert (answer["answered_by"], answer["no_formula"]) == ("trace", "--trace was given")


def test_a_configuration_that_no_formula_describes_needs_transformers(refused, tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "mamba2"}))
    monkeypatch.setitem(PACKAGES, "transformers", PACKAGES["transformers"]._replace(module="no_such_module"))
    line = refused("predict", str(path))
    assert "lacks transformers" in line
    assert "[models" in line
