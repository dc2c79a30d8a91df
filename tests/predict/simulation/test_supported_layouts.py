"""Which context-parallel layouts are refused, by name."""

from __future__ import annotations

import msgspec

from reference_runs.layout import Layout, Schedule
from reference_runs.run import Mask, Workload
from suite.predict.simulation.supported_layouts import describes_ranks, layout_limits
from tests.support.strategies import BLOOM


def applying(workload: Workload) -> set[str]:
    """Names of the limits that apply."""
    return {limit.name for limit in layout_limits(workload) if limit.applies}


def test_context_parallel_ranks_need_two_equal_parts_each_of_what_they_can_share_out() -> None:
    recipe = msgspec.structs.replace(BLOOM.recipe, global_batch=1)
    two, three = Layout(context_parallel=2), Layout(context_parallel=3)
    four, eight = (msgspec.structs.replace(two, tensor_parallel=t, sequence_parallel=True) for t in (4, 8))
    for sequence, layout, names in (
        (8, two, set()),
        (12, three, set()),
        (6, two, {"cp2 of 6 positions, no multiple of 4"}),
        (9, three, {"cp3 of 9 positions, no multiple of 6"}),
        (8, four, set()),
        (8, eight, {"sp with tp8, cp2 and 8 positions"}),
    ):
        workload = Workload(msgspec.structs.replace(BLOOM.architecture, sequence=sequence), recipe, layout)
        assert applying(workload) == names
        assert describes_ranks(workload) is (not names)
    for changes, name in (
        ({"top_query_layer": True}, "cp2 with a top-query layer"),
        ({"mask": Mask.PREFIX}, "cp2 with a prefix mask"),
        ({"mask": Mask.DOCUMENTS, "mean_document": 9}, "cp2 with a mask of documents"),
    ):
        shape = msgspec.structs.replace(BLOOM.architecture, **changes)
        assert applying(Workload(shape, recipe, two)) - applying(Workload(shape, recipe, Layout())) == {name}


def test_two_versions_keep_four_stages_busy_from_three_micro_batches_an_update_on() -> None:
    for schedule, micro_batches, names in (
        (Schedule.PIPEDREAM, 1, set()),
        (Schedule.PIPEDREAM_VERTICAL_SYNC, 1, set()),
        (Schedule.PIPEDREAM_2BW, 3, set()),
        (Schedule.PIPEDREAM_2BW, 2, {"2 micro-batches, pipedream-2bw, pp4"}),
        (Schedule.ONE_F_ONE_B, 3, {"3 micro-batches, 1f1b, pp4"}),
    ):
        recipe = msgspec.structs.replace(BLOOM.recipe, global_batch=micro_batches, batch_rampup_start=None)
        workload = Workload(BLOOM.architecture, recipe, Layout(pipeline_stages=4, schedule=schedule))
        assert applying(workload) == names
        assert describes_ranks(workload) == (not names or schedule.flushes)
