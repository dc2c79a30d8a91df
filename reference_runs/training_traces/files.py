"""Which files are traces, by their first bytes; and the traces in them, one file at a time."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from reference_runs.errors import InputError
from reference_runs.recorded_file import shown_path
from reference_runs.regular_file import regular_file
from reference_runs.training_traces.kineto import GZIP, kineto_traces
from reference_runs.training_traces.nsight import SQLITE, nsight_traces
from reference_runs.training_traces.trace import DeviceTrace

_FIRST_BYTES = 1 << 16
_ROTATED = re.compile(r"(?P<name>.*?)(?:\.(?P<number>\d{1,4}))?(?:\.gz)?")
_OF_KINETO = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"ph"')
_OF_RECORDERS = (b'"pg_config"', b'"pg_status"', b'"collective_seq_id"')


class TraceKind(StrEnum):
    """Content of a file."""

    KINETO = "trace of PyTorch's profiler"
    NSIGHT = "export of Nsight Systems"
    RECORDING = "dump of a flight recorder"
    LOG = "log"


def trace_kind(path: Path) -> TraceKind:
    """Content of a file, by its first bytes; LOG: no trace, or it cannot be read."""
    try:
        with regular_file(path) as file:
            first = file.read(_FIRST_BYTES)
            if first.startswith(b"\x1f\x8b"):
                first = zlib.decompressobj(GZIP).decompress(first, _FIRST_BYTES)
                if not first and ".json" in path.suffixes:
                    return TraceKind.KINETO
    except (OSError, zlib.error):
        return TraceKind.LOG
    if first.startswith(SQLITE):
        return TraceKind.NSIGHT
    if first.startswith(b"\x80\x02"):
        return TraceKind.RECORDING
    if first.lstrip()[:1] not in (b"{", b"["):
        return TraceKind.LOG
    if any(key in first for key in _OF_RECORDERS) and b'"traceEvents"' not in first:
        return TraceKind.RECORDING
    return TraceKind.KINETO if any(key in first for key in _OF_KINETO) else TraceKind.LOG


def files_of_kind(paths: Sequence[Path]) -> tuple[TraceKind, list[Path]]:
    """Content of the files, and the files themselves: of a folder all traces.

    Raises:
        InputError: a folder without traces, or files of several kinds.
    """
    files = []
    for path in paths:
        found = [path]
        if path.is_dir():
            found = [each for each in sorted(path.iterdir()) if trace_kind(each) is not TraceKind.LOG]
        if not found:
            raise InputError("no trace in the folder", allowed=", ".join(list(TraceKind)[:3]), where=shown_path(path))
        files.extend(found)
    kinds = {trace_kind(each): shown_path(each) for each in files} or {TraceKind.LOG: ""}
    if len(kinds) > 1:
        got = ", ".join(f"{name} ({kind})" for kind, name in kinds.items())
        raise InputError("files of several kinds", got=got, allowed="logs of one run, or traces of one kind")
    kind = next(iter(kinds))
    return kind, oldest_first(files) if kind is TraceKind.LOG else files


def oldest_first(files: Sequence[Path]) -> list[Path]:
    """Parts of a log in order: rotated ones (train.log.2, train.log.1, train.log) by number, others as given."""
    parts = [_ROTATED.fullmatch(path.name) for path in files]
    if len({part["name"] for part in parts if part}) > 1 or None in parts:
        return list(files)
    numbers = {path: int(part["number"] or 0) for path, part in zip(files, parts, strict=True) if part}
    return sorted(files, key=lambda path: -numbers[path])


def traces(kind: TraceKind, files: Sequence[Path]) -> Iterator[DeviceTrace]:
    """The traces in files of a kind, one for each device, a file at a time.

    Raises:
        InputError: a damaged file.
    """
    for path in files:
        yield from (nsight_traces if kind is TraceKind.NSIGHT else kineto_traces)(path)
