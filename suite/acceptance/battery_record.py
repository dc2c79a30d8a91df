"""The record of a battery: a first half before it starts, a file for each phase, and the verdict at its end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from reference_runs.errors import InputError
from reference_runs.regular_file import file_bytes, json_of
from reference_runs.this_cpu import is_virtual_machine
from suite.acceptance.evidence import Evidence
from suite.acceptance.findings import CheckFinding, Decision
from suite.machine.fingerprint import digest, fingerprint
from suite.records import store
from suite.stored_words import BATTERY, in_todays_words

# A major version measures or predicts in another way than those before: their values are not compared.
# 8.3: words of the code (suite/stored_words.py)
SCHEMA = "8.3"
NO_GPUS = "none"  # in a record's hardware
RESERVED_BYTES = 512 * 1024  # a verdict of 8 GPUs with the stacks of a hang takes about 200 KiB


class BatteryBegin(msgspec.Struct, frozen=True, kw_only=True):
    """The first half, written before anything runs, so that a node that crashes leaves a record.

    Args:
        virtual: whether the node is a virtual machine; None in records before 8.1: not known.
    """

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
    virtual: bool | None = None


class PhaseEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that one phase measured."""

    kind: str
    schema: str
    id: str
    phase: str
    evidence: list[Evidence]


class BatteryEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict, with values for comparison by other batteries.

    Args:
        options: see `BatteryBegin`; batteries with other ranks or another device are not compared.
        virtual: see `BatteryBegin`.
    """

    kind: str
    schema: str
    id: str
    node: str
    profile: str
    finished: float
    seconds: float
    decision: Decision
    findings: list[CheckFinding]
    hashes: dict[str, str]
    losses: dict[str, list[float]] = {}
    options: dict[str, str] = {}
    virtual: bool | None = None

    @property
    def shares_cores(self) -> bool:
        """Whether it multiplied on the CPU of a virtual machine, whose processors may be halves of cores."""
        return self.virtual is True and self.options.get("device") == "cpu"


Part = TypeVar("Part", BatteryBegin, PhaseEvidence, BatteryEnd)


def encode(part: BatteryBegin | PhaseEvidence | BatteryEnd) -> bytes:
    """One part of the record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(part), indent=1) + b"\n"


def decode(data: bytes, kind: type[Part], where: str) -> Part:
    """One part of a record.

    Raises:
        InputError: not JSON (truncated), fields missing, or a major schema version that this suite does not know.
    """
    data = in_todays_words(data, BATTERY)
    try:
        schema = str(json_of(data, dict[str, object]).get("schema", ""))
        if schema.split(".")[0] != SCHEMA.split(".")[0]:
            allowed = f"{SCHEMA.split('.')[0]}.x"
            raise InputError("unknown schema version of a battery", got=repr(schema), allowed=allowed, where=where)
        return json_of(data, kind)
    except (msgspec.MsgspecError, AttributeError, UnicodeDecodeError) as error:
        raise InputError(f"damaged record of a battery: {error}", where=where) from error


def directory(results: Path) -> Path:
    """Where batteries are stored below the results directory."""
    return results / "acceptance"


class BatteryRecord:
    """The record of a battery, whose first half is on disk; disk space for the verdict is reserved until then.

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
            with _writing("a record", self._directory):
                self._reserve.unlink(missing_ok=True)  # of a battery that was killed before it is resumed
                store.keep_room(self._reserve, RESERVED_BYTES)
                if identity is None:
                    store.write_new(self._directory / f"{self.id}.begin.json", encode(self.opening))
        except store.StoreFullError:
            self.abandon()
            raise

    def phase_path(self, phase: str) -> Path:
        """The file of one phase."""
        name = "".join(character if character.isalnum() or character in "-_" else "_" for character in phase)
        return self._directory / f"{self.id}.{name}.phase.json"

    def keep(self, phase: str, evidence: list[Evidence]) -> None:
        """Store the evidence of a phase.

        Raises:
            StoreFullError: there is no room for it.
        """
        part = PhaseEvidence(kind="battery", schema=SCHEMA, id=self.id, phase=phase, evidence=evidence)
        with _writing("a phase", self._directory):
            store.write_new(self.phase_path(phase), encode(part))

    def kept(self, phase: str) -> list[Evidence] | None:
        """Evidence of the phase from before an interruption; None where the phase did not end."""
        path = self.phase_path(phase)
        if not path.exists():
            return None
        return decode(file_bytes(path), PhaseEvidence, str(path)).evidence

    def close(self, verdict: Decision, findings: list[CheckFinding], losses: dict[str, list[float]]) -> Path:
        """Write the verdict into its reserved disk space; its path.

        Raises:
            StoreFullError: even that failed.
        """
        closed = BatteryEnd(
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
            virtual=self.opening.virtual,
        )
        with _writing("the verdict", self.end_path):
            store.write_over(self._reserve, self.end_path, encode(closed))
        return self.end_path

    def abandon(self) -> None:
        """Free the reserved disk space."""
        with contextlib.suppress(OSError):
            self._reserve.unlink(missing_ok=True)


@contextlib.contextmanager
def _writing(part: str, where: Path) -> Iterator[None]:
    """Raises StoreFullError for an error of the system."""
    try:
        yield
    except OSError as error:
        raise store.StoreFullError(error.errno, f"cannot write {part}: {error.strerror}", str(where)) from error


def opening(identity: str, profile: str, options: dict[str, str], started: float) -> BatteryBegin:
    """The first half for a battery that starts now, here."""
    here = fingerprint("node")  # without the suite's own commit, and with memory in whole GiB
    return BatteryBegin(
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
        virtual=is_virtual_machine(),
    )


def gpus_before(results: Path, node: str) -> str:
    """GPUs of this node's newest battery that had some, ended or not; empty where none had."""
    for path in sorted(directory(results).glob("*.begin.json"), reverse=True):
        with contextlib.suppress(OSError, InputError):
            first = decode(file_bytes(path), BatteryBegin, str(path))
            gpus = first.hardware.get("gpus", NO_GPUS)
            if first.node == node and gpus != NO_GPUS:
                return gpus
    return ""


def unfinished(results: Path, *, profile: str, options: dict[str, str], node: str) -> tuple[str | None, list[str]]:
    """The newest battery of this node without a verdict, with the same profile and options; why others are refused.

    A battery with other hardware or software is stale.
    """
    refused: list[str] = []
    for path in sorted(directory(results).glob("*.begin.json"), reverse=True):
        if path.with_name(path.name.replace(".begin.json", ".end.json")).exists():
            continue
        try:
            first = decode(file_bytes(path), BatteryBegin, str(path))
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
