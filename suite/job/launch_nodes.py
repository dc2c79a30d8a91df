"""The nodes of a launch under a scheduler: which ranks each has, and by which interface and switch it is reached."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

INTERFACE_VARIABLE = "SUITE_INTERFACE"  # of the node that a rank runs on, where the job itself names none


class LaunchNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node of a launch.

    Args:
        first_rank, ranks: the node has these consecutive ones.
        interface: that its messages to other nodes leave by; empty where none has its address.
        switch: as the scheduler knows it, "top.leaf1"; empty where it knows none.
    """

    name: str
    first_rank: int
    ranks: int
    address: str
    interface: str = ""
    switch: str = ""


def node_path(directory: str, number: int) -> Path:
    """Where node `number` of a launch says what it is."""
    return Path(directory) / f"node{number}.json"


def read_nodes(directory: str) -> list[LaunchNode]:
    """The nodes that started, in the order of their ranks."""
    paths = Path(directory).glob("node*.json")
    found = [msgspec.json.decode(path.read_bytes(), type=LaunchNode) for path in paths]
    return sorted(found, key=lambda node: node.first_rank)


def node_of(rank: int, nodes: Sequence[LaunchNode]) -> str:
    """The name of the node that a rank ran on; empty where it is not known."""
    return next((node.name for node in nodes if node.first_rank <= rank < node.first_rank + node.ranks), "")
