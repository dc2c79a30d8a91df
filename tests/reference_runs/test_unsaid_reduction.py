"""How ZeRO-1 reduces gradients where nothing says it: by what the stack executes, in its own messages."""

from __future__ import annotations

import pytest

from reference_runs.layout import Layout
from reference_runs.published import load_table
from reference_runs.published_tables import shipped_tables
from reference_runs.stack import stack, stacks
from reference_runs.unsaid_reduction import reduction_of_stack

ROWS = [row for path in shipped_tables() for row in load_table(path).rows]


@pytest.mark.parametrize("name", stacks())
def test_zero_1_reduces_to_shards_where_the_stack_does_nothing_else(name: str) -> None:
    software = stack(name)
    alone = "reduce-scatter" in software.layouts and "all-reduce" not in software.layouts
    layout = Layout(data_parallel=8, zero_stage=1)
    assert reduction_of_stack(layout, software).reduce_scatter == alone
    for stage in (0, 2, 3):
        other = Layout(data_parallel=8, zero_stage=stage)
        assert reduction_of_stack(other, software) == other


@pytest.mark.parametrize(("ranks", "parameters"), [(8, 40e6), (40, 40e6), (336, 336e6)])
def test_megatron_cores_buckets_grow_with_the_ranks_that_share_them(ranks: int, parameters: float) -> None:
    layout = Layout(data_parallel=ranks, zero_stage=1)
    for name in ("megatron-core", "megatron-core-cuda-graph", "megatron-core-nemo-1", "megatron-core-nemo-2"):
        assert reduction_of_stack(layout, stack(name)).bucket_bytes == 4 * parameters
    assert reduction_of_stack(layout, stack("megatron-core"), bucket_stated=True).bucket_bytes == layout.bucket_bytes


def test_nanotrons_buckets_are_of_16_bit_weights_and_their_gradients_of_fp32() -> None:
    assert reduction_of_stack(Layout(data_parallel=8, zero_stage=1), stack("nanotron")).bucket_bytes == 50 * 2**20


def test_published_rows_reduce_as_their_stack_does() -> None:
    reduced = {row.stack for row in ROWS if row.layout.zero_stage == 1 and row.layout.reduce_scatter}
    whole = {row.stack for row in ROWS if row.layout.zero_stage == 1 and not row.layout.reduce_scatter}
    assert {"megatron-core", "megatron-core-cuda-graph", "megatron-lm-2022", "nanotron"} <= reduced
    assert "deepspeed-pipeline" in whole  # BLOOM's BF16_Optimizer all-reduces
    assert not reduced & whole
