"""Which context-parallel layouts are refused, by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from reference_runs.layout import Layout, Schedule
from reference_runs.run import Mask, Workload
from suite.predict.simulation.supported_layouts import describes_ranks, layout_limits
from tests.support.strategies import BLOOM


@pytest.mark.parametrize(
    ("sequence", "layout", "names"),
    [
        (8, Layout(context_parallel=2), []),
        (12, Layout(context_parallel=3), []),
        (6, Layout(context_parallel=2), ["cp2 of 6 positions, no multiple of 4"]),
        (9, Layout(context_parallel=3), ["cp3 of 9 positions, no multiple of 6"]),
        (8, Layout(context_parallel=2, tensor_parallel=4, sequence_parallel=True), []),
        (
            8,
            Layout(context_parallel=2, tensor_parallel=8, sequence_parallel=True),
            ["sp with tp8, cp2 and 8 positions"],
        ),
    ],
)
def test_context_parallel_ranks_need_two_equal_parts_each(sequence: int, layout: Layout, names: list[str]) -> None:
    shape = msgspec.structs.replace(BLOOM.architecture, sequence=sequence)
    workload = Workload(shape, msgspec.structs.replace(BLOOM.recipe, global_batch=1), layout)
    assert [limit.name for limit in layout_limits(workload) if limit.applies] == names
    assert describes_ranks(workload) is (not names)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"top_query_layer": True}, "cp2 with a top-query layer"),
        ({"mask": Mask.PREFIX}, "cp2 with a prefix mask"),
        ({"mask": Mask.DOCUMENTS, "mean_document": 9}, "cp2 with a mask of documents"),
    ],
)
def test_what_ranks_cannot_share_out_is_named(changes: dict[str, Any], name: str) -> None:
    shape = msgspec.structs.replace(BLOOM.architecture, **changes)
    recipe = msgspec.structs.replace(BLOOM.recipe, global_batch=1)
    refused = {
        limit.name for limit in layout_limits(Workload(shape, recipe, Layout(context_parallel=2))) if limit.applies
    }
    alone = {limit.name for limit in layout_limits(Workload(shape, recipe, Layout())) if limit.applies}
    assert refused - alone == {name}


@pytest.mark.parametrize(
    ("schedule", "micro_batches", "names"),
    [
        (Schedule.PIPEDREAM, 1, []),
        (Schedule.PIPEDREAM_VERTICAL_SYNC, 1, []),
        (Schedule.PIPEDREAM_2BW, 3, []),
        (Schedule.PIPEDREAM_2BW, 2, ["2 micro-batches, pipedream-2bw, pp4"]),
        (Schedule.ONE_F_ONE_B, 3, ["3 micro-batches, 1f1b, pp4"]),
    ],
)
def test_two_versions_keep_four_stages_busy_from_three_micro_batches_an_update_on(
    schedule: Schedule, micro_batches: int, names: list[str]
) -> None:
    recipe = msgspec.structs.replace(BLOOM.recipe, global_batch=micro_batches, batch_rampup_start=None)
    layout = Layout(pipeline_stages=4, schedule=schedule)
    workload = Workload(BLOOM.architecture, recipe, layout)
    assert [limit.name for limit in layout_limits(workload) if limit.applies] == names
    assert describes_ranks(workload) == (not names or schedule.flushes)
