"""Samples of a GPU: few, by the handle of the rank's own device, and none where the driver blocks."""

from __future__ import annotations

import threading
import time
from types import ModuleType, SimpleNamespace

import pytest
import torch

from suite.execute.measure import system_load as subject
from suite.execute.measure.system_load import GpuLog
from tests.support.nvml import fake_library


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The stand-in, whose second GPU is the rank's device."""
    properties = SimpleNamespace(uuid="1", name="NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    return fake_library(monkeypatch)


def test_without_a_gpu_the_log_is_empty_and_says_why() -> None:
    log = GpuLog(torch.device("cpu"))
    log.sample()
    assert (log.samples, log.why_none) == ([], "no GPU")


def test_a_sample_has_the_clocks_of_the_ranks_own_gpu(library: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(library, "nvmlDeviceGetPowerUsage", lambda handle: asked.append(handle) or 650_000)
    log = GpuLog(torch.device("cuda", 0))  # the library counts it as 1
    log.sample()
    (sample,) = log.samples
    assert asked == [1]
    assert {key: sample[key] for key in ("sm_mhz", "watts", "celsius", "throttle_reasons")} == {
        "sm_mhz": 1980.0,
        "watts": 650.0,
        "celsius": 61.0,
        "throttle_reasons": "0x0",
    }


def test_a_thousand_tasks_ask_the_driver_twice_a_second_in_one_thread(
    library: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: set[str] = set()
    monkeypatch.setattr(
        library, "nvmlDeviceGetPowerUsage", lambda _handle: names.add(threading.current_thread().name) or 650_000
    )
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(subject, "time", SimpleNamespace(monotonic=lambda: clock.now))
    log = GpuLog(torch.device("cuda", 0))
    for task in range(1000):
        clock.now = 0.0625 * task  # 62.5 s
        log.sample()
    assert [sample["seconds"] for sample in log.samples] == [0.5 * number for number in range(125)]
    assert len(names) == 1


def test_a_driver_that_blocks_costs_one_value_and_no_hang(library: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "CALL_SECONDS", 0.05)
    free = threading.Event()
    monkeypatch.setattr(library, "nvmlDeviceGetPowerUsage", lambda _handle: free.wait(30))
    log = GpuLog(torch.device("cuda", 0))
    begun = time.monotonic()
    log.sample()
    free.set()
    assert time.monotonic() - begun < 5
    assert log.samples[0].keys() == {"seconds", "sm_mhz", "memory_mhz", "celsius", "throttle_reasons"}
