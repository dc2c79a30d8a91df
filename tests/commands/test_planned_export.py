"""`plan --export` as a user sees it."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout, parse_layout
from suite.__main__ import main
from suite.reproduce.supported import check_fused_attention
from tests.support.short_run_files import short_run_file

GPT2 = ("gpt2-124m", "--on", "a100-sxm-40gb", "--gpus", "4")


def test_stdout_has_the_script_alone_and_its_layout_is_the_first_of_the_plan(capsys, answered):
    asked = ["plan", *GPT2, "--stack", "pytorch", "--fix", "dp2,tp2,micro2"]
    first = answered(*asked)["best"][0]["layout"]
    assert main([*asked, "--export", "torchrun"]) == 0
    printed = capsys.readouterr()
    (line,) = printed.out.splitlines()
    words = shlex.split(line)
    assert words[:7] == ["python", "-m", "suite", "reproduce", "gpt2-124m", "--mini", "--ranks"]
    assert words[words.index("--layout") + 1] == first
    assert parse_layout(first, base=Layout()).ranks == int(words[7]) == 4
    assert first in "".join(printed.err.split())


@pytest.mark.parametrize(
    ("model", "fix"),
    [
        ("llama3.1-8b", ""),
        ("gpt2-1558m", "unfused"),
        pytest.param("llama3.1-405b", "", marks=pytest.mark.rare),
        pytest.param("llama3.1-8b", "unfused", marks=pytest.mark.rare),
    ],
)
def test_the_suites_own_layouts_are_those_that_it_executes_on_a_gpu(model, fix, capsys):
    asked = ["plan", model, "--on", "h100", "--gpus", "64", "--network", "3200", "--stack", "pytorch", "--top", "50"]
    assert main([*asked, *(["--fix", fix] if fix else []), "--json"]) in (0, 1)
    planned = json.loads(capsys.readouterr().out)
    for each in [*planned["best"], planned["smallest"]]:
        layout, recipe = parse_layout(each["layout"], base=Layout()), reference_run(model).recipe
        check_fused_attention(recipe, layout, "cuda", "here")
    for change in planned["changes"]:
        assert fix or not change["allowed"] or not re.match(r"cp1,.* -> cp2", change["words"])


def test_a_run_file_is_exported_as_it_is(tmp_path, said):
    """A short file leaves the optimizer out, and so does the script."""
    path = tmp_path / "short.toml"
    short_run_file(path, recipe={"precision": "bf16"})
    asked = ["plan", str(path), "--on", "h100-sxm", "--gpus", "8", "--batch", "32", "--tokens", "1e9"]
    read = json.loads(said(*asked, "--fix", "micro1", "--export", "deepspeed"))
    assert (read["train_batch_size"], read["train_micro_batch_size_per_gpu"]) == (32, 1)
    assert read["optimizer"] == {"type": "AdamW", "params": {}}


OF_GPT2 = " ".join(GPT2)
REFUSED = [
    ("bloom-176b --export megatron", "has no place for a norm of embeddings, ALiBi"),
    ("deepseek-v3 --fix tp1,cp1,ep16 --export nemo", "has no place for latent attention: llm.GPTConfig has none"),
    ("gpt3-175b --fix tp8,cp1,zero3 --export torchtitan", "torchtitan 0.2.2 has no place for this model's shape"),
    (f"{OF_GPT2} --export megatron --stack llama-3 --fix pp2,zero-bubble", "no place for zero-bubble"),
    (f"{OF_GPT2} --export deepspeed --fix pp2", "pp2: pipeline stages, which its pipeline engine takes"),
    (f"{OF_GPT2} --export deepspeed --fix tp2,sp", "DeepSpeed 0.19.8's JSON has no place for sp"),
    (f"{OF_GPT2} --export torchrun --fix pp4,micro1,interleave3", "--export: "),
    (f"{OF_GPT2} --export slurm --stack llm-c", "no script is known of this software"),
    ("bloom-176b --export mgatron", "did you mean megatron?"),
    ("bloom-176b --export megatron --json", "prints a script and nothing else; got --json"),
]


def test_what_a_format_has_no_place_for_gets_one_line(not_refused):
    assert not_refused("plan", REFUSED) == []


def test_where_nothing_fits_nothing_is_exported(capsys):
    assert main(["plan", "gpt3-175b", "--on", "h100-sxm", "--gpus", "8", "--export", "megatron"]) == 1
    printed = capsys.readouterr()
    assert (printed.out, "does not fit (under 1 % likely to): the least is " in printed.err) == ("", True)


def test_the_fastest_layout_with_a_place_is_taken_and_the_reason_said(capsys):
    """Orders of passes come first that no flag of Megatron-LM describes."""
    asked = ["plan", *GPT2, "--stack", "llama-3", "--fix", "dp2,tp1,pp2,cp1,micro1", "--export", "megatron"]
    assert main(asked) == 0
    printed = capsys.readouterr()
    said = " ".join(printed.err.split())
    assert "not the first: Megatron-LM with Megatron-Core 0.16.1 has no place for" in said
    assert "number " in said
    assert "torchrun" in printed.out
