"""Many launches in brief as few bytes: what passes between processes, and what is kept beside the records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import msgspec

import reference_runs.layout
import suite.records.record
import suite.records.summary
from suite.records.record import BEGIN, Launcher
from suite.records.summary import Key, Launch, Values

Stamp = tuple[int, int, int, int, int, int]  # size, mtime, ctime in ns of begin and end; -1 without an end
_DIGEST_BYTES = 16


class _Setup(msgspec.Struct, frozen=True, array_like=True):
    """What many launches share."""

    run: str
    node: str
    machine: str
    hashes: dict[str, str]
    hardware: dict[str, str]
    software: dict[str, str]
    policy: dict[str, str]
    suite: str
    device: str
    ranks: int
    layout: str
    compiled: bool
    precision: str
    steps: int
    seed: int
    profile: str
    rung: str


class _Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one launch has of its own; `setup`, `predicted`, `measured` are places in the batch."""

    id: str
    stamp: Stamp
    setup: int
    predicted: int
    predicted_numbers: tuple[int | float, ...]
    measured: int
    measured_numbers: tuple[int | float, ...]
    started: float
    finished: float | None
    launcher: Launcher | None
    status: str
    message: str
    first_loss: float | None
    last_loss: float | None
    others_share: float | None
    steal_share: float | None


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    setups: list[_Setup]
    keys: list[list[Key]]
    entries: list[_Entry]


_BATCH = msgspec.msgpack.Decoder(_Batch)


@cache
def _version() -> bytes:
    """Of the code that makes launches from files: whatever changes there, kept batches are not used."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for module in (suite.records.summary, suite.records.record, reference_runs.layout):
        digest.update(Path(str(module.__file__)).read_bytes())
    digest.update(Path(__file__).read_bytes())
    return digest.digest()


def packed(launches: Sequence[tuple[Launch, Stamp]]) -> bytes:
    """Launches, each with the stamp of its files, as bytes with a check sum."""
    setups: dict[tuple[object, ...], int] = {}
    keys: dict[int, int] = {}
    kept_setups: list[_Setup] = []
    kept_keys: list[list[Key]] = []
    entries = []

    def place_of_keys(values: Values) -> int:
        place = keys.setdefault(id(values.places), len(kept_keys))
        if place == len(kept_keys):
            kept_keys.append(list(values.places))
        return place

    for launch, stamp in launches:
        shared = tuple(getattr(launch, name) for name in _Setup.__struct_fields__)
        place = setups.setdefault(tuple(id(x) if isinstance(x, dict) else x for x in shared), len(kept_setups))
        if place == len(kept_setups):
            kept_setups.append(_Setup(*shared))
        entries.append(
            _Entry(
                launch.id,
                stamp,
                place,
                place_of_keys(launch.predicted),
                launch.predicted.numbers,
                place_of_keys(launch.measured),
                launch.measured.numbers,
                launch.started,
                launch.finished,
                launch.launcher,
                launch.status,
                launch.message,
                launch.first_loss,
                launch.last_loss,
                launch.others_share,
                launch.steal_share,
            )
        )
    data = msgspec.msgpack.encode(_Batch(kept_setups, kept_keys, entries))
    return _digest(data) + data


def unpacked(data: bytes, directory: str) -> Iterator[tuple[Launch, Stamp]]:
    """The launches of `packed`, their files in `directory`; nothing of bytes that are damaged or of other code."""
    body = memoryview(data)[_DIGEST_BYTES:]
    if data[:_DIGEST_BYTES] != _digest(body):
        return
    batch = _BATCH.decode(body)
    places = [{key: place for place, key in enumerate(keys)} for keys in batch.keys]
    setups = [msgspec.structs.asdict(setup) for setup in batch.setups]
    for one in batch.entries:
        yield (
            Launch(
                id=one.id,
                path=f"{directory}/{one.id}{BEGIN}",
                started=one.started,
                finished=one.finished,
                launcher=one.launcher,
                status=one.status,
                message=one.message,
                predicted=Values(places[one.predicted], one.predicted_numbers),
                measured=Values(places[one.measured], one.measured_numbers),
                first_loss=one.first_loss,
                last_loss=one.last_loss,
                others_share=one.others_share,
                steal_share=one.steal_share,
                **setups[one.setup],
            ),
            one.stamp,
        )


def _digest(body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES, key=_version()).digest()
