"""A predicted step as a trace in Chrome's format, which Perfetto opens, with the names of PyTorch's profiler."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from suite.job.pipeline_passes import PassKind
from suite.paths import whole_file
from suite.predict.timeline.pass_parts import term_name
from suite.predict.timeline.rank_timeline import SLOWEST_WAIT, RankTimeline, StepSpan
from suite.predict.timeline.whole_nanoseconds import WholeNanoseconds

RANGE = "step: "  # prefix of a phase's ranges, as in a measured trace
ANNOTATION, KERNEL = "user_annotation", "kernel"  # categories of PyTorch's profiler
# As ProcessGroupNCCL names its calls (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp)
OPERATIONS = {"all_gather": "_all_gather_base", "reduce_scatter": "_reduce_scatter_base"}
_PASSES, _COMPUTE, _BUBBLE, _HIDDEN = "passes", "compute", "bubble", ", hidden"
_PROCESS = 1
_THREADS = 1000  # numbers of the passes' tracks begin here, those of a stage's other tracks at multiples of it

Event = Mapping[str, Any]


def write_trace(path: Path, run: str, timelines: Sequence[RankTimeline], *, against: Iterable[Event] = ()) -> None:
    """Write the timelines as one process, and the events of a measured rank.

    Times are whole nanoseconds; those of a term's slices add up to the term within half a nanosecond. What computation
    hides is on tracks of its own, whose names say so, and counts in no term.

    Args:
        run: its name.
        against: events of processes of their own.

    Raises:
        OSError: the file cannot be written.
    """
    slowest = next(timeline for timeline in timelines if timeline.is_slowest)
    time = slowest.step.time
    terms = {term_name(field): seconds for field, seconds in time._asdict().items() if seconds}
    predicted = {"run": run, "step_seconds": time.total_seconds, "slowest_stage": slowest.stage, "terms": terms}
    stages = chain.from_iterable(map(events, timelines))
    with whole_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "predicted": ' + json.dumps(predicted) + ', "traceEvents": [\n')
        separator = ""
        for event in chain(named(_PROCESS, f"predicted: {run}"), stages, against):
            file.write(separator + json.dumps(event, separators=(",", ":")))
            separator = ",\n"
        file.write("\n]}\n")


def events(timeline: RankTimeline) -> Iterator[Event]:
    """The events of one rank: its phases and passes, which nest in one track, and a slice for each span.

    One process has the tracks of all stages, those of the passes first: Perfetto orders tracks by their numbers, but
    processes by how many slices they have.
    """
    stage, clock = timeline.stage, WholeNanoseconds(timeline.spans)
    numbers = {_PASSES: _THREADS + stage}
    words = f"stage {stage}: {_PASSES}{', slowest' if timeline.is_slowest else ''}"
    yield from named(_PROCESS, words, numbers[_PASSES])
    for number, track in enumerate(sorted(set(map(track_of, timeline.spans)), key=_place)):
        numbers[track] = _THREADS * (stage + 2) + number
        yield from named(_PROCESS, f"stage {stage}: {track}", numbers[track])

    def slice_on(track: str, name: str, category: str, start: int, end: int, **arguments: Any) -> Event:
        place = {"pid": _PROCESS, "tid": numbers[track], **trace_times(start, end)}
        return {"ph": "X", "cat": category, "name": name, **place, "args": {"stage": stage, **arguments}}

    for name, (start, end) in _phases(timeline):
        yield slice_on(_PASSES, name, ANNOTATION, clock.at(start), clock.at(end), rank=timeline.rank)
    for done, start, end in timeline.passes:
        phase = "forward" if done.kind is PassKind.FORWARD else "backward"
        of_pass = {"micro_batch": done.micro_batch, "chunk": done.chunk, "pass": done.kind.name.lower()}
        yield slice_on(_PASSES, RANGE + phase, ANNOTATION, clock.at(start), clock.at(end), **of_pass)
    over = dict.fromkeys(numbers, 0)  # hidden ones are rounded by themselves
    for span in sorted(timeline.spans, key=lambda span: span.start):
        track, category = track_of(span), ANNOTATION if span.operation else KERNEL
        begins = max(clock.at(span.start), over[track])
        over[track] = max(clock.at(span.end), begins)
        yield slice_on(track, _name(span), category, begins, over[track], **_arguments(span))


def trace_times(start: int, end: int) -> dict[str, float]:
    """Start and duration of an event in microseconds, of nanoseconds."""
    return {"ts": start / 1000, "dur": (end - start) / 1000}


def named(process: int, name: str, thread: int = 0) -> list[Event]:
    """Metadata: the name of a process, or of one of its threads, and its place, which is its number."""
    what, common = "thread" if thread else "process", {"ph": "M", "pid": process, "tid": thread, "ts": 0}
    return [
        common | {"name": f"{what}_name", "args": {"name": name}},
        common | {"name": f"{what}_sort_index", "args": {"sort_index": thread or process}},
    ]


def _phases(timeline: RankTimeline) -> Iterator[tuple[str, tuple[float, float]]]:
    """Ranges of the whole step: the pipeline's passes and waits, where there are several stages, and the update."""
    waits = [span.end for span in timeline.spans if span.term == "bubble"]
    if waits:
        first = min(timeline.passes[0].start, *(span.start for span in timeline.spans if span.term == "bubble"))
        yield f"{RANGE}pipeline", (first, max(timeline.passes[-1].end, *waits))
    yield f"{RANGE}update", timeline.update


def track_of(span: StepSpan) -> str:
    """The track of a span: messages by axis, hidden ones apart, and what computes, waits and updates."""
    if span.operation:
        return f"{span.term}{_HIDDEN if span.hidden else ''}"
    return _BUBBLE if span.term in ("bubble", SLOWEST_WAIT) else _COMPUTE


def _place(track: str) -> tuple[bool, bool, bool, str]:
    """Orders a stage's tracks: compute, messages, bubble, hidden messages."""
    return track.endswith(_HIDDEN), track == _BUBBLE, track != _COMPUTE, track


def _name(span: StepSpan) -> str:
    """A message as PyTorch's profiler names it on a GPU; all else by its term."""
    return f"nccl:{OPERATIONS.get(span.operation, span.operation)}" if span.operation else span.term


def _arguments(span: StepSpan) -> dict[str, Any]:
    found: dict[str, Any] = {"term": span.term}
    if span.measured is not None:
        found["measured as"] = span.measured.value
    if span.operation:
        found |= {"axis": span.axis, "hidden": span.hidden}
    if span.messages:
        found |= {"messages": span.messages, "payload_bytes": span.payload_bytes}
    if span.done is not None:
        found |= {"micro_batch": span.done.micro_batch, "chunk": span.done.chunk}
    return found
