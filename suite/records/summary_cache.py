"""Many summaries of launches as few bytes: what passes between processes, and what is kept next to the records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

import reference_runs.layout
import suite.records.partial
import suite.records.record
import suite.records.summary
from suite.records.partial import partial
from suite.records.record import BEGIN
from suite.records.summary import Key, LaunchSummary, Values

Stamp = tuple[int, int, int, int, int, int]  # size, mtime, ctime in ns of begin and end; -1 without an end
_DIGEST_BYTES = 16


_OWN = (
    *("id", "started", "finished", "launcher", "status", "message"),
    *("first_loss", "last_loss", "others_share", "steal_share"),
)
_FIGURES = ("predicted", "measured")
_SHARED = tuple(x for x in LaunchSummary.__struct_fields__ if x not in {*_OWN, *_FIGURES, "path"})  # by many launches
_Own = partial(LaunchSummary, *_OWN, array_like=True)
_Shared = partial(LaunchSummary, *_SHARED, array_like=True)
_own, _shared = attrgetter(*_OWN), attrgetter(*_SHARED)


class _PackedSummary(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One launch: what it has of its own, and the numbers of shared facts and keys in the batch."""

    own: _Own  # type: ignore[valid-type]  # made by `partial`
    stamp: Stamp
    shared: int
    predicted: int
    predicted_numbers: tuple[int | float, ...]
    measured: int
    measured_numbers: tuple[int | float, ...]


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    shared: list[_Shared]  # type: ignore[valid-type]  # made by `partial`
    keys: list[list[Key]]
    entries: list[_PackedSummary]


_BATCH = msgspec.msgpack.Decoder(_Batch)


@cache
def _version() -> bytes:
    """Of the code that makes launches from files: whatever changes there, kept batches are not used."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for module in (suite.records.summary, suite.records.partial, suite.records.record, reference_runs.layout):
        digest.update(Path(str(module.__file__)).read_bytes())
    digest.update(Path(__file__).read_bytes())
    return digest.digest()


def packed(launches: Sequence[tuple[LaunchSummary, Stamp]]) -> bytes:
    """Launches, each with the stamp of its files, as bytes with a check sum."""
    numbers: dict[tuple[object, ...], int] = {}
    number_of_keys: dict[int, int] = {}
    shared_facts: list[Any] = []
    keys: list[list[Key]] = []
    entries = []

    def keys_number(values: Values) -> int:
        number = number_of_keys.setdefault(id(values.places), len(keys))
        if number == len(keys):
            keys.append(list(values.places))
        return number

    for launch, stamp in launches:
        facts = _shared(launch)
        number = numbers.setdefault(tuple(id(x) if isinstance(x, dict) else x for x in facts), len(shared_facts))
        if number == len(shared_facts):
            shared_facts.append(_Shared(*facts))
        predicted, measured = launch.predicted, launch.measured
        figures = (keys_number(predicted), predicted.numbers, keys_number(measured), measured.numbers)
        entries.append(_PackedSummary(_Own(*_own(launch)), stamp, number, *figures))
    data = msgspec.msgpack.encode(_Batch(shared_facts, keys, entries))
    return _digest(data) + data


def unpacked(data: bytes, directory: str) -> Iterator[tuple[LaunchSummary, Stamp]]:
    """The launches of `packed`, their files in `directory`; nothing of bytes that are damaged or of other code."""
    body = memoryview(data)[_DIGEST_BYTES:]
    if data[:_DIGEST_BYTES] != _digest(body):
        return
    batch = _BATCH.decode(body)
    places = [{key: place for place, key in enumerate(keys)} for keys in batch.keys]
    shared_facts = [dict(zip(_SHARED, _shared(facts), strict=True)) for facts in batch.shared]
    for entry in batch.entries:
        own = dict(zip(_OWN, _own(entry.own), strict=True))
        launch = LaunchSummary(
            path=f"{directory}/{own['id']}{BEGIN}",
            predicted=Values(places[entry.predicted], entry.predicted_numbers),
            measured=Values(places[entry.measured], entry.measured_numbers),
            **own,
            **shared_facts[entry.shared],
        )
        yield launch, entry.stamp


def _digest(body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES, key=_version()).digest()
