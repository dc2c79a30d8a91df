"""Calibration on CUDA devices: within its time, with the device's rates, copies and log."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import torch

from suite.machine.profile import Profile
from suite.machine.timing_tables import Subject
from suite.paths import ROOT
from suite.report.terminal.machine_profile import best_rate

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT RUN: needs a CUDA device"),
]


@pytest.mark.timeout(600)
def test_a_gpu_is_calibrated_within_90_seconds_and_computes_bf16_faster_than_fp32(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "suite", "calibrate", "--device", "cuda", "--ranks", "1", "--json"]
    start = time.monotonic()
    done = subprocess.run([*command, "--results", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=500)
    seconds = time.monotonic() - start
    assert done.returncode == 0, done.stderr
    profile = msgspec.convert(json.loads(done.stdout)["profile"], Profile, str_keys=True)

    def rate(operation: str, variant: str, dtype: str) -> float:
        subject = Subject(operation=operation, variant=variant, dtype=dtype)
        return max(best_rate(table).per_second for table in profile.tables if table.subject == subject)

    assert rate("product", "NT", "bf16") > 1.5 * rate("product", "NT", "fp32")
    assert rate("copy", "", "fp32") > 1e11
    for operation, variant in (("host_to_device", ""), ("host_to_device", "pageable"), ("device_to_host", "")):
        assert 1e9 < profile.line(Subject(operation=operation, variant=variant)).units_per_second < 1e12
    assert profile.conditions.gpus or "gpu_log" in profile.conditions.facts
    assert all("watts" in sample for sample in profile.conditions.gpus)
    assert seconds <= 90
