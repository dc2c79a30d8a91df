"""Traffic that leaves a node, by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reference_runs.layout import Layout, parse_layout
from suite.job.launch_nodes import LaunchNode
from suite.metrics.figures import Figure, Quantity
from suite.predict.executed_run.between_nodes import crossing_share, group_of, payload_by_place, wire_bytes


def nodes(count: int, ranks: int) -> list[LaunchNode]:
    return [LaunchNode(name=f"n{n}", first_rank=n * ranks, ranks=ranks, address="a") for n in range(count)]


LAYOUT = parse_layout("dp2,tp2", base=Layout())


def test_groups_have_the_ranks_that_differ_on_their_axis_alone() -> None:
    assert [group_of(LAYOUT, "tp", rank) for rank in range(4)] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [group_of(LAYOUT, "dp", rank) for rank in range(4)] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert group_of(LAYOUT, "kv", 0) is None


def test_two_nodes_of_two_ranks_keep_tensor_parallel_traffic_inside() -> None:
    figures = [
        Figure(quantity, value, axis=axis, operation="all_reduce", rank=rank)
        for rank in range(4)
        for axis, value in (("tp", 10), ("dp", 100))
        for quantity in (Quantity.PAYLOAD_BYTES, Quantity.SENT_BYTES)
    ]
    placed = {figure.term: figure.value for figure in payload_by_place(figures, LAYOUT, nodes(2, 2))}
    assert placed == {"between nodes": 400, "inside nodes": 40}
    (wire,) = wire_bytes(figures, LAYOUT, nodes(2, 2))
    assert wire.value == 400


@given(st.integers(2, 6), st.integers(1, 4))
def test_a_ring_over_whole_nodes_leaves_each_node_once(count: int, ranks: int) -> None:
    layout = parse_layout(f"dp{count * ranks}", base=Layout())
    places = [rank // ranks for rank in range(count * ranks)]
    shares = [crossing_share(layout, "dp", "all_reduce", rank, places) for rank in range(count * ranks)]
    assert sum(share or 0 for share in shares) == count


def test_a_stage_sends_to_its_neighbours() -> None:
    layout = parse_layout("pp4", base=Layout())
    shares = [crossing_share(layout, "pp", "send", rank, [0, 0, 1, 1]) for rank in range(4)]
    assert shares == [0.0, 0.5, 0.5, 0.0]
