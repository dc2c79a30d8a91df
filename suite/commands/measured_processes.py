"""The measured ranks of a launch as processes of a trace, next to the predicted ones: from its trace, or its record."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from reference_runs.errors import InputError
from reference_runs.placement import coordinates
from reference_runs.recorded_file import shown_path
from reference_runs.regular_file import regular_file
from suite.job.pipeline_passes import PassKind
from suite.job.trace_rows import is_time, trace_rows
from suite.metrics.figures import Quantity, StepTerm
from suite.paths import RESULTS
from suite.predict.timeline.trace_file import ANNOTATION, KERNEL, RANGE, Event, named, trace_times
from suite.predict.timeline.whole_nanoseconds import NANOSECONDS
from suite.records.query import record_path
from suite.records.record import BEGIN, END, Record
from suite.records.store import read

WHERE = "--against"
MOST_TRACE_BYTES = 1 << 30  # of a file and of what it unpacks to: it is read as a whole
FIRST_PROCESS = 2  # numbers of measured processes; 1 is the predicted one
_THREADS = 1_000_000  # numbers of a record's tracks; predicted ones are lower
_GZIP = 31  # zlib's window bits for a gzip header


class MeasuredProcesses(NamedTuple):
    """Events of measured ranks.

    Args:
        run: what was measured; None where a trace does not say it.
    """

    events: list[Event]
    run: str | None = None


def measured_processes(text: str) -> MeasuredProcesses:
    """Events of the measured ranks.

    Of a launch with `--trace` its first rank's trace, whose step begins where the predicted one does. Of others what
    the record has: each stage's passes and the terms of the step, which are laid one after the other.

    Args:
        text: a trace file, or `latest`, an id, its beginning, its last 8 digits, or a path of a record.

    Raises:
        InputError: no such record, one that measured nothing, or a file that is no measured trace.
    """
    if not text.endswith((BEGIN, END)) and text.endswith((".json", ".json.gz")):
        return MeasuredProcesses(_of_trace(Path(text), Path(text).name))
    record = read(record_path(RESULTS, text))
    trace, run = record.begin.job.trace, record.begin.job.name
    if trace is not None and Path(trace).is_file():
        return MeasuredProcesses(_of_trace(Path(trace), run), run)
    return MeasuredProcesses(_of_record(record), run)


def _of_trace(path: Path, name: str) -> list[Event]:
    """The events of a trace file, from the first phase of its first step on, as processes of other numbers.

    Events without a start, and slices without a duration, are left out.
    """
    where = shown_path(path)
    try:
        with regular_file(path) as file:
            data = file.read(MOST_TRACE_BYTES + 1)
        if data.startswith(b"\x1f\x8b"):
            data = zlib.decompressobj(_GZIP).decompress(data, MOST_TRACE_BYTES + 1)
    except (OSError, zlib.error) as error:
        raise InputError("cannot read the trace", got=str(error), where=f"{WHERE} {where}") from error
    if len(data) > MOST_TRACE_BYTES:
        allowed = f"at most {MOST_TRACE_BYTES >> 20:,} MiB"
        raise InputError(
            "the trace is too large", got=f"more than {len(data) >> 20:,} MiB", allowed=allowed, where=where
        )
    try:
        decoded = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError("no trace: not JSON", got=str(error), where=f"{WHERE} {where}") from error
    if isinstance(decoded, dict) and "predicted" in decoded:
        what, allowed = "a predicted timeline, not a measured trace", "a file of `reproduce --trace`, or a record"
        raise InputError(what, got=where, allowed=allowed, where=WHERE)
    found = decoded.get("traceEvents") if isinstance(decoded, dict) else decoded
    events = [event for event in found if _is_read(event)] if isinstance(found, list) else []
    timed = [event for event in events if event.get("ph") == "X"]
    if not timed:
        allowed = "a file of `reproduce --trace`, or a record"
        raise InputError("the trace has no timed events", got=where, allowed=allowed, where=WHERE)
    steps = [event["ts"] for event in timed if str(event.get("name", "")).startswith(RANGE)]
    begin = min(steps or [event["ts"] for event in timed])
    numbers: dict[str, int] = {}
    moved = (_moved(event, begin, numbers, name) for event in events)
    return trace_rows([event for event in moved if event["ts"] >= 0])


def _is_read(event: object) -> bool:
    """Whether an entry of a trace is metadata, or has a start and, where it lasts, a duration of 0 or more."""
    if not isinstance(event, dict):
        return False
    duration = event.get("dur", None if event.get("ph") == "X" else 0)
    return event.get("ph") == "M" or (
        "ph" in event and is_time(event.get("ts")) and is_time(duration) and duration >= 0
    )


def _moved(event: dict[str, Any], begin: float, numbers: dict[str, int], name: str) -> Event:
    """An event with times since `begin`, in a process of its own number; its name says what was measured."""
    process = numbers.setdefault(repr(event.get("pid")), FIRST_PROCESS + len(numbers))
    moved = event | {"pid": process}
    arguments = event.get("args")
    arguments = arguments if isinstance(arguments, dict) else {}
    if event.get("ph") == "M":
        moved["ts"] = 0
        if event.get("name") == "process_name":
            moved["args"] = {"name": f"measured: {name}, {arguments.get('name', '')}"}
        elif event.get("name") == "process_sort_index":
            moved["args"] = {"sort_index": process}
    else:
        moved["ts"] = (round(event["ts"] * 1000) - round(begin * 1000)) / 1000  # whole nanoseconds
    return moved


def _of_record(record: Record) -> list[Event]:
    """Events of each stage's first rank: its pipeline's passes, and its terms one after the other."""
    end, job = record.end, record.begin.job
    layout = job.workload.layout
    by_rank: dict[int, dict[StepTerm, float]] = {}
    for figure in end.figures if end else ():
        if figure.quantity == Quantity.STEP_SECONDS and figure.rank is not None and figure.term:
            by_rank.setdefault(figure.rank, {})[StepTerm(figure.term)] = figure.value
    events: list[Event] = []
    seen: set[int] = set()
    for rank in end.ranks if end else ():
        stage = coordinates(layout, rank.rank)["pp"] if rank.rank < layout.ranks else 0
        times, terms = rank.pipeline_times, by_rank.get(rank.rank, {})
        if stage in seen or not (terms or times):
            continue
        seen.add(stage)
        for first, track, slices in ((0, "passes", _passes(times)), (_THREADS, "terms in a row", _terms(terms))):
            if found := list(slices):
                thread = _THREADS + first + stage
                events += named(FIRST_PROCESS, f"stage {stage}: {track}", thread)
                events += [each | {"pid": FIRST_PROCESS, "tid": thread} for each in found]
    if not events:
        allowed = "a launch of 8 steps or more, or one with --trace"
        raise InputError("a record without times of its phases", got=record.status, allowed=allowed, where=record.path)
    return [*named(FIRST_PROCESS, f"measured: {job.name}"), *events]


def _passes(times: Any) -> Iterator[dict[str, Any]]:
    for each in times.passes if times else ():
        phase = "forward" if each.kind is PassKind.FORWARD else "backward"
        yield {
            "ph": "X",
            "cat": ANNOTATION,
            "name": RANGE + phase,
            "ts": each.start_us,
            "dur": each.end_us - each.start_us,
            "args": {"micro_batch": each.micro_batch, "chunk": each.chunk, "pass": each.kind.name.lower()},
        }


def _terms(terms: dict[StepTerm, float]) -> Iterator[dict[str, Any]]:
    now = 0
    for term, seconds in terms.items():
        if seconds > 0:
            end = now + round(seconds * NANOSECONDS)
            times = trace_times(now, end)
            yield {"ph": "X", "cat": KERNEL, "name": term.value, **times, "args": {"measured as": term.value}}
            now = end
