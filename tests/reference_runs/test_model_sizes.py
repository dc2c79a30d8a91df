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
    "codellama-13b": 13_016_028_160,
    "codellama-34b": 33_743_970_304,
    "codellama-7b": 6_738_546_688,
    "deepseek-v2-lite": 15_706_484_224,
    "falcon-7b": 6_921_720_704,
    "falcon3-10b": 10_305_653_760,
    "falcon3-3b": 3_227_655_168,
    "falcon3-7b": 7_455_550_464,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gpt-j-6b": 6_050_882_784,
    "gpt-oss-20b": 20_914_757_184,
    "llama-7b": 6_738_415_616,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mistral-small-24b": 23_572_403_200,
    "olmo-1b": 1_176_764_416,
    "olmo-2-1124-13b": 13_716_198_400,
    "olmo-2-1124-7b": 7_298_617_344,
    "olmo-7b": 6_888_095_744,
    "open-llama-13b": 13_015_864_320,
    "open-llama-3b": 3_426_473_600,
    "open-llama-7b": 6_738_415_616,
    "phi-3-mini": 3_821_079_552,
    "pythia-1.4b": 1_414_647_808,
    "pythia-12b": 11_846_072_320,
    "pythia-14m": 14_067_712,
    "pythia-160m": 162_322_944,
    "pythia-1b": 1_011_781_632,
    "pythia-2.8b": 2_775_208_960,
    "pythia-31m": 30_494_720,
    "pythia-410m": 405_334_016,
    "pythia-6.9b": 6_857_302_016,
    "pythia-70m": 70_426_624,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2-0.5b": 494_032_768,
    "qwen2-1.5b": 1_543_714_304,
    "qwen2-72b": 72_706_203_648,
    "qwen2-7b": 7_615_616_512,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "smollm2-1.7b": 1_711_376_384,
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
    "moonlight-16b-a3b": 15.96,
    "nemotron-h-8b": 8.1,
    "nemotron-nano-12b-v2": 12.3,
    "phi-1.5": 1.42,
    "phi-2": 2.78,
    "phi-4": 14.7,
    "phi-4-mini": 3.84,
}
BY_NAME = {"nemotron-h-4b": 4, "nemotron-mini-4b": 4, "nemotron3-8b": 8}  # billions in names alone, cut off
NOT_DESCRIBED = {
    *("gemma-2-2b", "gemma-2-9b", "gemma-2-27b", "gemma-3-1b", "olmoe-1b-7b"),
    *("nemotron-h-47b", "nemotron-nano-9b-v2", "nemotron-3-nano-30b-a3b"),
}
TOY = "llama3-debugmodel"


def _parameters(name: str) -> int:
    return parameter_count(run_of_values(known_models()[name].config, name).architecture)


@pytest.mark.parametrize("name", sorted(known_models().keys() - NOT_DESCRIBED - {TOY}))
def test_parameters_are_those_released_or_those_of_the_name(name: str) -> None:
    parameters = _parameters(name)
    if name in RELEASED:
        assert parameters == RELEASED[name]
    elif name in PRINTED:
        assert parameters / 1e9 == pytest.approx(PRINTED[name], rel=0.01)
    else:
        assert int(parameters / 1e9) == BY_NAME[name]


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
