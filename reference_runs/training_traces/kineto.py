"""Traces of PyTorch's profiler (Kineto's Chrome JSON), read as a stream: a file may be larger than the memory."""

from __future__ import annotations

import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec

from reference_runs.errors import InputError
from reference_runs.recorded_file import shown_path
from reference_runs.regular_file import regular_file
from reference_runs.training_traces.products import ProductTimes, product_of
from reference_runs.training_traces.trace import DeviceTrace, Label, Labels, Spans, rank_of_name

_CHUNK_BYTES = 1 << 22
_MOST_HELD_BYTES = 1 << 26  # of one event, or of text that is no JSON
_HEAD = re.compile(rb'"traceEvents"\s*:\s*\[|^\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_RANK = re.compile(rb'"rank"\s*:\s*"?(\d+)')
_TRIES = 8
GZIP = 31  # zlib's window bits for a gzip header
_CATEGORIES = {
    **dict.fromkeys(("kernel", "gpu_memset", "memset"), "kernel"),
    **dict.fromkeys(("gpu_memcpy", "memcpy"), "copy"),
    **dict.fromkeys(("cpu_op", "operator"), "operator"),  # before PyTorch 1.12 annotations were operators, too
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "hip_runtime", "runtime"), "runtime"),
    "user_annotation": "annotation",
}


class _EventArguments(msgspec.Struct):
    """Fields of an event that are read; old traces have numbers as strings."""

    correlation: Any = None
    device: Any = None
    sequence: Any = msgspec.field(name="Sequence number", default=None)
    forward_thread: Any = msgspec.field(name="Fwd thread id", default=None)
    collective: Any = msgspec.field(name="Collective name", default="")
    group: Any = msgspec.field(name="Process Group Name", default="")
    described: Any = msgspec.field(name="Process Group Description", default="")
    ranks: Any = msgspec.field(name="Process Group Ranks", default="")
    operator: Any = msgspec.field(name="External id", default=None)  # of an operator, and of all that it launches
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())  # decoded of products alone
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())


_NOTHING = _EventArguments()


class _TraceEvent(msgspec.Struct):
    """An event of a Chrome trace; times in microseconds."""

    ph: str = ""
    cat: Any = ""
    name: Any = ""
    tid: Any = 0
    ts: Any = 0
    dur: Any = 0
    args: _EventArguments | None = None


def kineto_traces(path: Path) -> list[DeviceTrace]:
    """The traces in a file, one a device; of a file that was cut off, what comes before.

    Raises:
        InputError: an unreadable file, or one without events.
    """
    where, notes = shown_path(path), list[str]()
    reader = _KinetoReader()
    try:
        with regular_file(path) as file:
            for events in _event_lists(file, reader, notes):
                for event in events:
                    reader.take(event)
    except OSError as error:
        raise InputError(f"cannot read the trace: {error.strerror or error}", where=where) from error
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"not a trace of PyTorch's profiler: {error}", where=where) from error
    if not (reader.host or reader.kernels):
        got = notes[0] if notes else None
        raise InputError("no kernel and no operator in it", got=got, allowed="export_chrome_trace's file", where=where)
    return reader.traces(where, rank_of_name(path) if reader.rank is None else reader.rank, notes)


class _KinetoReader:
    """Gathers spans of host and devices event by event."""

    def __init__(self) -> None:
        self.rank: int | None = None
        self.labels = Labels()
        self.host = Spans()
        self.kernels: dict[int, Spans] = defaultdict(Spans)
        self.products = ProductTimes()
        self._launched: dict[int, int] = {}

    def take(self, event: _TraceEvent) -> None:
        """Keep what is needed of one event."""
        category = _CATEGORIES.get(event.cat.lower()) if event.ph == "X" and isinstance(event.cat, str) else None
        if category is None:
            return
        start = int(float(event.ts) * 1000)
        end = start + int(float(event.dur) * 1000)
        name = str(event.name)
        said = event.args or _NOTHING
        if category == "runtime":
            if said.correlation is not None:
                self._launched[int(said.correlation)] = start
            if "Synchronize" in name:
                self.host.add(self.labels.number(Label(name, category)), start, end, 0)
        elif category in ("operator", "annotation"):
            if "::" not in name and name.startswith(("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)")):
                category = "annotation"
            records = said.sequence is not None and said.forward_thread is not None and int(said.forward_thread) == 0
            label = Label(name, category, records_graph=records)
            self.host.add(self.labels.number(label), start, end, hash(event.tid))
            if said.operator is not None and (product := product_of(name, said.dims, said.types)):
                self.products.take_operator(int(said.operator), product, end - start)
        else:
            group = str(said.described or said.group)
            label = Label(name, category, str(said.collective), group, str(said.ranks or said.group))
            link = -1 if said.correlation is None else int(said.correlation)
            device = int(said.device or 0)
            self.kernels[device].add(self.labels.number(label), start, end, link)
            if said.operator is not None:
                self.products.take_kernel(device, int(said.operator), end - start)

    def traces(self, where: str, rank: int | None, notes: list[str]) -> list[DeviceTrace]:
        """A trace a device; one of the host, if there is no device."""
        for kernels in self.kernels.values():
            for index, correlation in enumerate(kernels.links):
                kernels.links[index] = self._launched.get(correlation, kernels.starts[index])
        self._launched.clear()
        devices: list[tuple[int | None, Spans]] = [*self.kernels.items()] or [(None, Spans())]
        return [
            DeviceTrace(
                where,
                rank if len(devices) == 1 else None,
                self.labels.all,
                kernels,
                self.host,
                notes,
                self.products.timed(device),
            )
            for device, kernels in devices
        ]


def _event_lists(file: FileIO, reader: _KinetoReader, notes: list[str]) -> Iterator[list[_TraceEvent]]:
    """Events, some thousands at a time.

    A chunk is decoded up to the last place in it where an object ends and another begins. Where that was within an
    event it is no JSON, and an earlier place is tried, then more of the file read. Of 64 MiB that are none, and of the
    end, single events are decoded up to the first that is damaged.
    """
    decoder = msgspec.json.Decoder(list[_TraceEvent])
    buffer, is_in_events = b"", False
    for chunk in _chunks(file):
        buffer += chunk
        if not is_in_events:
            head = _HEAD.search(buffer)
            if head is not None:
                rank = _RANK.search(buffer, 0, head.end())
                reader.rank = int(rank[1]) if rank else None
                buffer, is_in_events = buffer[head.end() :], True
        ends = [match.start() + 1 for match in _BETWEEN.finditer(buffer, max(0, len(buffer) - (1 << 16)))]
        for end in reversed(ends[-_TRIES:] if is_in_events else []):
            events = _decoded(decoder, buffer[:end])
            if events is not None:
                yield events
                buffer = buffer[end:].lstrip()[1:]
                break
        if len(buffer) > _MOST_HELD_BYTES:
            break
    last, is_whole = _events_until_damage(buffer.decode("utf-8", "replace"))
    yield decoder.decode(msgspec.json.encode(last))
    if not is_whole:
        notes.append("the file is damaged or cut off: what comes before was read")


def _events_until_damage(text: str) -> tuple[list[object], bool]:
    """Events at the beginning of a text, and whether the list ends after them."""
    found, decoder, place = list[object](), json.JSONDecoder(), 0
    while True:
        while text[place : place + 1].isspace() or text[place : place + 1] == ",":
            place += 1
        if text[place : place + 1] in ("", "]"):
            return found, text[place : place + 1] == "]"
        try:
            event, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return found, False
        found.append(event)


def _chunks(file: FileIO) -> Iterator[bytes]:
    """Bytes of the file, unpacked, up to where it is damaged."""
    chunk = file.read(_CHUNK_BYTES)
    unpacker = zlib.decompressobj(GZIP) if chunk.startswith(b"\x1f\x8b") else None
    while chunk:
        if unpacker is None:
            yield chunk
        else:
            try:
                yield unpacker.decompress(chunk, _CHUNK_BYTES)
            except zlib.error:
                return
        chunk = unpacker.unconsumed_tail if unpacker and unpacker.unconsumed_tail else file.read(_CHUNK_BYTES)


def _decoded(decoder: msgspec.json.Decoder[list[_TraceEvent]], text: bytes) -> list[_TraceEvent] | None:
    try:
        return decoder.decode(b"[" + text + b"]")
    except UnicodeDecodeError:
        return _decoded(decoder, text.decode("utf-8", "replace").encode())
    except msgspec.DecodeError:
        return None
