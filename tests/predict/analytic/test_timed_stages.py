"""A few stages stand for all: the slowest and the fullest are among them, and what all take follows from them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import numpy
import pytest

from reference_runs.catalog import accumulation, check_layout, reference_run
from reference_runs.layout import Layout, Recomputation, Schedule, StageAssignment
from reference_runs.run import ProductFormat, Workload
from suite.predict.analytic.stage_memory import memory_by_stage, peak_bytes
from suite.predict.analytic.timed_stages import timed_stages
from suite.predict.recorded_run.sweep import layout_figures
from tests.support.layouts import machine_of
from tests.support.machines import A100, Case
from tests.support.steps import time_of, waiting_stages

DEEPSEEK = reference_run("deepseek-v3")
NEOX = reference_run("gpt-neox-20b")
SHAPES = [(61, 3), (61, 0), (13, 5), (24, 1), (24, 11), (9, 8)]
PIPELINES = [(2, 1), (3, 1), (4, 1), (8, 1), (8, 2), (4, 3)]


def workload(layers: int, dense: int, **changes: object) -> Workload:
    architecture = msgspec.structs.replace(DEEPSEEK.architecture, layers=layers, dense_layers=dense)
    recipe = msgspec.structs.replace(DEEPSEEK.recipe, global_batch=64, product_format=ProductFormat.NONE)
    layout = Layout(fused_attention=True, recomputation=Recomputation.NONE)
    found = Workload(architecture, recipe, msgspec.structs.replace(layout, **changes))
    check_layout(found, "test")
    return found


def pipelines() -> Iterator[tuple[int, int, Schedule]]:
    for stages, virtual in PIPELINES:
        yield stages, virtual, Schedule.ONE_F_ONE_B
        if virtual == 2 or stages == 4:
            yield stages, 2, Schedule.ZBV


def test_they_have_the_slowest_stage_and_the_fullest() -> None:
    wrong = []
    for assignment, (stages, virtual, schedule), shape in itertools.product(StageAssignment, pipelines(), SHAPES):
        if stages * virtual > shape[0]:
            continue
        changes = {"pipeline_stages": stages, "virtual_stages": virtual}
        found = workload(*shape, **changes, stage_assignment=assignment, schedule=schedule)
        micro_batches = accumulation(found.recipe, found.layout)
        fullest = max(memory.peak for memory in memory_by_stage(found, micro_batches=micro_batches))
        case = Case(*found, micro_batches)
        slowest = max(time.total_seconds for time in waiting_stages(case, A100))
        agree = time_of(case, A100).total_seconds == pytest.approx(slowest, rel=1e-9)
        if not agree or peak_bytes(found, micro_batches=micro_batches) != fullest:
            wrong.append((assignment, stages, virtual, schedule, shape))
    assert wrong == []


@pytest.mark.parametrize(("layers", "dense"), SHAPES)
def test_arrays_of_layouts_have_each_layouts_figures(layers: int, dense: int) -> None:
    each = [(stages, virtual) for stages, virtual in [(1, 1), *PIPELINES] if stages * virtual <= layers]
    machine = machine_of(NEOX)
    columns = numpy.array(each, dtype=float).T
    together = layout_figures(
        workload(layers, dense)._replace(
            layout=Layout(fused_attention=True, pipeline_stages=columns[0], virtual_stages=columns[1])
        ),
        machine,
    )
    for place, (stages, virtual) in enumerate(each):
        alone = layout_figures(workload(layers, dense, pipeline_stages=stages, virtual_stages=virtual), machine)
        for name in ("peak_bytes", "step_seconds"):
            assert numpy.broadcast_to(getattr(together, name), len(each))[place] == pytest.approx(getattr(alone, name))


def test_they_are_few() -> None:
    expected = {  # layers, dense ones among them, stages
        (61, 3, 1): (0,),
        (61, 3, 2): (0, 1),
        (61, 0, 32): (0, 1, 31),
        (61, 3, 32): (0, 1, 2, 31),  # 2 dense layers, one of each, two with experts
        (61, 3, 16): (0, 1, 15),
        (24, 11, 8): (0, 1, 3, 4, 7),
    }
    found = {}
    for layers, dense, stages in expected:
        architecture = msgspec.structs.replace(DEEPSEEK.architecture, layers=layers, dense_layers=dense)
        found[layers, dense, stages] = timed_stages(architecture, Layout(pipeline_stages=stages))
    assert found == expected
