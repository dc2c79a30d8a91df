"""Models that configurations name: their shapes have the parameters that their names say."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_runs.configurations.models import UnknownModelError, model_of, named_model, run_called, sized_model
from reference_runs.errors import InputError
from suite.predict.analytic.parameters import parameter_count


@pytest.mark.parametrize(
    ("name", "billions"),
    [  # parameters as the models' publishers print them
        ("meta-llama/Meta-Llama-3-8B-Instruct", 8.03),
        ("NousResearch/Llama-3.2-1B", 1.24),
        ("Qwen/Qwen2.5-7B-Instruct", 7.62),
        ("Qwen/Qwen2.5-0.5B", 0.494),
        ("Qwen/Qwen3-4B-Instruct-2507", 4.02),
        ("mistralai/Mistral-7B-v0.1", 7.24),
        ("microsoft/Phi-3-mini-4k-instruct", 3.82),
        ("google/gemma-7b-it", 8.54),
        ("openai/gpt-oss-20b", 20.9),
        ("deepseek-ai/DeepSeek-V2-Lite", 15.7),
        ("deepseek-ai/DeepSeek-V3-0324", 671.0),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 1.10),
        ("qwen2_5_1_5b_instruct", 1.54),
        ("qwen25-0.5b", 0.494),
        ("nvidia/NVIDIA-Nemotron-Nano-12B-v2-Base", 12.3),
        ("nvidia/Nemotron-H-8B-Base-8K", 8.1),
        ("unsloth/Llama-3.2-1B-Instruct-bnb-4bit", 1.24),
    ],
)
def test_a_name_has_its_published_parameters(name: str, billions: float) -> None:
    counted = parameter_count(named_model(name, sequence=2048).architecture) / 1e9
    assert counted == pytest.approx(billions, rel=0.005)


def test_a_config_json_beside_the_file_comes_before_the_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,'
        ' "intermediate_size": 128, "vocab_size": 100}',
        encoding="utf-8",
    )
    run, _ = model_of("meta-llama/Llama-2-7b-hf", None, tmp_path, sequence=128)
    assert run.architecture.hidden == 64


@pytest.mark.parametrize(
    ("name", "reads"),
    [("Qwen/Qwen2.5-VL-7B-Instruct", "pictures"), ("llama3_2_vision_11b", "pictures"), ("x/Reward-8B", "reward")],
)
def test_models_that_are_more_than_a_decoder_of_text_say_so(name: str, reads: str) -> None:
    with pytest.raises(UnknownModelError, match=reads):
        named_model(name, sequence=None)


@pytest.mark.parametrize("name", ["nobody/Nothing-9B", "llama3"])
def test_an_unknown_name_or_one_without_its_size_is_said(name: str) -> None:
    with pytest.raises(UnknownModelError, match="unknown model"):
        named_model(name, sequence=None)


@pytest.mark.parametrize("name", ["Qwen/Qwen3-32B", "qwen3-32b", "Qwen3-32B-Instruct"])
def test_an_argument_names_a_model_of_the_table(name: str) -> None:
    run = run_called(name, sequence=4096)
    assert (run.name, run.architecture.sequence) == ("qwen3-32b", 4096)
    assert parameter_count(run.architecture) / 1e9 == pytest.approx(32.8, abs=0.05)


@pytest.mark.parametrize("name", ["llama3.1-8b", "meta-llama/Llama-3.1-8B", "DeepSeek-V3", "qwen3-32b.toml", "x"])
def test_names_of_recorded_runs_and_files_mean_no_line_of_the_table(name: str) -> None:
    assert sized_model(name) is None


def test_a_model_that_no_formula_describes_is_said_with_what_would_do() -> None:
    with pytest.raises(InputError, match="no formula describes it: .*soft caps.* config.json"):
        run_called("google/gemma-2-9b")


def test_a_near_name_of_the_table_is_suggested() -> None:
    with pytest.raises(InputError, match="did you mean qwen3-32b"):
        run_called("qwen3-33b")
