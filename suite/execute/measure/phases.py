"""Seconds of a step by phase: marks on the host's clock, or in the device's stream, which nothing waits for."""

from __future__ import annotations

import enum
import time
from contextlib import AbstractContextManager
from typing import Any

import torch

RANGE = "step: "  # what the names of a phase's ranges in a profile, PyTorch's or Nsight Systems', begin with


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
    not wait for takes none. On a CPU a phase costs 2 microseconds (AMD EPYC, torch 2.13, 2026-11-21).
    On CUDA it is an NVTX range of the host too, in every step; without CUDA torch's calls for those raise.

    Attributes:
        in_profile: whether each phase is also a range in the profile that is being recorded.
        has_nvtx: whether each phase is also an NVTX range.
        now: the phase that was entered last and not left; None behind any.
    """

    def __init__(self, device: torch.device) -> None:
        self.in_profile = False
        self.now: Part | None = None
        self.has_nvtx = device.type == "cuda"
        self._device = device
        self._marks: list[tuple[Part, Any, Any]] = []

    def clear(self) -> None:
        """A new step begins."""
        self._marks.clear()

    def phase(self, part: Part) -> AbstractContextManager[None]:
        """What runs within is this phase of the step."""
        return _PhaseTimer(self, part)

    def add(self, part: Part, start: Any, end: Any) -> None:
        """Two marks, between which that phase ran."""
        self._marks.append((part, start, end))

    def mark(self) -> Any:
        """Now: on the CPU as seconds, on CUDA as an event in the stream."""
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self) -> dict[Part, float]:
        """Of each phase since `clear`, every one named; on CUDA after all work handed to the device is done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        total = dict.fromkeys(Part, 0.0)
        for part, start, end in self._marks:
            total[part] += start.elapsed_time(end) / 1000 if self._device.type == "cuda" else end - start
        return total


class _PhaseTimer:
    """One phase, from entering to leaving it; a generator in its place would take four times as long."""

    __slots__ = ("_part", "_phases", "_range", "_start")

    def __init__(self, phases: Phases, part: Part) -> None:
        self._phases = phases
        self._part = part
        self._range: torch.profiler.record_function | None = None

    def __enter__(self) -> None:
        self._start = self._phases.mark()
        self._phases.now = self._part
        if self._phases.has_nvtx:
            torch.cuda.nvtx.range_push(RANGE + self._part)
        if self._phases.in_profile:
            self._range = torch.profiler.record_function(RANGE + self._part)
            self._range.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._range is not None:
            self._range.__exit__(*error)
        if self._phases.has_nvtx:
            torch.cuda.nvtx.range_pop()
        self._phases.now = None
        self._phases.add(self._part, self._start, self._phases.mark())
