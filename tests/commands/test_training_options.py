"""`--precision`: pure bf16 beside bf16 with fp32 master weights, and names of other software."""

from __future__ import annotations

import re
from typing import Any

import pytest

from reference_runs.machine_model import editions
from reference_runs.named_runs import RUNS
from tests.support.answers import whole
from tests.support.short_run_files import SHAPE, short_run_file

QWEN = SHAPE | {
    **{"layers": 28, "hidden": 1536, "heads": 12, "kv_heads": 2, "ffn_hidden": 8960, "vocabulary": 151936},
    **{"tied_embeddings": True, "attention_bias": True},
}
ALONE = {"data_parallel": 1, "micro_batch": 1, "recomputation": "full", "fused_attention": True}


def peak(entry: dict[str, Any]) -> float:
    return whole(entry)["peak_bytes"]


@pytest.fixture
def tune(tmp_path):
    """LLaMA-2 7B as torchtune's pull request 389 trains it: one sample of 512 tokens, recomputed."""
    path = tmp_path / "tune.toml"
    short_run_file(
        path,
        architecture=SHAPE | {"sequence": 512},
        recipe={"global_batch": 1},
        layout=ALONE,
        software={"stack": "torchtune"},
    )
    return str(path)


def test_pure_bf16_keeps_8_bytes_a_parameter_and_bf16_16_or_more(tune, answered):
    on = (tune, "--on", "a100-sxm-80gb", "--precision")
    # 54.4 GB: PyTorch's MemTracker on fake tensors, weights, gradients and AdamW's moments in bf16
    assert peak(answered("predict", *on, "bf16-pure")) == pytest.approx(54.4e9, rel=0.01)
    assert peak(answered("predict", *on, "bf16", code=1)) > 16 * 6_738_415_616  # without 16-bit masters: autocast


def test_sgd_keeps_no_moments_and_is_predicted_and_not_executed(tmp_path, answered, reasons):
    path = tmp_path / "sgd.toml"
    recipe = {"global_batch": 1, "optimizer": "sgd", "precision": "bf16-pure"}
    short_run_file(
        path,
        architecture=SHAPE | {"sequence": 512},
        recipe=recipe,
        layout=ALONE,
        cluster={"accelerator": "rtx-4090"},
        software={"stack": "torchtune"},
    )
    entry = answered("predict", str(path), code=1)
    # 27.8 GB: torchtune's pull request 389, as its allocator counts; 2 + 2 bytes a parameter are 26.95
    assert peak(entry) == pytest.approx(27.8e9, rel=0.03)
    assert peak(entry) > 4 * 6_738_415_616
    path.write_text(path.read_text().replace('"sgd"', '"adamw"'), encoding="utf-8")
    moments = peak(answered("predict", str(path), code=1)) - peak(entry)
    assert moments == pytest.approx(4 * 6_738_415_616, rel=1e-6)  # and a counter of steps for each tensor
    text = (RUNS / "bloom_176b.toml").read_text(encoding="utf-8")
    text = text.replace('optimizer = { value = "adamw"', 'optimizer = { value = "sgd"')
    path.write_text(text.replace('miniature = "bloom-mini"', ""), encoding="utf-8")
    (line,) = reasons(str(path), "--mini")
    assert "does not execute that optimizer; got sgd recipe.optimizer, allowed: adam, adamw" in line


def test_a_model_of_one_and_a_half_billion_fits_into_24_gb_in_pure_bf16(tmp_path, answered):
    path = tmp_path / "qwen.toml"
    short_run_file(path, architecture=QWEN, recipe={"global_batch": 1}, layout=ALONE, software={"stack": "TRL"})
    on = (str(path), "--on", "rtx-4090", "--precision")
    assert answered("predict", *on, "bf16-pure")["memory"]["usable"] > 8 * 1.54e9
    answered("predict", *on, "bf16", code=1)  # 18 bytes a parameter do not


@pytest.mark.parametrize("command", ["predict", "fit", "plan"])
def test_names_of_other_software_are_told_from_each_other(command, refused):
    for name, meant in (("bf16-true", "bf16-pure"), ("bf16-mixed", "bf16"), ("16-mixed", "fp16"), ("bf-16", "bf16")):
        line = refused(command, "llama2-7b", "--precision", name)
        assert line.startswith(f"--precision: unknown precision; got '{name}', did you mean {meant}? allowed: fp32, ")


def test_a_run_file_with_such_a_name_gets_one_line(tmp_path, refused):
    path = tmp_path / "short.toml"
    short_run_file(path, recipe={"precision": "bf16-true"})
    line = refused("predict", str(path))
    assert line.startswith(
        f"{path}: recipe.precision: unknown value; got 'bf16-true', did you mean bf16-pure? allowed:"
    )


def test_pure_bf16_is_predicted_and_not_executed(tmp_path, reasons):
    path = tmp_path / "pure.toml"
    text = (RUNS / "bloom_176b.toml").read_text(encoding="utf-8")
    text = text.replace('precision = { value = "bf16"', 'precision = { value = "bf16-pure"')
    path.write_text(text.replace('miniature = "bloom-mini"', ""), encoding="utf-8")
    (line,) = reasons(str(path), "--mini")
    assert "does not execute training without fp32 moments; got bf16-pure, allowed: fp32, bf16, " in line


def test_an_earlier_edition_answers_with_its_own_numbers_and_says_so(answered, said):
    earlier, now = "2026-11-27.1", editions()[-1]
    then, today = answered("predict", "bloom-176b", "--edition", earlier), answered("predict", "bloom-176b")
    assert (then["edition"], today["edition"]) == (earlier, now)
    assert then["step_seconds_uncertainty"] == pytest.approx(0.0625673333333, rel=1e-9)  # printed on that day
    assert whole(then)["step_seconds"] != whole(today)["step_seconds"]
    assert f"efficiencies of edition {earlier}, fitted to" in said(
        "predict", "bloom-176b", "--all", "--edition", earlier
    )
    assert "of edition" not in said("predict", "bloom-176b", "--all", "--edition", now)


def test_every_command_that_predicts_takes_an_edition_and_names_those_there_are(answered, refused, said):
    two, earlier = ("gpt2-1558m", "--on", "a100-sxm-80gb", "--gpus", "2", "--fix", "tp1,pp1"), editions()[0]
    for command in ("fit", "plan"):
        seconds = {}
        for name in (earlier, editions()[-1]):
            entry = answered(command, *two, "--edition", name)
            assert entry["edition"] == name, command
            best = entry["fastest"] if command == "fit" else entry["best"][0]
            seconds[name] = best["step_seconds"]
        assert len(set(seconds.values())) == 2, command
    assert re.search(rf"predict gpt2-1558m .*--edition {earlier}", said("fit", *two, "--edition", earlier))
    allowed = f"--edition: no such edition; got 1999-01, allowed: {', '.join(editions())}"
    for words in (("fit", *two), ("plan", *two), ("predict", "bloom-176b"), ("validate",), ("explore",)):
        assert refused(*words, "--edition", "1999-01") == allowed, words
    assert "is of training, not of --tiers" in refused("fit", "--tiers", "--edition", earlier)
