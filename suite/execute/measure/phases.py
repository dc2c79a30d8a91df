"""Seconds of a step by phase, from marks on the host's clock, or from events in the device's stream."""

from __future__ import annotations

import enum
import time
from contextlib import AbstractContextManager
from typing import Any

import torch

from suite.job.pipeline_passes import Pass

RANGE = "step: "  # prefix of a phase's ranges in a profile of PyTorch or Nsight Systems


class Part(enum.StrEnum):
    """A phase of a step. FORWARD and BACKWARD of a pipeline lie within PIPELINE; the others lie side by side."""

    DATA_LOADING = "data loading"
    HOST_DEVICE_COPY = "host-device copy"
    FORWARD = "forward"
    BACKWARD = "backward"
    PIPELINE = "pipeline"
    UPDATE = "update"


class Phases:
    """Adds up the seconds of each phase of a step.

    On CUDA a phase's seconds are those of the device's stream from mark to mark: work of the host that the device does
    not wait for takes none. A phase is an NVTX range there too, in every step.

    Attributes:
        in_profile: whether each phase is also a range in the profile that is being recorded.
        now: the current phase; None between phases.
    """

    def __init__(self, device: torch.device) -> None:
        self.in_profile = False
        self.now: Part | None = None
        self.on_cuda = device.type == "cuda"
        self._device = device
        self.marks: list[tuple[Part, Any, Any]] = []
        self.passes: list[tuple[Pass, Any, Any]] = []
        self._began: tuple[float, Any] = (0.0, None)

    def clear(self) -> None:
        """A step begins. On CUDA the device must have no work left, so that its clock and the host's agree."""
        self.marks.clear()
        self.passes.clear()
        self._began = time.perf_counter(), self.mark()

    def phase(self, part: Part, done: Pass | None = None) -> AbstractContextManager[None]:
        """One phase, within the context; `done`: the pipeline's pass that it is."""
        return _PhaseTimer(self, part, done)

    def mark(self) -> Any:
        """Now: on the CPU as seconds, on CUDA as an event in the stream."""
        if not self.on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self) -> dict[Part, float]:
        """Seconds of every phase since `clear`; on CUDA after all launched work is done."""
        if self.on_cuda:
            torch.cuda.synchronize(self._device)
        total = dict.fromkeys(Part, 0.0)
        for part, start, end in self.marks:
            total[part] += self.between(start, end)
        return total

    def pass_times(self) -> list[tuple[Pass, float, float]]:
        """Start and end of every pass since `clear`, in seconds of the host's clock; on CUDA of work that is done."""
        host, mark = self._began
        return [
            (done, host + self.between(mark, start), host + self.between(mark, end)) for done, start, end in self.passes
        ]

    def between(self, start: Any, end: Any) -> float:
        """Seconds between two marks; on CUDA of work that is done."""
        seconds: float = start.elapsed_time(end) / 1000 if self.on_cuda else end - start
        return seconds


class _PhaseTimer:
    """One phase, from entering to leaving it. A generator would take four times as long."""

    __slots__ = ("_done", "_part", "_phases", "_range", "_start")

    def __init__(self, phases: Phases, part: Part, done: Pass | None) -> None:
        self._phases = phases
        self._done = done
        self._part = part
        self._range: torch.profiler.record_function | None = None

    def __enter__(self) -> None:
        self._start = self._phases.mark()
        self._phases.now = self._part
        if self._phases.on_cuda:
            torch.cuda.nvtx.range_push(RANGE + self._part)
        if self._phases.in_profile:
            self._range = torch.profiler.record_function(RANGE + self._part)
            self._range.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._range is not None:
            self._range.__exit__(*error)
        if self._phases.on_cuda:
            torch.cuda.nvtx.range_pop()
        self._phases.now = None
        end = self._phases.mark()
        self._phases.marks.append((self._part, self._start, end))
        if self._done is not None:
            self._phases.passes.append((self._done, self._start, end))
