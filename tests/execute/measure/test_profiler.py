"""Kernels from the profiler's events: kernels of one device by name, and nothing of other devices or of ranges."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch._C._autograd import DeviceType

from suite.execute.measure.phases import RANGE, Part
from suite.execute.measure.profiler import ProfiledSteps


def event(name: str, start: int, spent: int, kind: Any = DeviceType.CUDA, device: int = 0, range_: bool = False) -> Any:
    """An event as PyTorch's profiler has it."""
    facts = {"name": name, "start_ns": start, "duration_ns": spent, "device_type": kind, "device_index": device}
    facts |= {"correlation_id": start, "is_user_annotation": range_}
    return SimpleNamespace(**{key: (lambda value=value: value) for key, value in facts.items()})


def test_a_device_s_kernels_are_kept_by_name_and_counted_a_step() -> None:
    events = [
        event(RANGE + Part.FORWARD, 0, 1000, DeviceType.CPU),
        event("cudaLaunchKernel", 10, 5, DeviceType.CPU),
        event("nvjet", 10, 40),
        event("nvjet", 100, 60),
        event("layer_norm", 200, 30),
        event(RANGE + Part.FORWARD, 0, 1000, range_=True),  # on the device's row
        event("nvjet", 300, 500, device=1),
    ]
    profiled = ProfiledSteps(torch.device("cuda", 0), None, 0)
    results = SimpleNamespace(events=lambda: events)
    recording: Any = SimpleNamespace(profiler=SimpleNamespace(kineto_results=results))
    profiled._read(recording, dict.fromkeys(Part, 1e-6), steps=2)
    assert [(kernel.name, kernel.calls, kernel.seconds) for kernel in profiled.kernels] == [
        ("nvjet", 1.0, 50e-9),
        ("layer_norm", 0.5, 15e-9),
    ]
    assert profiled.shares is not None
    assert profiled.shares[Part.FORWARD].compute == 130
