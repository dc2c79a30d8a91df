"""A predicted step as a trace in Chrome's format, which Perfetto opens, with the names of PyTorch's profiler."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from suite.job.pipeline_passes import PassKind
from suite.paths import whole_file
from suite.predict.timeline.pass_parts import term_name
from suite.predict.timeline.rank_timeline import SLOWEST_WAIT, RankTimeline, StepSpan

RANGE = "step: "  # prefix of a phase's ranges, as in a measured trace
ANNOTATION, KERNEL = "user_annotation", "kernel"  # categories of PyTorch's profiler
# As ProcessGroupNCCL names its calls (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp)
OPERATIONS = {"all_gather": "_all_gather_base", "reduce_scatter": "_reduce_scatter_base"}
MICROSECONDS = 1e6
_PHASES, _PASSES, _COMPUTE, _BUBBLE, _OPTIMIZER = "phases", "passes", "compute", "bubble", "optimizer"
_OWN_TRACK = {"bubble": _BUBBLE, SLOWEST_WAIT: _BUBBLE, "optimizer": _OPTIMIZER}
_TRACKS = 100  # of a process at most: numbers of threads, no two of which are the same in a file

Event = Mapping[str, Any]


def write_trace(path: Path, run: str, timelines: Sequence[RankTimeline], *, against: Iterable[Event] = ()) -> None:
    """Write the timelines, a process each, and the events of a measured rank.

    Seconds are microseconds in full precision: those of a term's slices add up to the term. What computation hides is
    on tracks of its own, whose names say so, and counts in no term.

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
    with whole_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "predicted": ' + json.dumps(predicted) + ', "traceEvents": [\n')
        separator = ""
        for timeline in timelines:
            for event in events(timeline):
                file.write(separator + json.dumps(event, separators=(",", ":")))
                separator = ",\n"
        for event in against:
            file.write(separator + json.dumps(event, separators=(",", ":")))
            separator = ",\n"
        file.write("\n]}\n")


def events(timeline: RankTimeline) -> Iterator[Event]:
    """The events of one rank: metadata of its process and tracks, its phases and passes, and a slice for each span."""
    process = timeline.stage + 1
    words = f"predicted: stage {timeline.stage}, rank {timeline.rank}{', the slowest' if timeline.is_slowest else ''}"
    yield from named(process, 0, "process", words, process)
    tracks: dict[str, int] = {}

    def slice_on(track: str, name: str, category: str, span: tuple[float, float], **arguments: Any) -> Iterator[Event]:
        start, seconds = span
        if track not in tracks:
            tracks[track] = _TRACKS * process + len(tracks)
            yield from named(process, tracks[track], "thread", track, tracks[track])
        yield {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": process,
            "tid": tracks[track],
            "ts": start * MICROSECONDS,
            "dur": seconds * MICROSECONDS,
            "args": arguments,
        }

    for name, (start, end) in _phases(timeline):
        yield from slice_on(_PHASES, name, ANNOTATION, (start, end - start))
    for done, start, end in timeline.passes:
        phase = "forward" if done.kind is PassKind.FORWARD else "backward"
        numbers = {"micro_batch": done.micro_batch, "chunk": done.chunk, "pass": done.kind.name.lower()}
        yield from slice_on(_PASSES, RANGE + phase, ANNOTATION, (start, end - start), **numbers)
    for span in sorted(timeline.spans, key=lambda span: span.start):
        category = ANNOTATION if span.operation else KERNEL
        yield from slice_on(track_of(span), _name(span), category, (span.start, span.seconds), **_arguments(span))


def named(process: int, thread: int, what: str, name: str, order: int) -> list[Event]:
    """Metadata: the name of a process or a thread (`what`), and its place among the others."""
    common = {"ph": "M", "pid": process, "tid": thread, "ts": 0}
    return [
        common | {"name": f"{what}_name", "args": {"name": name}},
        common | {"name": f"{what}_sort_index", "args": {"sort_index": order}},
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
        return f"{span.term} messages{', hidden' if span.hidden else ''}"
    return _OWN_TRACK.get(span.term, _COMPUTE)


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
