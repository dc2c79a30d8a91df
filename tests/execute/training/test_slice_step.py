"""A slice's step: its parts together are the step of the whole."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
import torch.distributed as dist

from reference_runs.layout import Layout
from reference_runs.run import Precision
from suite.execute.parallel.mesh import device_mesh
from suite.execute.parallel.parallelize import parallelize
from suite.execute.training.slice_step import SliceSteps, slice_times
from suite.execute.training.step import Steps
from suite.job.slice import Slice, SlicePart, SliceStage
from suite.job.training_job import Job
from suite.reproduce.plan import job_for
from suite.reproduce.slice_plan import slice_tokens
from tests.support.launches import FP32_WITHOUT_DROPOUT, small_plan

CPU = torch.device("cpu")


def slice_job(directory: Path, *, precision: Precision = Precision.FP32) -> Job:
    plan = small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT | {"global_batch": 2, "precision": precision})
    layout = Layout(micro_batch=2)
    plan = msgspec.structs.replace(
        plan,
        layout=layout,
        slice=Slice(run="small", layout=layout, stage=SliceStage.ONLY, layers=2, sequence=32, micro_batch=2, rank=0),
    )
    return job_for(plan, slice_tokens(plan), str(directory))


def steps_of(kind: type[Steps], job: Job) -> Steps:
    mesh = device_mesh(job.layout, job.device)
    return kind(job, parallelize(job, mesh=mesh, device=CPU), mesh, CPU)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_the_parts_of_a_slice_have_the_loss_and_the_gradients_of_the_whole(
    precision: Precision, tmp_path: Path
) -> None:
    job = slice_job(tmp_path, precision=precision)
    whole, parts = steps_of(Steps, job), steps_of(SliceSteps, job)
    losses = [steps.forward_and_backward() for steps in (whole, parts)]
    assert torch.equal(*losses)
    for one, other in zip(whole.training.leaves, parts.training.leaves, strict=True):
        assert one.name == other.name
        # a tied table's gradient is the sum of two, added in another order
        assert torch.allclose(one.gradient, other.gradient, rtol=1e-5, atol=1e-7), one.name


@pytest.mark.usefixtures("alone")
def test_every_part_has_a_clock_and_its_seconds_lie_within_the_phases(tmp_path: Path) -> None:
    steps = steps_of(SliceSteps, slice_job(tmp_path))
    steps.update(steps.forward_and_backward())
    seconds = steps.part_seconds()
    assert set(seconds) == set(SlicePart)
    assert all(value > 0 for value in seconds.values())
    layers = 2
    passes = {"forward", "backward"}
    by_pass = dict.fromkeys(passes, 0.0)
    for part, value in seconds.items():
        if part is not SlicePart.UPDATE:
            by_pass[part.value.rpartition("_")[2]] += value * (layers if part.value.startswith("layer") else 1)
    phases = {part.value: value for part, value in steps.phases.seconds().items()}
    for name in passes:  # marks of a part lie around the phase's
        assert phases[name] <= by_pass[name] <= phases[name] + 0.01
    times = slice_times(steps.training, [seconds, seconds])
    assert times is not None
    assert times.updated_parameters == sum(leaf.local.numel() for leaf in steps.training.leaves)
    assert {len(samples) for samples in times.seconds.values()} == {2}


def test_a_whole_run_has_no_parts() -> None:
    assert slice_times(None, [{}]) is None  # type: ignore[arg-type]  # it does not look


@pytest.mark.usefixtures("alone")
def test_weights_that_another_rank_has_are_never_allocated(tmp_path: Path) -> None:
    """Built on the meta device: a tensor-parallel rank's part, drawn on its device; norms begin as they always do."""
    assert dist.get_world_size() == 1
    job = slice_job(tmp_path)
    training = parallelize(job, mesh=device_mesh(job.layout, job.device), device=CPU)
    for leaf in training.leaves:
        assert leaf.local.device == CPU
        if leaf.local.dim() == 1:
            assert set(leaf.local.tolist()) == {1.0 if leaf.name.endswith("norm.weight") else 0.0}
        elif leaf.local.numel() > 1000:
            assert float(leaf.local.std()) == pytest.approx(job.recipe.init_std, rel=0.1)
