"""Writing the record of a battery: a first half before it starts, a file for each phase, and the verdict at its end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from reference_runs.accelerator import SIMULATED
from reference_runs.errors import InputError
from reference_runs.this_cpu import is_virtual_machine
from suite.acceptance.evidence import Evidence
from suite.machine.fingerprint import digest, fingerprint
from suite.records import store
from suite.records.battery import (
    SCHEMA,
    BatteryBegin,
    BatteryEnd,
    CheckFinding,
    Decision,
    battery_directory,
    battery_paths,
    encode,
    read_half,
)
from suite.records.record import BEGIN, END

NO_GPUS = "none"  # in a record's hardware
RESERVED_BYTES = 512 * 1024  # a verdict of 8 GPUs with the stacks of a hang takes about 200 KiB


class PhaseEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that one phase measured."""

    kind: str
    schema: str
    id: str
    phase: str
    evidence: list[Evidence]


class BatteryRecord:
    """The record of a battery, whose first half is on disk; disk space for the verdict is reserved until then.

    Raises:
        InputError: the results directory cannot be written.
        StoreFullError: there is no room in it.
    """

    def __init__(self, results: Path, *, profile: str, options: dict[str, str], identity: str | None = None) -> None:
        self._directory = store.writable(battery_directory(results), results)
        self.id = identity or store.new_identity()
        self.end_path = self._directory / f"{self.id}{END}"
        self._reserve = self._directory / f".{self.id}.reserve"
        self._started = time.time()
        self.opening = opening(self.id, profile, options, self._started)
        try:
            with _writing("a record", self._directory):
                self._reserve.unlink(missing_ok=True)  # of a battery that was killed before it is resumed
                store.keep_room(self._reserve, RESERVED_BYTES)
                if identity is None:
                    store.write_new(self._directory / f"{self.id}{BEGIN}", encode(self.opening))
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
        return read_half(path, PhaseEvidence).evidence

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
    """GPUs of this node's newest battery that had some, ended or not; empty where none had, or simulated ones."""
    for path in reversed(battery_paths(battery_directory(results), BEGIN)):
        with contextlib.suppress(InputError):
            first = read_half(path, BatteryBegin)
            gpus = first.hardware.get("gpus", NO_GPUS)
            if first.node == node and gpus != NO_GPUS and SIMULATED not in gpus:
                return gpus
    return ""


def unfinished(results: Path, *, profile: str, options: dict[str, str], node: str) -> tuple[str | None, list[str]]:
    """The newest battery of this node without a verdict, with the same profile and options; why others are refused.

    A battery with other hardware or software is stale.
    """
    refused: list[str] = []
    ended = {path.removesuffix(END) for path in battery_paths(battery_directory(results), END)}
    for path in reversed(battery_paths(battery_directory(results), BEGIN)):
        if path.removesuffix(BEGIN) in ended:
            continue
        try:
            first = read_half(path, BatteryBegin)
        except InputError as error:
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
