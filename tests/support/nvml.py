"""The stand-in for NVIDIA's management library, as the self-test of `accept` has it."""

from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType
from typing import Any

import pytest

from benchmarks.accept_selftest import faults

FAKE = faults.HERE / "nvml" / "pynvml.py"


def fake_library(monkeypatch: pytest.MonkeyPatch, **second: Any) -> ModuleType:
    """It as the module pynvml, with two GPUs, of which the second has faults."""
    monkeypatch.setenv("FAKE_NVML", json.dumps({"gpus": 2, "faults": {"1": second}}))
    spec = importlib.util.spec_from_file_location("pynvml", FAKE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module
