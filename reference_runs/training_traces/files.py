"""Which files are traces, by their first bytes; and the traces in them, one file at a time."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from reference_runs.errors import InputError
from reference_runs.recorded_file import shown_path
from reference_runs.regular_file import regular_file
from reference_runs.training_traces.kineto import kineto_traces
from reference_runs.training_traces.nsight import SQLITE, nsight_traces
from reference_runs.training_traces.trace import DeviceTrace

_FIRST_BYTES = 1 << 16
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
                file.seek(0)
                first = gzip.GzipFile(fileobj=file).read(_FIRST_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return TraceKind.KINETO
    except OSError:
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
        InputError: a folder without traces, several logs, or files of several kinds.
    """
    files = []
    for path in paths:
        found = [path]
        if path.is_dir():
            found = [each for each in sorted(path.iterdir()) if trace_kind(each) is not TraceKind.LOG]
        if not found:
            raise InputError("no trace in the folder", allowed=", ".join(list(TraceKind)[:3]), where=shown_path(path))
        files.extend(found)
    kinds = sorted({trace_kind(each) for each in files}) or [TraceKind.LOG]
    if len(kinds) > 1 or (kinds[0] is TraceKind.LOG and len(files) > 1):
        raise InputError("several files", got=", ".join(kinds), allowed="one log, or traces of one kind")
    return kinds[0], files


def traces(kind: TraceKind, files: Sequence[Path]) -> Iterator[DeviceTrace]:
    """The traces in files of a kind, one for each device, a file at a time.

    Raises:
        InputError: a damaged file.
    """
    for path in files:
        yield from (nsight_traces if kind is TraceKind.NSIGHT else kineto_traces)(path)
