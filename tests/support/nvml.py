"""The stand-in for NVIDIA's management library, as the self-test of `accept` has it."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from types import ModuleType
from typing import Any

import pytest

from benchmarks.accept_selftest.faults import HERE
from suite.acceptance import gpu_watch, kernel_log
from suite.acceptance.gpu_evidence import Health
from suite.acceptance.node_state import HostReading

FAKE = HERE / "nvml" / "pynvml.py"


def fake_library(monkeypatch: pytest.MonkeyPatch, *, gpus: int = 2, gpu: int = 1, **faults: Any) -> ModuleType:
    """It as the module pynvml, with two GPUs or more, of which the second or another one has faults."""
    monkeypatch.setenv("FAKE_NVML", json.dumps({"gpus": gpus, "faults": {str(gpu): faults}}))
    spec = importlib.util.spec_from_file_location("pynvml", FAKE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(kernel_log, "log_lines", lambda: ([], ""))  # not this machine's
    monkeypatch.setattr(gpu_watch, "host_reading", HostReading)
    return module


def health_of(monkeypatch: pytest.MonkeyPatch, **second: Any) -> Health:
    """A watch's four samples of these devices."""
    fake_library(monkeypatch, **second)
    monkeypatch.setattr(gpu_watch, "SAMPLE_SECONDS", 0.01)
    watch = gpu_watch.HealthWatch()
    deadline = time.monotonic() + 10
    while min(len(own) for own in watch._samples) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    return watch.finished()
