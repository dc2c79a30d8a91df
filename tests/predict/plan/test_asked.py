"""What options ask for takes the place of the run's own; what nobody says is assumed, each with its option."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from reference_runs.catalog import load, reference_run
from reference_runs.layout import Layout
from reference_runs.run import Precision
from suite.predict.analytic.parameters import active_parameter_count, parameter_count
from suite.predict.plan.asked import AskedTraining, asked_run
from tests.support.short_run_files import short_run_file


@pytest.fixture
def short(tmp_path: Path):
    """A run file with an architecture alone: Llama 2's of 7B."""
    path = tmp_path / "short.toml"
    short_run_file(path)
    return load(path)


def test_everything_that_is_missing_is_assumed_and_names_its_option(short):
    asked = asked_run(short, AskedTraining(), on=None, ranks=None)
    assert [each.option for each in asked.assumed] == ["--on", "--precision", "--gpus", "--batch", "--tokens"]
    recipe = asked.run.recipe
    assert (asked.on, recipe.precision) == ("h100-sxm", Precision.BF16)
    # 18 bytes a parameter, 0.8 of 78.5 GiB: 6.74e9 * 18 / (0.8 * 78.5 * 2**30) = 1.8
    assert asked.ranks == 2
    assert recipe.global_batch * short.architecture.sequence == 2**22
    assert recipe.tokens == 20 * parameter_count(short.architecture)


def test_what_is_asked_for_is_not_assumed(short):
    training = AskedTraining(Precision.BF16_PURE, batch=48, sequence=1024, tokens=10**9)
    asked = asked_run(short, training, on="rtx-4090", ranks=3)
    assert asked.assumed == ()
    recipe = asked.run.recipe
    assert (recipe.precision, recipe.global_batch, recipe.tokens) == (Precision.BF16_PURE, 48, 10**9)
    assert (asked.run.architecture.sequence, asked.ranks, asked.on) == (1024, 3, "rtx-4090")


def test_an_assumed_batch_is_divided_by_the_accelerators_or_the_layout(short):
    assert asked_run(short, AskedTraining(), on=None, ranks=63).run.recipe.global_batch % 63 == 0
    layout = Layout(data_parallel=6, pipeline_stages=4, micro_batch=5)
    assert asked_run(short, AskedTraining(), on=None, ranks=None, layout=layout).run.recipe.global_batch % 120 == 0


def test_an_accelerator_without_bf16_gets_fp16(short):
    assert asked_run(short, AskedTraining(), on="v100-sxm-32gb", ranks=8).run.recipe.precision is Precision.FP16


def test_a_recorded_run_assumes_nothing_and_tokens_of_experts_count_active_parameters():
    run = reference_run("mixtral-8x7b")
    asked = asked_run(run, AskedTraining(), on="h100-sxm", ranks=64)
    assert (asked.assumed, asked.run, asked.on) == ((), run, "h100-sxm")
    assert active_parameter_count(run.architecture) < parameter_count(run.architecture) / 3


def test_a_sequence_longer_than_recorded_is_said():
    run = reference_run("llama2-7b")
    (note,) = asked_run(run, AskedTraining(sequence=8192), on=None, ranks=64).notes
    assert note == "sequences of 8,192 tokens are longer than the 4,096 that the run records"
    assert asked_run(run, AskedTraining(sequence=2048), on=None, ranks=64).notes == ()


def test_a_batch_that_is_asked_for_has_no_ramp_up():
    run = reference_run("bloom-176b")
    assert run.recipe.batch_rampup_start is not None
    recipe = asked_run(run, AskedTraining(batch=1024), on=None, ranks=None).run.recipe
    assert (recipe.global_batch, recipe.batch_rampup_start) == (1024, None)
    assert recipe == msgspec.structs.replace(
        run.recipe, global_batch=1024, batch_rampup_start=None, batch_rampup_increment=None, batch_rampup_samples=None
    )
