"""The learning rate of an export belongs to the training that is exported, in samples and in its steps."""

from __future__ import annotations

import ast
import re
import tomllib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import global_batch_at, reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.run import Workload
from suite.report.export.formats import FORMATS
from suite.report.export.job import ExportedJob
from suite.report.export.schedule import schedule_of

RUN = reference_run("llama3.1-8b")
SEQUENCE = RUN.architecture.sequence
WHOLE = {"batch_rampup_start": None, "batch_rampup_increment": None, "batch_rampup_samples": None}


def job_of(samples: int, own: int | None = None, **recipe: Any) -> ExportedJob:
    recipe = {"global_batch": 64, **WHOLE, **recipe}
    layout = Layout(data_parallel=8, zero_stage=3, fused_attention=True)
    workload = Workload(RUN.architecture, msgspec.structs.replace(RUN.recipe, **recipe), layout)
    return ExportedJob("llama3.1-8b", workload, 8, "megatron-core", tokens=samples * SEQUENCE, own_samples=own)


def brute_steps(job: ExportedJob, samples: int) -> int:
    seen = steps = 0
    while seen < samples:
        seen, steps = seen + global_batch_at(job.workload.recipe, seen), steps + 1
    return steps


@given(
    start=st.integers(1, 8),
    increment=st.integers(1, 5),
    increments=st.integers(1, 9),
    grown=st.integers(1, 900),
    samples=st.integers(0, 1500),
)
def test_steps_are_those_of_a_batch_that_grows(
    start: int, increment: int, increments: int, grown: int, samples: int
) -> None:
    batch = start + increment * increments
    ramp = {"batch_rampup_start": start, "batch_rampup_increment": increment, "batch_rampup_samples": grown}
    job = job_of(2000, global_batch=batch, **ramp)
    assert job.steps_of(samples) == brute_steps(job, samples)


@given(
    samples=st.integers(64, 10**9), own=st.integers(64, 10**9), decay=st.integers(1, 2 * 10**9), warm=st.floats(0, 1)
)
def test_a_decay_keeps_its_share_of_the_training_and_a_warm_up_is_never_longer(
    samples: int, own: int, decay: int, warm: float
) -> None:
    warmup = int(warm * decay)
    planned = schedule_of(job_of(samples, own, warmup=warmup, decay=decay))
    assert planned.decay is not None
    assert planned.warmup is not None
    assert abs(planned.decay * own - decay * samples) <= own
    assert planned.warmup <= min(warmup, max(planned.decay, 1))
    assert bool(planned.remarks) or (planned.decay, planned.warmup) == (decay, warmup)


def test_a_recorded_schedule_of_the_recorded_training_is_as_recorded_and_nothing_is_said() -> None:
    assert schedule_of(job_of(6400, 6400, warmup=640, decay=6400)) == (640, 6400, ())


@pytest.mark.parametrize(
    ("decay", "words"),
    [(3200, "at its minimum after 50% of the training"), (12800, "the training ends after 50% of the decay")],
)
def test_a_recorded_decay_that_does_not_end_with_the_training_is_kept_and_said(decay: int, words: str) -> None:
    planned = schedule_of(job_of(6400, 6400, warmup=64, decay=decay))
    assert planned.decay == decay
    (remark,) = planned.remarks
    assert words in remark


def steps_in(text: str) -> tuple[int, int, int]:
    """Steps of warm-up, decay and training that NeMo's script or torchtitan's TOML says."""
    if text.startswith("#!/bin/bash"):
        batch = int(re.findall(r"--global-batch-size (\d+)", text)[0])
        names = ("lr-warmup-samples", "lr-decay-samples", "train-samples")
        warmup, decay, samples = (int(re.findall(rf"--{name} (\d+)", text)[0]) for name in names)
        return -(-warmup // batch), -(-decay // batch), -(-samples // batch)
    if "import torch" in text:
        calls = {
            ast.unparse(node.func).rpartition(".")[2]: {key.arg: key.value for key in node.keywords}
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Call)
        }
        of_rate, of_training = calls["CosineAnnealingScheduler"], calls["Trainer"]
        nodes = (of_rate["warmup_steps"], of_rate["max_steps"], of_training["max_steps"])
        warmup, decay, steps = map(ast.literal_eval, nodes)
        return warmup, decay, steps
    read = tomllib.loads(text)
    rate = read["lr_scheduler"]
    return rate["warmup_steps"], rate["total_steps"], read["training"]["steps"]


@pytest.mark.parametrize("export", ["megatron", "nemo", "torchtitan"])
@pytest.mark.parametrize(("batch", "samples"), [(64, 640_000), (512, 640_000), (64, 64_000)])
def test_the_rate_of_every_format_reaches_its_minimum_with_the_last_step(export: str, batch: int, samples: int) -> None:
    recipe = {"warmup": 640, "decay": 640_000, "global_batch": batch}
    job = job_of(samples, 640_000, **recipe)
    layout = Layout(data_parallel=8, zero_stage=3 if export == "torchtitan" else 0, fused_attention=True)
    text = FORMATS[export].text(job._replace(workload=job.workload._replace(layout=layout)))
    warmup, decay, steps = steps_in(text)
    assert (warmup, decay) == (-(-640 // batch), steps)
    assert steps == samples // batch


def test_torchtitans_rate_never_rises_again() -> None:
    """Beyond total_steps its cosine does: half of the recorded decay would be followed by a second peak."""
    job = job_of(6400, 6400, warmup=64, decay=3200)
    _, decay, steps = steps_in(FORMATS["torchtitan"].text(job))
    assert decay == steps == 100
    assert any("torchtitan has no constant minimum" in words for words in FORMATS["torchtitan"].remarks(job))


def test_fewer_tokens_than_one_step_are_refused() -> None:
    with pytest.raises(InputError, match="too few tokens to train on; got 8192, allowed: at least 524,288"):
        FORMATS["torchtitan"].text(job_of(1))


def test_a_batch_that_does_not_grow_in_whole_micro_batches_is_refused() -> None:
    ramp = {"batch_rampup_start": 12, "batch_rampup_increment": 4, "batch_rampup_samples": 100}
    job = job_of(6400, **ramp)
    layout = Layout(data_parallel=8, fused_attention=True)
    with pytest.raises(InputError, match="a batch that grows from 12 by 4 to 64 in micro-batches of 8 samples"):
        FORMATS["megatron"].text(job._replace(workload=job.workload._replace(layout=layout)))


@pytest.mark.parametrize("name", ["llama3.1-8b", "llama3.1-70b", "qwen3-30b-a3b", "qwen3-235b-a22b"])
def test_an_assumed_decay_ends_with_the_assumed_training(name: str) -> None:
    run = reference_run(name)
    samples = run.recipe.tokens / run.architecture.sequence
    assert abs(run.recipe.decay - samples) < run.recipe.global_batch
