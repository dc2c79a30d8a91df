"""Measurements of a pair's ranks belong to the nodes that they ran on, whatever order the scheduler has."""

from __future__ import annotations

import pytest

from suite.fleet.pair_probe import result_of
from suite.job.events import Status
from suite.job.launch_nodes import LaunchNode
from suite.job.probe_job import Exchanged, Soaked
from suite.launch.launcher import LaunchOutcome

SIZE = 100


def exchanged(peer: int, offset: float | None) -> Exchanged:
    return Exchanged(peer=peer, bytes=1000, seconds=0.5, wrong=0, first="", time=0.0, clock_offset=offset)


def soaked(products: int, wrong: int) -> Soaked:
    return Soaked(bytes=8, passes=2, wrong=wrong, first="", time=0.0, products=products, product_seconds=1.0)


@pytest.mark.parametrize("scheduled", [(), ("n5", "n1"), ("n1", "n5")])
def test_products_clock_and_wrong_bits_are_those_of_the_node_that_had_the_rank(scheduled: tuple[str, ...]) -> None:
    """Rank 0 is fast and sees the other's clock 20 s ahead; rank 1 is slow, and has a wrong bit."""
    outcome = LaunchOutcome(
        status=Status.OK,
        message="",
        ranks_at_fault=[],
        events=[[exchanged(1, 20.0), soaked(100, 0)], [exchanged(0, None), soaked(10, 1)]],
        log_tail="",
        nodes=[LaunchNode(name=name, first_rank=rank, ranks=1, address="") for rank, name in enumerate(scheduled)],
    )
    found = result_of(("n5", "n1"), outcome, [], SIZE)
    rank_of_n5 = 1 if scheduled == ("n1", "n5") else 0
    rates = [2.0 * SIZE**3 * count for count in (100, 10)]
    assert found.names == ("n5", "n1")
    assert found.products == [rates[rank_of_n5], rates[1 - rank_of_n5]]
    assert found.product_errors == [rank_of_n5, 1 - rank_of_n5]
    assert found.clock_offset == (-20.0 if rank_of_n5 else 20.0)
