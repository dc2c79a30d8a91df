"""Process groups of a trace belong to axes: by what frameworks call them, else by their ranks."""

from __future__ import annotations

import pytest

from reference_runs.layout import Layout
from reference_runs.placement import coordinates
from suite.predict.diagnosis.group_axes import group_axis


@pytest.mark.parametrize(
    ("group", "axis"),
    [
        ("mesh_dp", "data"),
        ("mesh_dp_shard_cp", "data"),
        ("mesh_tp", "tensor"),
        ("mesh_ep", "expert"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tensor"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "data"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pipeline"),
        ("CONTEXT_PARALLEL_GROUP", "context"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "expert"),
        ("EXPERT_DATA_PARALLEL_GROUP", "data"),
        ("default_pg", None),
        ("MODEL_PARALLEL_GROUP", None),
        ("update", None),
    ],
)
def test_a_description_names_the_axis(group: str, axis: str | None) -> None:
    assert group_axis(group, "[0, 1]", "all-reduce", None) == axis


NAMES = {"tp": "tensor", "cp": "context", "ep": "expert", "dp": "data", "pp": "pipeline"}


@pytest.mark.parametrize("axis", NAMES)
def test_ranks_that_differ_in_one_coordinate_are_of_that_axis(axis: str) -> None:
    layout = Layout(tensor_parallel=2, context_parallel=2, data_parallel=2, expert_parallel=4, pipeline_stages=2)
    first = coordinates(layout, 5)
    others = [
        rank
        for rank in range(layout.ranks)
        if coordinates(layout, rank) == first | {axis: coordinates(layout, rank)[axis]}
    ]
    operation = "all-to-all" if axis == "ep" else "all-reduce"
    assert len(others) > 1
    assert group_axis("17", str(others), operation, layout) == NAMES[axis]
    assert group_axis("17", str(others), operation, None) is None


def test_dense_gradients_are_reduced_over_the_ranks_of_experts_too() -> None:
    layout = Layout(data_parallel=1, expert_parallel=8)
    assert group_axis("0", str(list(range(8))), "reduce-scatter", layout) == "data"
    assert group_axis("0", str(list(range(8))), "all-to-all", layout) == "expert"
    assert group_axis("0", "[0, 64]", "all-to-all", layout) is None
