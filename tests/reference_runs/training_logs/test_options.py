"""Changes in the words of the framework whose log is read."""

from __future__ import annotations

import tomllib

from reference_runs.training_logs.formats import FORMATS
from reference_runs.training_logs.options import OPTIONS, framework_of_stack, option_of
from suite.paths import ROOT


def test_every_framework_with_options_has_a_format_and_one_for_the_micro_batch() -> None:
    assert set(OPTIONS) <= {each.name for each in FORMATS}
    assert all(option_of(framework, "micro-batch 1 -> 2") for framework in OPTIONS)


def test_a_change_is_named_as_its_framework_names_it() -> None:
    assert option_of("Megatron-LM", "tp8,dp4 -> tp4,dp8") == "--tensor-model-parallel-size"
    assert option_of("torchtitan", "recompute-full -> recompute-none") == "activation_checkpoint.mode"
    assert option_of("torchtitan", "zero3 -> zero0") == "parallelism.data_parallel_replicate_degree"
    assert option_of("MaxText", "micro-batch 1 -> 2") is None


def test_a_stack_of_one_framework_has_its_options() -> None:
    stacks = set(tomllib.loads((ROOT / "reference_runs/stacks.toml").read_text(encoding="utf-8"))["stacks"])
    named = {stack: framework_of_stack(stack) for stack in stacks}
    assert set(named.values()) - {""} <= set(OPTIONS)
    assert named["megatron-core-nemo-2"] == "NeMo"
    assert named["megatron-core"] == "Megatron-LM"
    assert named["pytorch"] == ""
