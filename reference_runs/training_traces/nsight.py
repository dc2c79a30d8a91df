"""Traces of Nsight Systems: the SQLite file that `nsys export --type sqlite` writes."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path

from reference_runs.errors import InputError
from reference_runs.recorded_file import shown_path
from reference_runs.training_traces.trace import DeviceTrace, Label, Labels, Spans, rank_of_name

SQLITE = b"SQLite format 3\x00"
_PROCESS = 1 << 24  # what is above these bits of a global thread is its process
_QUERIES = {
    "kernel": """SELECT work.globalPid, work.deviceId, work.start, work.end, COALESCE(call.start, work.start),
            name.value
        FROM CUPTI_ACTIVITY_KIND_KERNEL AS work
        LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call
            ON call.correlationId = work.correlationId AND call.globalTid >> 24 = work.globalPid >> 24
        LEFT JOIN StringIds AS name ON name.id = work.demangledName""",
    "copy": """SELECT globalPid, deviceId, start, end, start,
            CASE copyKind WHEN 1 THEN 'Memcpy HtoD' WHEN 2 THEN 'Memcpy DtoH' ELSE 'Memcpy DtoD' END
        FROM CUPTI_ACTIVITY_KIND_MEMCPY""",
    "runtime": """SELECT call.globalTid, 0, call.start, call.end, 0, name.value
        FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call JOIN StringIds AS name ON name.id = call.nameId
        WHERE name.value LIKE '%Synchronize%'""",
    "annotation": """SELECT range.globalTid, 0, range.start, range.end, range.globalTid,
            COALESCE(range.text, name.value)
        FROM NVTX_EVENTS AS range LEFT JOIN StringIds AS name ON name.id = range.textId
        WHERE range.end IS NOT NULL""",
}
_TABLES = {"copy": "CUPTI_ACTIVITY_KIND_MEMCPY", "annotation": "NVTX_EVENTS"}  # not in each export


def nsight_traces(path: Path) -> list[DeviceTrace]:
    """The traces in an export, one for each process and device.

    Raises:
        InputError: a damaged file, or one without kernels.
    """
    where, labels = shown_path(path), Labels()
    kernels: dict[tuple[int, int], Spans] = defaultdict(Spans)
    host: dict[int, Spans] = defaultdict(Spans)
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            for category, query in _QUERIES.items():
                if _TABLES.get(category) not in (None, *tables):
                    continue
                for process, device, start, end, link, name in database.execute(query):
                    process //= _PROCESS
                    spans = kernels[process, device] if category in ("kernel", "copy") else host[process]
                    spans.add(labels.number(Label(str(name), category)), start, end, link)
    except (sqlite3.Error, TypeError, OverflowError) as error:
        raise InputError(f"not an export of Nsight Systems: {error}", where=where) from error
    if not kernels:
        raise InputError("no kernel in it", allowed="an export of `nsys profile --trace cuda,nvtx`", where=where)
    rank = rank_of_name(path) if len(kernels) == 1 else None
    return [DeviceTrace(where, rank, labels.all, spans, host[key[0]], []) for key, spans in sorted(kernels.items())]
