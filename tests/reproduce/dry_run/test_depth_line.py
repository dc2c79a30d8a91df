"""Kinds of ranks with other shards follow from few layers, where the line is exact for one with all layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import reference_run
from reference_runs.layout import parse_layout
from reference_runs.run import Workload
from suite.job.dry_run_job import AskedRank, CountedRank, Moment, StepCounts
from suite.job.events import CountedCollective
from suite.job.training_job import Job
from suite.reproduce.dry_run import whole_steps
from suite.reproduce.dry_run.comparison import dry_run_job
from suite.reproduce.dry_run.depth_line import FEW, DepthLine, depth_line, in_layers, same_counts
from suite.reproduce.dry_run.plan import DryPlan
from suite.reproduce.dry_run.rank_classes import rank_classes
from suite.reproduce.dry_run.whole_steps import WholeSteps
from tests.support.rank_reports import finished


def opt(layout: str = "dp124,tp8,zero3") -> Workload:
    run = reference_run("opt-175b")
    return run.workload._replace(layout=parse_layout(layout, base=run.layout))


def counted(layers: int, fixed: int, each: int) -> StepCounts:
    """Every count of a step is `fixed` and `each` for each layer; what shards do not change has nothing fixed."""
    value = fixed + each * layers
    held = {"backward pass": {"weights": value, "samples": fixed}, "forward pass": {"gathered weights": each * layers}}
    counts = finished(
        value,
        model_flop=each * layers,
        collectives=[CountedCollective("dp", "all_gather", value, value)],
        activation_bytes=each * layers,
        peak_bytes=max(sum(parts.values()) for parts in held.values()),
        time=float(layers),
    )
    fullest = [Moment(phase, parts) for phase, parts in held.items()]
    return StepCounts(micro_batches=1, counts=counts, stage_parameters=value, fullest=fullest, history=fullest)


@given(fixed=st.integers(0, 10**13), each=st.integers(0, 10**13), layers=st.integers(5, 200))
def test_the_line_through_few_layers_is_exact(fixed, each, layers):
    found = in_layers(counted(FEW[0], fixed, each), counted(FEW[1], fixed, each), layers)
    assert same_counts(found, counted(layers, fixed, each))
    assert not same_counts(found, counted(layers, fixed + 1, each))


def test_only_kinds_with_other_shards_of_each_parameter_follow():
    few_layers = opt()._replace(architecture=msgspec.structs.replace(opt().architecture, layers=11))
    flat = opt("dp124,tp8,zero1")  # flat shards end in other layers where there are more of them
    lines = [depth_line(workload, rank_classes(workload)) for workload in (opt(), flat, few_layers)]
    assert [1 + len(line.others) if line else 0 for line in lines] == [5, 0, 0]


@pytest.mark.parametrize("jump", [0, 1])
def test_kinds_are_executed_with_all_layers_where_the_one_that_was_is_not_on_its_line(jump, tmp_path, monkeypatch):
    workload = opt()
    asked: list[tuple[int, int | None]] = []

    def answers(job: Job, questions: Sequence[AskedRank], *, workers: int) -> Iterator[CountedRank]:
        for each in questions:
            asked.append((each.rank, each.layers))
            fixed = each.rank + (jump if each.layers is None else 0)
            step = counted(each.layers or job.architecture.layers, fixed, 5)
            yield CountedRank(rank=each.rank, seconds=0.0, steps=[step], layers=each.layers)

    monkeypatch.setattr(whole_steps, "answers", answers)
    classes = rank_classes(workload)
    line = depth_line(workload, classes)
    assert line is not None
    job = dry_run_job(DryPlan("opt-175b", workload, None), str(tmp_path))
    steps = WholeSteps(job, workload, lambda _: None, every_micro_batch=False)
    steps.execute([line.proof], line)
    assert steps.follow_depths(line) is (jump == 0)
    assert [rank for rank, layers in asked if layers is None] == [each.rank for each in classes[: 1 + 4 * jump]]
    for each in classes:
        assert same_counts(steps.steps[each.rank], counted(96, each.rank + jump, 5))
    assert isinstance(line, DepthLine)
