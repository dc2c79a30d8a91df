"""Passes after the last step: flop without recomputation, also where the kernels of training could not compute them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from reference_runs.catalog import reference_run
from reference_runs.miniature import miniature
from suite.execute.parallel.mesh import device_mesh
from suite.execute.parallel.parallelize import parallelize
from suite.execute.training.loop import model_flop_of_sample
from suite.execute.training.step import Steps
from suite.predict.analytic.flop import rank_model_flop
from suite.reproduce.plan import job_for
from suite.reproduce.slice_plan import slice_tokens
from tests.support.launches import small_plan

CPU = torch.device("cpu")


@pytest.mark.usefixtures("alone")
def test_fused_attention_of_two_head_sizes_counts_what_is_needed_not_what_is_padded(tmp_path: Path) -> None:
    torch.backends.cuda.enable_math_sdp(False)  # as a launch begins: scores may not be stored
    small = miniature(reference_run("deepseek-v3"), "cpu", ranks=1, steps=8)
    architecture = msgspec.structs.replace(small.architecture, layers=2, dense_layers=1, sequence=32)
    plan = msgspec.structs.replace(
        small_plan(ranks=1),
        architecture=architecture,
        recipe=msgspec.structs.replace(small.recipe, global_batch=1),
        layout=msgspec.structs.replace(small.layout, fused_attention=True, micro_batch=1, accumulation=None),
    )
    job = job_for(plan, slice_tokens(plan), str(tmp_path))
    mesh = device_mesh(job.layout, job.device)
    steps = Steps(job, parallelize(job, mesh=mesh, device=CPU), mesh, CPU)
    steps.forward_and_backward()
    assert model_flop_of_sample(steps) == rank_model_flop(plan.workload, stage=0, samples=1)
    assert not torch.backends.cuda.math_sdp_enabled()
