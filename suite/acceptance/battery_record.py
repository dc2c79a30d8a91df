"""The record of a battery: a first half before it starts, a file for each phase, and the verdict at its end."""

from __future__ import annotations

import contextlib
import hashlib
import time
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from reference_runs.errors import InputError
from suite.acceptance.evidence import Evidence
from suite.acceptance.findings import Decision, Finding
from suite.machine.fingerprint import fingerprint
from suite.records import store

# 1: in warm caches, without the pace of launches; 2: predicted from calls too warm; 3: from operators too cold;
# 4.1: findings say since when; 4.2: and how much the launches behind them spread; 4.3: verdicts have the options,
# and steps what each term took beyond its prediction; 5: the pace has memory's, in laps for a share of the steps;
# 6: predicted from calls that waited for no memory; 7: from operators one of whose operands was just written, and a
# trial step's factor; 8: from sharded units as blocks are
SCHEMA = "8.0"
NO_GPUS = "none"  # as a record's hardware says it
RESERVED_BYTES = 512 * 1024  # a verdict of 8 GPUs with the stacks of a hang takes about 200 KiB


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """Written before anything runs, so that a killed node leaves evidence."""

    kind: str
    schema: str
    id: str
    node: str
    profile: str
    options: dict[str, str]
    started: float
    hardware: dict[str, str]
    software: dict[str, str]
    hashes: dict[str, str]


class PhaseEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What one phase measured, complete."""

    kind: str
    schema: str
    id: str
    phase: str
    evidence: list[Evidence]


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict, with what other batteries compare.

    Args:
        options: see `Opening`; batteries of other ranks or of another device are not compared.
    """

    kind: str
    schema: str
    id: str
    node: str
    profile: str
    finished: float
    seconds: float
    decision: Decision
    findings: list[Finding]
    hashes: dict[str, str]
    losses: dict[str, list[float]] = {}
    options: dict[str, str] = {}


Part = TypeVar("Part", Opening, PhaseEvidence, Closed)


def encode(part: Opening | PhaseEvidence | Closed) -> bytes:
    """One part of the record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(part), indent=1) + b"\n"


def decode(data: bytes, kind: type[Part], where: str) -> Part:
    """One part of a record.

    Raises:
        InputError: not JSON (truncated), fields missing, or a major schema version that this suite does not know.
    """
    try:
        schema = str(msgspec.json.decode(data).get("schema", ""))
        if schema.split(".")[0] != SCHEMA.split(".")[0]:
            allowed = f"{SCHEMA.split('.')[0]}.x"
            raise InputError("unknown schema version of a battery", got=repr(schema), allowed=allowed, where=where)
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, AttributeError, UnicodeDecodeError) as error:
        raise InputError(f"damaged record of a battery: {error}", where=where) from error


def directory(results: Path) -> Path:
    """Where batteries lie below the results directory."""
    return results / "acceptance"


class OpenedBattery:
    """A battery whose first half is on disk; room for the verdict is kept free until it is written.

    Raises:
        InputError: the results directory cannot be written.
        StoreFullError: there is no room in it.
    """

    def __init__(self, results: Path, *, profile: str, options: dict[str, str], identity: str | None = None) -> None:
        self._directory = store.writable(directory(results), results)
        self.id = identity or store.new_identity()
        self.end_path = self._directory / f"{self.id}.end.json"
        self._reserve = self._directory / f".{self.id}.reserve"
        self._started = time.time()
        self.opening = opening(self.id, profile, options, self._started)
        try:
            self._reserve.unlink(missing_ok=True)  # of the same battery, which was killed before it is resumed
            store.keep_room(self._reserve, RESERVED_BYTES)
            if identity is None:
                store.write_new(self._directory / f"{self.id}.begin.json", encode(self.opening))
        except OSError as error:
            with contextlib.suppress(OSError):
                self._reserve.unlink(missing_ok=True)
            where = str(self._directory)
            raise store.StoreFullError(error.errno, f"cannot write a record: {error.strerror}", where) from error

    def phase_path(self, phase: str) -> Path:
        """The file of one phase."""
        return (
            self._directory / f"{self.id}.{''.join(c if c.isalnum() or c in '-_' else '_' for c in phase)}.phase.json"
        )

    def keep(self, phase: str, evidence: list[Evidence]) -> None:
        """Store what a phase measured.

        Raises:
            StoreFullError: there is no room for it.
        """
        part = PhaseEvidence(kind="battery", schema=SCHEMA, id=self.id, phase=phase, evidence=evidence)
        try:
            store.write_new(self.phase_path(phase), encode(part))
        except OSError as error:
            where = str(self._directory)
            raise store.StoreFullError(error.errno, f"cannot write a phase: {error.strerror}", where) from error

    def kept(self, phase: str) -> list[Evidence] | None:
        """What an earlier, interrupted run of this battery measured in the phase; None where it did not end it."""
        path = self.phase_path(phase)
        if not path.exists():
            return None
        return decode(path.read_bytes(), PhaseEvidence, str(path)).evidence

    def close(self, verdict: Decision, findings: list[Finding], losses: dict[str, list[float]]) -> Path:
        """Write the verdict over the bytes that kept its room; its path.

        Raises:
            StoreFullError: even that failed.
        """
        closed = Closed(
            kind="battery",
            schema=SCHEMA,
            id=self.id,
            node=self.opening.node,
            profile=self.opening.profile,
            finished=time.time(),
            seconds=time.time() - self._started,
            decision=verdict,
            findings=findings,
            hashes=self.opening.hashes,
            losses=losses,
            options=self.opening.options,
        )
        try:
            store.write_over(self._reserve, self.end_path, encode(closed))
        except OSError as error:
            raise store.StoreFullError(
                error.errno, f"cannot write the verdict: {error.strerror}", str(self.end_path)
            ) from error
        return self.end_path

    def abandon(self) -> None:
        """Give the kept room back."""
        with contextlib.suppress(OSError):
            self._reserve.unlink(missing_ok=True)


def opening(identity: str, profile: str, options: dict[str, str], started: float) -> Opening:
    """The first half for a battery that starts now, here."""
    here = fingerprint("node")  # without the suite's own commit, and with memory in whole GiB
    return Opening(
        kind="battery",
        schema=SCHEMA,
        id=identity,
        node=here.node,
        profile=profile,
        options=options,
        started=started,
        hardware=here.hardware,
        software=here.software,
        hashes={"hardware": digest(here.hardware), "software": digest(here.software)},
    )


def digest(facts: Any) -> str:
    """16 hex digits of the facts."""
    return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()[:16]


def gpus_before(results: Path, node: str) -> str:
    """GPUs of this node's newest battery that had some, ended or not; empty where none had."""
    for path in sorted(directory(results).glob("*.begin.json"), reverse=True):
        with contextlib.suppress(OSError, InputError):
            first = decode(path.read_bytes(), Opening, str(path))
            gpus = first.hardware.get("gpus", NO_GPUS)
            if first.node == node and gpus != NO_GPUS:
                return gpus
    return ""


def unfinished(results: Path, *, profile: str, options: dict[str, str], node: str) -> tuple[str | None, list[str]]:
    """The newest battery of this node without a verdict, with the same profile and options; why others are not taken.

    One of other hardware or software is stale: what it measured is no longer of this machine.
    """
    refused: list[str] = []
    for path in sorted(directory(results).glob("*.begin.json"), reverse=True):
        if path.with_name(path.name.replace(".begin.json", ".end.json")).exists():
            continue
        try:
            first = decode(path.read_bytes(), Opening, str(path))
        except (OSError, InputError) as error:
            refused.append(str(error))
            continue
        if first.node != node or first.profile != profile or first.options != options:
            continue
        now = opening(first.id, profile, options, first.started)
        if now.hashes != first.hashes:
            changed = [key for key in now.hashes if now.hashes[key] != first.hashes.get(key)]
            refused.append(f"{path}: stale: {', '.join(changed)} changed since")
            continue
        return first.id, refused
    return None, refused
