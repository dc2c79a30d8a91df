"""What the plain time model assumes of every machine: shares of peaks, latencies and overlap, each with its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import msgspec

from reference_runs.errors import InputError
from reference_runs.recorded_file import read_toml, section_of, shown_path
from reference_runs.sourced import Kind, Sourced

PLAIN_MACHINE = Path(__file__).parent / "plain_machine.toml"

Share = Annotated[float, msgspec.Meta(gt=0, le=1, extra={"unit": "1"})]
ShareOrNone = Annotated[float, msgspec.Meta(ge=0, le=1, extra={"unit": "1"})]
Latency = Annotated[float, msgspec.Meta(ge=0, extra={"unit": "s"})]


class PlainMachine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Assumptions of the plain time model.

    Args:
        matrix_efficiency: share of the dense peak that every matrix product reaches.
        fused_attention_efficiency: share of the dense peak where attention never stores its scores.
        memory_efficiency: share of the memory's bandwidth.
        link_efficiency: share of the bandwidth between accelerators of a node.
        link_latency_seconds: of one step of a collective inside a node.
        network_efficiency: share of the bandwidth of a node's network interfaces.
        network_latency_seconds: of one step of a collective between nodes.
        overlap_share: of the computation that data-parallel traffic may overlap with, the part that hides it.
        power_share: of an accelerator's printed power, what training draws on average.
    """

    matrix_efficiency: Share
    fused_attention_efficiency: Share
    memory_efficiency: Share
    link_efficiency: Share
    link_latency_seconds: Latency
    network_efficiency: Share
    network_latency_seconds: Latency
    overlap_share: ShareOrNone
    power_share: Share


class PlainMachineFile(msgspec.Struct, frozen=True, kw_only=True):
    """The assumptions, and each one's fact (unit, reason, effect, source) under `assumptions.key`."""

    title: str
    where: str
    assumptions: PlainMachine
    facts: dict[str, Sourced]
    sources: dict[str, str]


def load(path: Path = PLAIN_MACHINE) -> PlainMachineFile:
    """The assumptions that the TOML file at `path` records.

    Raises:
        InputError: unreadable file, broken TOML, missing, unknown or wrongly typed key, wrong unit, or a value that is
            not of kind "assumed".
    """
    where = shown_path(path)
    expected = {"title": str, "sources": dict, "assumptions": dict}
    raw = read_toml(path, what="plain machine", known=set(expected))
    for key, kind in expected.items():
        if not isinstance(raw.get(key), kind):
            words = "a text" if kind is str else "a table"
            raise InputError(f"{key}: expected {words}", got=repr(raw.get(key)), where=where)
    assumptions, facts = section_of(raw["assumptions"], PlainMachine, "assumptions", raw["sources"], where)
    for label, fact in facts.items():
        if fact.kind is not Kind.ASSUMED:
            raise InputError(f"{label}: kind", got=repr(fact.kind.value), allowed=repr("assumed"), where=where)
    return PlainMachineFile(
        title=raw["title"],
        where=where,
        assumptions=cast(PlainMachine, assumptions),
        facts=facts,
        sources=raw["sources"],
    )
