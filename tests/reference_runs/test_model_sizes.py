"""The table of sizes: its models have the parameters that their publishers say, and no two have one name."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from reference_runs.configurations.models import sized_model
from reference_runs.configured_run import run_of_values
from reference_runs.hugging_face.configuration import NotDescribedError
from reference_runs.model_sizes import dotless_name, known_models
from reference_runs.named_runs import named_runs, run_names
from suite.predict.analytic.parameters import parameter_count

# Tensors of the released weights, to the unit
RELEASED = {
    "deepseek-v2-lite": 15_706_484_224,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mistral-small-24b": 23_572_403_200,
    "phi-3-mini": 3_821_079_552,
    "pythia-31m": 30_494_720,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "starcoder2-3b": 3_030_371_328,
    "tinyllama-1.1b": 1_100_048_384,
}
# Billions as the publishers print them, of names that say no size or are further from it than the next digit
PRINTED = {
    "codellama-70b": 69.0,
    "deepseek-v2": 236,
    "falcon-40b": 41.3,
    "falcon-180b": 179,
    "falcon3-1b": 1.67,
    "glm-4.5": 355,  # with the head for further tokens, 1 % of it
    "mistral-large": 123,
    "phi-1.5": 1.42,
    "phi-2": 2.78,
    "phi-4": 14.7,
    "phi-4-mini": 3.84,
}
NOT_DESCRIBED = {
    *("gemma-2-2b", "gemma-2-9b", "gemma-2-27b", "gemma-3-1b", "olmoe-1b-7b"),
    *("nemotron-h-47b", "nemotron-nano-9b-v2", "nemotron-3-nano-30b-a3b"),
}
TOY = "llama3-debugmodel"


def _parameters(name: str) -> int:
    return parameter_count(run_of_values(known_models()[name].config, name).architecture)


@pytest.mark.parametrize("name", sorted(known_models().keys() - NOT_DESCRIBED - {TOY}))
def test_parameters_are_those_released_or_those_of_the_name(name: str) -> None:
    """A name's last digit is rounded or cut off: 7.62 billion are 7B, 6.74 billion too."""
    parameters = _parameters(name)
    if name in RELEASED:
        assert parameters == RELEASED[name]
    elif name in PRINTED:
        assert parameters / 1e9 == pytest.approx(PRINTED[name], rel=0.01)
    else:
        size = re.search(r"(?<![\d.])(\d+)(?:\.(\d+))?([mb])\b", name)
        assert size is not None
        last = (1e6 if size[3] == "m" else 1e9) / 10 ** len(size[2] or "")
        said = int(size[1] + (size[2] or "")) * last
        assert said - last / 2 <= parameters < said + last


@pytest.mark.parametrize("name", sorted(NOT_DESCRIBED))
def test_models_of_known_sizes_that_no_formula_describes_say_why(name: str) -> None:
    with pytest.raises(NotDescribedError) as error:
        _parameters(name)
    assert error.value.reason


def test_no_two_models_have_one_name() -> None:
    again = Counter(dotless_name(each) for name, model in known_models().items() for each in (name, *model.also))
    assert [name for name, count in again.items() if count > 1] == []


def _other_sizes() -> list[str]:
    """Names in which a dot is left out or elsewhere so that the size is another: 14b of 1.4b, 2-57b of 2.5-7b."""
    names = [*run_names(), *(each for name, model in known_models().items() for each in (name, *model.also))]
    tenfold = (re.sub(r"(\d)\.(\d+[bm])", r"\1\2", name) for name in names)
    tenth = (re.sub(r"(\d)(\d[bm])\b", r"\1.\2", name) for name in names)
    moved = (re.sub(r"(\d)[.-]?(\d)-([\d.]+[bm])", r"\1-\2\3", name) for name in names)
    joined = (re.sub(r"(\d)-([\d.]+[bm])", r"\1\2", name) for name in names)
    return sorted({*tenfold, *tenth, *moved, *joined} - {*names})


@pytest.mark.parametrize("name", _other_sizes())
def test_a_name_whose_size_is_another_is_of_no_model(name: str) -> None:
    assert sized_model(name) is None
    assert named_runs(name) == []


def test_names_of_other_sizes_are_those_of_all_dots() -> None:
    others = {"pythia-14b", "pythia-28b", "qwen3-17b", "qwen2-15b", "qwen2-57b", "llama3-18b", "pythia-1.2b"}
    assert others <= {*_other_sizes()}
