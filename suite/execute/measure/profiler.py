"""Records the last steps of a run with PyTorch's profiler: the shares of each phase, and the trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch._C._autograd import DeviceType, _KinetoEvent
from torch.profiler import ProfilerActivity, profile

from suite.execute.measure.phases import RANGE, Part
from suite.execute.measure.timeline import DeviceSpan, Shares, Span, device_shares, host_shares
from suite.job.device_kernels import DeviceKernel, device_kernels
from suite.job.events import memory_snapshot_path, trace_path
from suite.job.trace_rows import trace_rows
from suite.paths import whole_file

_PARTS = {RANGE + part: part for part in Part}
_MOST_ENTRIES = 1_000_000  # of a memory snapshot: allocations and frees, about 100 a block and micro-batch


class ProfiledSteps:
    """Records steps between `start` and `stop`. Failures are noted and do not raise.

    Args:
        trace: of the job; None: no trace is written.

    Attributes:
        shares: of each phase, over all recorded steps; None until `stop`, or where it failed.
        kernels: of the device, in a step; empty on a CPU, whose profile has no kernels: an operator's time there is its
            dispatch and its profiling too, and a compiled region is one span.
        failure: what went wrong, as a sentence; empty where nothing did.
    """

    def __init__(self, device: torch.device, trace: str | None, rank: int) -> None:
        self.shares: dict[Part, Shares] | None = None
        self.kernels: list[DeviceKernel] = []
        self.failure = ""
        self._device = device
        self._cuda = device.type == "cuda"
        self._trace = None if trace is None else Path(trace_path(trace, rank))
        self._snapshot = None if trace is None else Path(memory_snapshot_path(trace, rank))
        self._recording: profile | None = None

    def start(self) -> None:
        """Begin to record."""
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._cuda else [])]

        def started() -> None:
            if self._snapshot is not None and self._cuda:
                # With stacks of frees too, compiled blocks that are recomputed end in a SystemError (torch 2.11).
                torch.cuda.memory._record_memory_history(context="alloc", max_entries=_MOST_ENTRIES)
            recording = profile(activities=activities)
            recording.start()
            self._recording = recording

        self._tried("the profiler did not start", started)

    def stop(self, seconds: dict[Part, float], *, steps: int) -> None:
        """Stop recording, compute the shares, and write the trace if one is wanted.

        Args:
            seconds: of each phase, added up over the recorded steps.
            steps: that were recorded.
        """
        recording = self._recording
        if recording is None:
            return
        self._tried("the profiler did not stop", recording.stop)
        if not self.failure:
            self._tried("the profile was not read", lambda: self._read(recording, seconds, steps))
            self._tried("the trace was not written", lambda: self._write(recording))
        self._recording = None

    def _tried(self, what: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # the run's figures must not be lost
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            self.failure = "; ".join(part for part in (self.failure, f"{what}: {text[:300]}") if part)

    def _read(self, recording: profile, seconds: dict[Part, float], steps: int) -> None:
        assert recording.profiler is not None
        results = recording.profiler.kineto_results
        assert results is not None
        events = results.events()
        if self._cuda:
            phases, spans = _phases_and_spans(events, self._device.index)
            self.kernels = device_kernels(((span.name, span.end - span.start) for span in spans), steps=steps)
            self.shares = device_shares(phases, spans)
            for part, share in self.shares.items():
                share.overhead = max(0, round(seconds[part] * 1e9) - share.whole)
        else:
            self.shares = _host_shares(events)

    def _write(self, recording: profile) -> None:
        if self._trace is not None:
            with whole_file(self._trace) as temporary:
                recording.export_chrome_trace(str(temporary))
                if not self._cuda and temporary.suffix == ".json":
                    trace = json.loads(temporary.read_bytes())
                    trace["traceEvents"] = trace_rows(trace["traceEvents"])
                    temporary.write_text(json.dumps(trace), encoding="utf-8")
        if self._snapshot is not None and self._cuda:
            with whole_file(self._snapshot) as temporary:
                torch.cuda.memory._dump_snapshot(str(temporary))
            torch.cuda.memory._record_memory_history(enabled=None)


def _host_shares(events: list[_KinetoEvent]) -> dict[Part, Shares]:
    """Shares of the thread that has the phases' ranges; messages in flight are asynchronous events of other threads."""
    thread = next(event.start_thread_id() for event in events if event.name() in _PARTS)
    spans, messages = [], []
    for event in events:
        start = event.start_ns()
        end = start + event.duration_ns()
        if event.is_async():
            if event.start_thread_id() != thread and event.name().startswith(("gloo:", "nccl:")):
                messages.append((start, end))
        elif event.start_thread_id() == thread:
            spans.append(Span(event.name(), start, end, event.is_user_annotation()))
    return host_shares(spans, messages)


def _phases_and_spans(
    events: list[_KinetoEvent], index: int
) -> tuple[list[tuple[Part, tuple[int, int]]], list[DeviceSpan]]:
    """When the host was in each phase, and what one device executed.

    A kernel and the call that launched it carry the same correlation.
    """
    launched = {
        event.correlation_id(): event.start_ns()
        for event in events
        if event.device_type() == DeviceType.CPU and event.name().startswith("cu")
    }
    phases: list[tuple[Part, tuple[int, int]]] = []
    spans: list[DeviceSpan] = []
    for event in events:
        start = event.start_ns()
        end = start + event.duration_ns()
        if event.device_type() == DeviceType.CPU:
            if event.name() in _PARTS:
                phases.append((_PARTS[event.name()], (start, end)))
        elif event.device_index() == index and not event.is_user_annotation():
            spans.append(DeviceSpan(event.name(), start, end, launched.get(event.correlation_id(), start)))
    return phases, spans
