"""Nodes that stand out have something in common; chance distinguishes nothing."""

from __future__ import annotations

import random

from suite.fleet.battery_queries import NodeVerdict
from suite.fleet.distinctions import distinctions


def node(number: int, *, rack: str, firmware: str) -> NodeVerdict:
    return NodeVerdict(
        node=f"h{number}",
        name=f"n{number}",
        rack=rack,
        verdict="accepted",
        part="",
        evidence="",
        time=0.0,
        battery="",
        firmware=firmware,
    )


def fleet(count: int) -> list[NodeVerdict]:
    """Racks of 16; every eighth node has an older driver."""
    return [
        node(number, rack=f"rack{number // 16}", firmware=f"driver {570 if number % 8 else 550}, Linux 6.1")
        for number in range(count)
    ]


def test_the_driver_of_those_that_stand_out_is_named_and_what_all_nodes_have_is_not() -> None:
    outside = [f"h{number}" for number in range(0, 96, 8)] + ["h3"]
    (found,) = distinctions(fleet(96), outside)
    assert (found.attribute, found.value) == ("firmware", "driver 550")
    assert (found.standing_out, found.nodes, found.others_standing_out, found.others) == (12, 12, 1, 84)
    assert found.p < 1e-10


def test_a_rack_is_named() -> None:
    (found,) = distinctions(fleet(96), [f"h{number}" for number in range(32, 44)])
    assert (found.attribute, found.value, found.standing_out, found.nodes) == ("rack", "rack2", 12, 16)


def test_of_100_fleets_whose_nodes_stand_out_by_chance_few_have_anything_in_common() -> None:
    """A limit of 1 in 100 for all values of a fleet; of 100 fleets, 5 or more have one with a probability of 0.3 %."""
    generator = random.Random(39)
    nodes = fleet(96)
    found = [distinctions(nodes, generator.sample([one.node for one in nodes], 12)) for _ in range(100)]
    assert sum(bool(one) for one in found) <= 4


def test_one_node_is_no_pattern() -> None:
    assert distinctions(fleet(96), ["h3"]) == []
    assert distinctions([], []) == []
