"""Torch is asked for its devices once a process, and not at all without a driver."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from types import SimpleNamespace

import msgspec
import pytest

from reference_runs.errors import InputError
from suite.machine import devices

TWO = [
    devices.CudaDevice(
        name="NVIDIA H100 80GB HBM3", uuid=f"uuid-{number}", pci=f"0000:{number}b:00.0", memory_bytes=size
    )
    for number, size in enumerate((85_000_000_000, 84_000_000_000))
]


class Machine:
    """A machine with or without a driver, whose torch answers with a text; how often it was asked."""

    def __init__(self, monkeypatch):
        self.asked = 0
        self.answer = msgspec.json.encode(TWO)
        self.code, self.words = 0, b""
        self.hangs = False
        self.loaded = []
        monkeypatch.setattr(devices, "ctypes", SimpleNamespace(CDLL=self.loaded.append))
        monkeypatch.setattr(devices.subprocess, "run", self.run)
        devices._visible_devices.cache_clear()

    def run(self, command, *, timeout, **_options):
        self.asked += 1
        assert command[:2] == [sys.executable, "-m"]
        if self.hangs:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, self.code, self.answer, self.words)


@pytest.fixture
def machine(monkeypatch):
    yield Machine(monkeypatch)
    devices._visible_devices.cache_clear()


def test_torch_is_asked_once_whatever_is_asked_of_its_devices(machine, monkeypatch):
    assert devices.cuda_device_list() == tuple(TWO)
    assert machine.loaded == ["libcuda.so.1"]  # decides: in containers the driver's files need not be there
    assert (devices.cuda_devices(), devices.cuda_memory_bytes()) == (2, 84_000_000_000)
    assert devices.resolved_device("auto") == devices.resolved_device("cuda") == ("cuda", 2)
    assert machine.asked == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-uuid-1")  # other devices than before
    machine.answer = msgspec.json.encode(TWO[1:])
    assert devices.resolved_device("auto") == ("cuda", 1)
    assert machine.asked == 2


def test_without_a_driver_torch_is_not_asked(machine, monkeypatch):
    def missing(_name):
        raise OSError

    monkeypatch.setattr(devices, "ctypes", SimpleNamespace(CDLL=missing))
    assert devices.cuda_device_list() == ()
    assert devices.resolved_device("auto") == ("cpu", 2)
    with pytest.raises(InputError, match="no CUDA device here"):
        devices.resolved_device("cuda")
    assert machine.asked == 0


def test_a_torch_that_cannot_be_asked_is_bad_input(machine):
    failed = b"Traceback\nRuntimeError: initialisation failed\n"
    for machine.code, machine.words, machine.hangs, line in (
        (1, failed, False, "RuntimeError: initialisation failed"),
        (1, b"", False, "no output"),
        (0, b"", True, "no answer in 180 s"),
    ):
        with pytest.raises(InputError, match=line):
            devices.resolved_device("auto")


def test_no_driver_is_known_without_importing_torch():
    """In a process of its own: that torch is imported would be seen in its modules."""
    code = """
        import sys
        from suite.machine.devices import cuda_devices
        cuda_devices()
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)
