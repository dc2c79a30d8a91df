"""GPUs are read through the library's real interface, and a GPU that does not answer holds nothing up."""

from __future__ import annotations

import ctypes
import inspect
import re
import threading
import time

import pynvml

from suite.acceptance import nvml
from suite.acceptance.nvml import REASONS, Gpus
from suite.machine.devices import CudaDevice
from tests.support.nvml import fake_library


def test_the_stand_in_has_the_signatures_constants_and_structures_of_the_real_library(monkeypatch):
    fake = fake_library(monkeypatch)
    names = [name for name in dir(fake) if name.startswith(("nvml", "NVML_"))]
    assert len(names) > 40
    for name in names:
        ours, theirs = getattr(fake, name), getattr(pynvml, name)
        if callable(ours):
            assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), name
        else:
            assert ours == theirs, name
    for name in ("c_nvmlGpuFabricInfoV_t", "c_nvmlEccSramErrorStatus_v1_t"):
        ours, theirs = (
            [(field, ctypes.sizeof(kind)) for field, kind in getattr(one, name)._fields_] for one in (fake, pynvml)
        )
        assert ours == theirs, name


def test_every_name_that_is_asked_for_exists_in_the_real_library():
    source = inspect.getsource(nvml)
    names = set(re.findall(r"\b(?:nvml[A-Z]\w+|NVML_\w+)\b", source))
    assert names > set(REASONS)
    assert len(names) > 25
    fields = {name for name, _ in pynvml.c_nvmlFieldValue_t._fields_}
    assert [name for name in sorted(names - fields) if not hasattr(pynvml, name)] == []


def test_a_lost_gpu_is_given_up_and_is_not_run_in_place_of_passed(monkeypatch):
    monkeypatch.setattr(nvml, "CALL_SECONDS", 0.05)
    fake_library(monkeypatch, lost=True)
    gpus = Gpus()
    start = time.monotonic()
    sample = gpus.sample(1, start)
    assert time.monotonic() - start < 5
    assert sample.reasons is None
    assert gpus.unanswered(1) == ["nvmlDeviceGetCurrentClocksThrottleReasons"]
    assert sample.mhz is not None


def test_a_call_that_was_given_up_is_not_made_again_while_it_blocks(monkeypatch):
    monkeypatch.setattr(nvml, "CALL_SECONDS", 0.05)
    fake = fake_library(monkeypatch)
    free, asked = threading.Event(), []

    def blocked(handle):
        asked.append(handle)
        free.wait(10)
        return 0

    monkeypatch.setattr(fake, "nvmlDeviceGetCurrentClocksThrottleReasons", blocked)
    gpus = Gpus()
    before = threading.active_count()
    assert [gpus.sample(1, 0.0).reasons for _ in range(5)] == [None] * 5
    assert (asked, threading.active_count()) == ([1], before + 1)
    free.set()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gpus.sample(1, 0.0).reasons == []  # it answers again


def test_a_rank_runs_on_the_gpu_with_its_devices_address(monkeypatch):
    cases = [
        ("cpu", 2, [0, 1], []),
        ("cuda", 2, [0, 1], [0, 1]),
        ("cuda", 2, [2, 0, 1], [2, 0]),  # CUDA counts the fastest first, or as CUDA_VISIBLE_DEVICES says
        ("cuda", 3, [2, 0, 1], [2, 0, 1]),
        ("cuda", 2, [1], []),
        ("cuda", 2, [1, 9], []),  # the library does not know that one
    ]
    addresses = [f"0000:0{number}:00.0" for number in range(3)]
    for device, ranks, order, numbers in cases:
        devices = tuple(
            CudaDevice(name="n", uuid="u", pci=addresses[n] if n < 3 else "x", memory_bytes=1) for n in order
        )
        monkeypatch.setattr(nvml, "cuda_device_list", lambda devices=devices: devices)
        assert nvml.gpus_with_ranks(device, ranks, addresses) == numbers, order
