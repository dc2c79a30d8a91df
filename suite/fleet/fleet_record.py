"""The record of a fleet run: a file for its options, each node's answer, each pair and each group; one for the table.

Every file is written once, by a link or a rename: many writers may share the directory over a network file system.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from reference_runs.errors import InputError
from reference_runs.regular_file import file_bytes, json_of
from suite.records import store
from suite.records.private_paths import private_directories, without_private_paths
from suite.stored_words import FLEET, in_todays_words

SCHEMA = "1.0"


class FleetBegin(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a fleet: an interrupted one is resumed only with the same.

    Args:
        passed_on: names of variables that its commands got from the process that started it.
    """

    schema: str
    id: str
    started: float
    options: dict[str, str]
    nodes: dict[str, str]
    passed_on: list[str] = []


class NodeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A node's answer about its battery.

    Args:
        exit_code: of `accept`.
        battery, record: its identity and the file of its verdict, below the results directory; empty where it has none.
        words: the last of what it printed.
        switch: as the engine knows it.
    """

    node: str
    exit_code: int
    started: float
    finished: float
    battery: str = ""
    record: str = ""
    words: str = ""
    switch: str = ""


class PairResult(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of two nodes together, at the same time.

    Args:
        bytes_per_second: the slower direction of their link; None where it was not measured.
        wrong: elements of messages that arrived otherwise than they were sent.
        clock_offset: by how much the second node's clock is ahead of the first's, give or take `clock_uncertainty`.
        products: flop/s of each, while both multiply.
        lost: nodes that died meanwhile.
    """

    first: str
    second: str
    status: str
    message: str = ""
    bytes_per_second: float | None = None
    wrong: int = 0
    clock_offset: float | None = None
    clock_uncertainty: float = 0.0
    products: list[float] = []
    product_errors: list[int] = []
    lost: list[str] = []

    @property
    def names(self) -> tuple[str, str]:
        """Both nodes."""
        return self.first, self.second


class GroupResult(msgspec.Struct, frozen=True, kw_only=True):
    """A miniature over a group of nodes: its exit code, what it said, and its record."""

    nodes: list[str]
    run: str
    exit_code: int
    message: str = ""
    record: str = ""


class FleetValue(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a node beside its siblings': their median, and its modified z among them; None where unknown."""

    value: float
    unit: str = ""
    median: float | None = None
    z: float | None = None


class FleetRow(msgspec.Struct, frozen=True, kw_only=True):
    """One node's line of the table.

    Args:
        verdict: accepted, rejected, not decidable, execution failed, no answer, or not run.
        part: at fault; empty where none is.
        since: since when it has been bad, in seconds since 1970; None: for the first time, or never.
        figures: by name, beside the siblings'.
    """

    node: str
    verdict: str
    part: str = ""
    evidence: str = ""
    since: float | None = None
    switch: str = ""
    battery: str = ""
    figures: dict[str, FleetValue] = {}


class FleetEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The table, links at fault, and groups."""

    schema: str
    id: str
    finished: float
    rows: list[FleetRow]
    links: list[str] = []
    groups: list[GroupResult] = []
    drained: list[str] = []


Answer = TypeVar("Answer", FleetBegin, NodeAnswer, PairResult, GroupResult, FleetEnd)


def fleets(results: Path) -> Path:
    """Where fleets are kept below the results directory."""
    return results / "fleet"


def keep(path: Path, part: msgspec.Struct) -> None:
    """Write a file whole, without the paths of who runs it; one that another writer was quicker with stays."""
    text = _public(msgspec.json.format(msgspec.json.encode(part), indent=1).decode())
    try:
        store.write_new(path, text.encode() + b"\n")
    except FileExistsError:
        return


def _public(text: str) -> str:
    return without_private_paths(text, private_directories())


def kept(path: Path, kind: type[Answer]) -> Answer | None:
    """A part that was kept; None where there is none, or it is damaged: it is measured again."""
    try:
        return json_of(in_todays_words(file_bytes(path), FLEET), kind)
    except (OSError, msgspec.MsgspecError):
        return None


def opened(results: Path, options: Mapping[str, str], nodes: Mapping[str, str], passed_on: Sequence[str] = ()) -> Path:
    """The directory of a new fleet, with its first file."""
    identity = store.new_identity()
    directory = store.writable(fleets(results) / identity, results)
    begin = FleetBegin(
        schema=SCHEMA,
        id=identity,
        started=time.time(),
        options=dict(options),
        nodes=dict(nodes),
        passed_on=list(passed_on),
    )
    keep(directory / "begin.json", begin)
    return directory


def unfinished(results: Path, options: Mapping[str, str]) -> Path | None:
    """The newest fleet without an end that was asked for with these options."""
    wanted = {name: _public(value) for name, value in options.items()}
    for path in sorted(fleets(results).glob("*/begin.json"), reverse=True):
        begin = kept(path, FleetBegin)
        ended = (path.parent / "end.json").exists()
        if begin is not None and not ended and begin.options == wanted:
            return path.parent
    return None


def latest(results: Path, identity: str | None) -> FleetEnd:
    """The table of a fleet by the beginning of its id; without one the newest that ended.

    Raises:
        InputError: there is none.
    """
    for path in sorted(fleets(results).glob("*/end.json"), reverse=True):
        if path.parent.name.startswith(identity or "") and (end := kept(path, FleetEnd)) is not None:
            return end
    raise InputError("no fleet that ended", got=identity, allowed="fleet accept first", where=str(fleets(results)))


def node_file(directory: Path, node: str, attempt: int) -> Path:
    """Where a node's answer lies."""
    return directory / f"node.{node}.{attempt}.json"


def pair_file(directory: Path, names: Sequence[str], attempt: int) -> Path:
    """Where the result of a pair lies."""
    return directory / f"pair.{'+'.join(names)}.{attempt}.json"


def group_file(directory: Path, names: Sequence[str]) -> Path:
    """Where the result of a group lies: the first nodes of an order, as many as it says."""
    return directory / f"group.{len(names)}.json"
