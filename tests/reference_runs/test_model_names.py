"""Names of models as people write them find the catalog's run, and no other model's."""

from __future__ import annotations

import pytest

from reference_runs.catalog import reference_run, run_names
from reference_runs.published_cells import SHAPE
from reference_runs.published_shape import is_plain, named_run, stated_shape


@pytest.mark.parametrize(
    ("model", "run"),
    [
        *((name, name) for name in run_names()),
        ("meta-llama/Llama-2-7b-hf", "llama2-7b"),
        ("LLaMA2 13B", "llama2-13b"),
        ("Meta-Llama-3.1-405B", "llama3.1-405b"),
        ("GPT-3 175B", "gpt3-175b"),
        ("BLOOM", "bloom-176b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("mistralai/Mixtral-8x22B-v0.1", "mixtral-8x22b"),
        ("GPT-NeoX", "gpt-neox-20b"),
        ("Qwen/Qwen3-30B-A3B-Base", "qwen3-30b-a3b"),
        ("Qwen/Qwen3-235B-A22B", "qwen3-235b-a22b"),
        ("LLAMA3_8B", "llama3.1-8b"),
        ("Meta-Llama-3-70B", "llama3.1-70b"),
        ("Llama-3.1-8B-Instruct", "llama3.1-8b"),
        ("Llama-3.3-70B-Instruct", "llama3.1-70b"),
        ("llama31_405b", "llama3.1-405b"),
        ("DeepSeekV3 (w/o MTP)", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("Grok1 314B", "grok-1"),
        ("gpt2-xl", "gpt2-1558m"),
        ("Llama2 70B LoRA", None),  # trains adapters alone
        ("Llama-2-70b (LoRA)", None),
        ("Llama 2 (7B)", "llama2-7b"),
        ("GPT3 (1.3B)", None),
        ("BLOOM (7B)", None),
        ("DeepSeek-V3 (16 layers)", None),
        ("Llama-3.2-1B", None),
        ("DeepSeek-R1-Distill-Llama-8B", None),
        ("llama2", None),  # of several sizes
        ("mixtral", None),
        ("Qwen/Qwen3", None),
        ("Llama-2-8b", None),
        ("GPT-2B", None),
        ("bloomz-7b1", None),
        ("", None),
    ],
)
def test_a_model_is_found_by_its_name(model: str, run: str | None) -> None:
    assert named_run(model) == run


def test_a_plain_model_is_said_in_full_by_its_cells() -> None:
    plain = [run for name in run_names() if is_plain(run := reference_run(name))]
    assert len(plain) > len(run_names()) / 2
    for run in plain:
        assert set(SHAPE) <= set(stated_shape(run))


def test_a_name_without_its_size_means_no_run_of_another_shape() -> None:
    assert named_run("GPT-3") == named_run("GPT-3", {"layers": "96", "hidden": "12288"}) == "gpt3-175b"
    assert named_run("GPT-3", {"layers": "24", "hidden": "2048", "heads": "16"}) is None
    assert named_run("PaLM", {"layers": "32"}) is None
    assert named_run("llama3.1-405b", {"layers": "21"}) == "llama3.1-405b"  # a proxy with some of its layers
