"""References of a fleet: what a further node of its kind must reach, for an engine that compares figures by itself."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.acceptance.judge.expected_rates import SPREAD_FROM
from suite.fleet.fleet_record import FleetEnd
from suite.fleet.siblings import Siblings, check_of, steady_values
from suite.fleet.verdicts import ACCEPTED
from suite.records.battery import BatteryEnd, battery_directory, read_half


class FleetReference(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of accepted nodes.

    Args:
        value: their median.
        lower, upper: the largest deviation that is good, as a share of it; None on the side that is never bad.
    """

    value: float
    lower: float | None
    upper: float | None
    unit: str


class FleetReferences(msgspec.Struct, frozen=True, kw_only=True):
    """References by figure, and the fleet and nodes that they rest on."""

    fleet: str
    nodes: list[str]
    figures: dict[str, FleetReference]


def references(results: Path, end: FleetEnd, nodes: Collection[str] = ()) -> FleetReferences:
    """Medians of a fleet's accepted nodes with the limits of `siblings.Siblings`; of `nodes` alone, if any.

    A figure that fewer than three nodes have, or that no value of makes a check fail, has no reference; nor have
    products of a virtual machine's CPU.

    Raises:
        InputError: a node that the fleet has not, or too few nodes, or nodes of several kinds.
    """
    if lacking := sorted(set(nodes) - {row.node for row in end.rows}):
        raise InputError("the fleet has no such node", got=", ".join(lacking), where="--nodes")
    chosen = [row for row in end.rows if row.verdict == ACCEPTED and row.battery and (not nodes or row.node in nodes)]
    if len(chosen) < SPREAD_FROM:
        allowed = f"{SPREAD_FROM} or more accepted nodes"
        raise InputError("too few nodes for references", got=len(chosen), allowed=allowed, where=end.id)
    place = battery_directory(results)
    batteries = {row.node: read_half(place / f"{row.battery}.end.json", BatteryEnd) for row in chosen}
    if len({battery.hashes.get("hardware") for battery in batteries.values()}) > 1:
        allowed = "--nodes of one kind"
        raise InputError("nodes of several kinds of hardware", got=", ".join(batteries), allowed=allowed, where=end.id)
    siblings = Siblings({node: steady_values(battery) for node, battery in batteries.items()})
    figures = {}
    for name, limit in siblings.limits().items():
        check = check_of(name)
        figures[name] = FleetReference(
            value=limit.median,
            lower=-min(limit.share, 1.0) if check.bad_side < 0 else None,
            upper=limit.share if check.bad_side > 0 else None,
            unit=check.unit,
        )
    return FleetReferences(fleet=end.id, nodes=list(batteries), figures=figures)
