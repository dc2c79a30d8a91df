"""Torch's devices are printed as JSON, and torch is not imported where the driver reports none."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from types import SimpleNamespace

import msgspec
import pytest
import torch

from suite.execute import devices
from suite.machine.devices import NO_DEVICE, CudaDevice, CudaState


def test_devices_are_printed_in_torchs_order(monkeypatch):
    def properties(number):
        return SimpleNamespace(
            name="NVIDIA H100 80GB HBM3",
            uuid=f"u{number}",
            total_memory=85 * 10**9,
            major=9,
            minor=0,
            multi_processor_count=132,
            max_threads_per_multi_processor=2048,
            pci_domain_id=0,
            pci_bus_id=0x1B + number,
            pci_device_id=0,
        )

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    found = msgspec.json.decode(msgspec.json.encode(devices.torch_devices()), type=list[CudaDevice])
    assert [(one.uuid, one.pci) for one in found] == [("u0", "0000:1b:00.0"), ("u1", "0000:1c:00.0")]


def test_torch_is_not_imported_where_the_driver_reports_no_device():
    if devices.driver_answer()[0]:
        pytest.skip("this machine has a CUDA device")
    code = """
        import runpy, sys
        runpy.run_module("suite.execute.devices", run_name="__main__")
        assert "torch" not in sys.modules
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60, capture_output=True)
    assert msgspec.json.decode(done.stdout, type=CudaState) == CudaState()


def test_a_driver_that_reports_devices_is_counted(monkeypatch):
    def count(number):
        number._obj.value = 3
        return 0

    driver = SimpleNamespace(cuInit=lambda _flags: 0, cuDeviceGetCount=count)
    monkeypatch.setattr(devices.ctypes, "CDLL", lambda _name: driver)
    assert devices.driver_answer() == (3, 0)
    driver.cuInit = lambda _flags: NO_DEVICE
    assert devices.driver_answer() == (0, NO_DEVICE)
