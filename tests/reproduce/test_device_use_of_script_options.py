"""Which options of the script a device gets."""

from __future__ import annotations

import msgspec

from reference_runs.catalog import reference_run
from reference_runs.layout import parse_layout
from reference_runs.miniature import miniature
from reference_runs.run import Precision, Workload
from suite.job.options import DEFAULT_OPTIONS, KernelChoice, Optimization, TrainingOptions
from suite.predict.simulation.launched_options import LOSS_TOKENS, device_options
from suite.predict.simulation.optimizations import PlannedLaunch, default_optimizations


def options(workload: Workload, device: str = "cuda", **changes: object) -> TrainingOptions:
    return device_options(workload, device, **{"compiled": True, "kernels": KernelChoice.TORCH, **changes})


def in_layout(name: str, text: str) -> Workload:
    architecture, recipe, layout = reference_run(name).workload
    return Workload(architecture, recipe, parse_layout(text, base=layout))


def test_on_a_gpu_logits_of_8192_tokens_exist_at_once_and_batches_are_copied_ahead():
    for name, chunks in (("gpt2-124m", 8), ("gpt2-350m", 8), ("gpt2-1558m", 2)):
        workload = in_layout(name, "dp1")
        optimizations = default_optimizations(PlannedLaunch(workload, "cuda", True, KernelChoice.TORCH))
        assert Optimization.ACROSS_BLOCKS in optimizations
        expected = TrainingOptions(rung="", pinned=True, loss_chunks=chunks, optimizations=optimizations)
        assert options(workload) == expected
        assert workload.layout.micro_batch * workload.architecture.sequence <= chunks * LOSS_TOKENS
    small = miniature(reference_run("gpt2-124m"), "cpu", ranks=1, steps=8).workload  # few tokens are two parts
    assert small.layout.micro_batch * small.architecture.sequence < LOSS_TOKENS
    assert options(small).loss_chunks == 2
    assert options(reference_run("gpt2-124m").workload, "cpu") == DEFAULT_OPTIONS


def test_where_parts_of_the_loss_do_not_go_all_logits_exist_at_once():
    workload = in_layout("gpt2-124m", "dp1")
    scaled = workload._replace(recipe=msgspec.structs.replace(workload.recipe, precision=Precision.FP16))
    assert options(workload, compiled=False).loss_chunks == 1
    assert options(workload, kernels=KernelChoice.TRITON).loss_chunks == 1
    assert options(scaled).loss_chunks == 1
    assert options(in_layout("gpt2-124m", "tp2")).loss_chunks == 1


def test_the_batches_of_a_pipeline_are_not_copied_ahead():
    assert not options(in_layout("gpt2-124m", "pp2")).pinned
