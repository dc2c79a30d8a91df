"""Torch is asked for its devices once a process; GPUs that are there and that it cannot use are an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import msgspec
import pytest

from reference_runs.errors import InputError
from suite.__main__ import main
from suite.machine import devices
from suite.paths import ROOT

TWO = [
    devices.CudaDevice(
        name="NVIDIA H100 80GB HBM3", uuid=f"uuid-{number}", pci=f"0000:{number}b:00.0", memory_bytes=size
    )
    for number, size in enumerate((85_000_000_000, 84_000_000_000))
]


DRIVER_OF_8 = """
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { *count = 8; return 0; }
"""


def answer_of(usable, **changes):
    usual = {"driver_devices": len(usable), "driver_error": 0, "torch": "2.13.0", "built_for": "CUDA 13.0"}
    return msgspec.json.encode(devices.CudaState(**(usual | changes), devices=tuple(usable)))


class Machine:
    """A machine with or without a driver, whose torch answers with a text; how often it was asked."""

    def __init__(self, monkeypatch):
        self.asked = 0
        self.answer = answer_of(TWO)
        self.code, self.words = 0, b""
        self.hangs = False
        self.loaded = []
        monkeypatch.setattr(devices, "ctypes", SimpleNamespace(CDLL=self.loaded.append))
        monkeypatch.setattr(devices.subprocess, "run", self.run)
        devices._state.cache_clear()

    def run(self, command, *, timeout, **_options):
        self.asked += 1
        assert command[:2] == [sys.executable, "-m"]
        if self.hangs:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, self.code, self.answer, self.words)


@pytest.fixture
def machine(monkeypatch):
    yield Machine(monkeypatch)
    devices._state.cache_clear()


def test_torch_is_asked_once_whatever_is_asked_of_its_devices(machine, monkeypatch):
    assert devices.cuda_device_list() == tuple(TWO)
    assert machine.loaded == ["libcuda.so.1"]  # decides: in containers the driver's files need not be there
    assert (devices.cuda_devices(), devices.cuda_memory_bytes()) == (2, 84_000_000_000)
    assert devices.resolved_device("auto") == devices.resolved_device("cuda") == ("cuda", 2)
    assert machine.asked == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-uuid-1")  # other devices than before
    machine.answer = answer_of(TWO[1:])
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


def test_devices_that_torch_cannot_use_are_refused_by_the_names_of_driver_and_torch(machine):
    """Never a run on the CPU, unless it is asked for."""
    for changes, words in (
        ({"torch": "2.13.0+cpu", "built_for": ""}, "has 8 devices, but PyTorch 2.13.0\\+cpu .built without CUDA"),
        ({"torch": "2.9.1+rocm6.4", "built_for": "ROCm 6.4"}, "PyTorch 2.9.1\\+rocm6.4 .built for ROCm 6.4"),
        ({"driver_devices": 0, "driver_error": 803}, "CUDA error 803 .the driver's library is of another version"),
        ({"driver_devices": 0, "driver_error": 802}, "does not start: CUDA error 802"),
    ):
        devices._state.cache_clear()
        machine.answer = answer_of([], **({"driver_devices": 8} | changes))
        for choice in ("auto", "cuda"):
            with pytest.raises(InputError, match=words):
                devices.resolved_device(choice)
    assert devices.resolved_device("cpu") == ("cpu", 2)


@pytest.fixture
def driver_of_8(tmp_path, monkeypatch):
    """A driver with 8 devices for every process that is started from now on, as far as it is asked for their number."""
    if devices.has_driver() or not shutil.which("gcc"):
        pytest.skip("NOT RUN: there is a driver, or no gcc")
    (tmp_path / "driver.c").write_text(DRIVER_OF_8)
    command = ["gcc", "-shared", "-fPIC", "-o", tmp_path / devices.DRIVER, tmp_path / "driver.c"]
    subprocess.run(command, check=True, timeout=60)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    return {**os.environ}


def test_every_command_that_launches_refuses_a_torch_that_cannot_use_the_drivers_devices(tmp_path, monkeypatch, capsys):
    without = devices.CudaState(driver_devices=8, driver_error=0, torch="2.13.0+cpu")
    monkeypatch.setattr(devices, "_state", lambda _visible: without)
    wrong = []
    for command in (
        "accept --only 14",
        "accept --only 14 --device cuda --devices 8",
        "calibrate",
        "first-hour",
        "fleet accept --engine hosts --nodes a,b",
        "ladder gpt2-mini",
        "regress bloom-mini --accept",
        "reproduce bloom-mini",
    ):
        code = main([*command.split(), "--results", str(tmp_path / "results")])
        said = capsys.readouterr().err
        if code != 2 or "the NVIDIA driver has 8 devices, but PyTorch 2.13.0+cpu" not in said or "cpu" not in said:
            wrong.append((command, code, said))
    assert wrong == []
    assert not (tmp_path / "results").exists()


def test_a_cpu_build_of_torch_over_a_driver_with_8_devices_is_bad_input(driver_of_8, tmp_path):
    """The torch of these tests, and a driver that the operating system finds."""
    words = [sys.executable, "-m", "suite", "accept", "--only", "14", "--results", str(tmp_path / "results")]
    done = subprocess.run(words, cwd=ROOT, env=driver_of_8, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert "the NVIDIA driver has 8 devices, but PyTorch" in done.stderr
    assert not (tmp_path / "results").exists()


def test_amd_gpus_are_refused_whatever_shows_them(tmp_path, monkeypatch, capsys):
    """ROCm's device with a node that computes, an accelerator on the PCI bus, or ROCm's library."""
    assert devices.amd_gpus(tmp_path / "kfd", tmp_path) == ""
    topology = tmp_path / "class/kfd/kfd/topology/nodes"
    for number, units in enumerate((0, 304)):
        (topology / str(number)).mkdir(parents=True)
        (topology / str(number) / "properties").write_text(f"cpu_cores_count 0\nsimd_count {units}\n")
    (tmp_path / "kfd").touch()
    assert devices.amd_gpus(tmp_path / "kfd", tmp_path) == str(tmp_path / "kfd")
    shutil.rmtree(topology / "1")  # a processor alone
    assert devices.amd_gpus(tmp_path / "kfd", tmp_path) == ""
    for name, vendor, kind in (("0000:05:00.0", "0x1002", "0x120000"), ("0000:06:00.0", "0x10de", "0x030200")):
        (tmp_path / "bus/pci/devices" / name).mkdir(parents=True)
        (tmp_path / "bus/pci/devices" / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / "bus/pci/devices" / name / "class").write_text(f"{kind}\n")
    assert devices.amd_gpus(tmp_path / "none", tmp_path) == "the PCI bus"
    assert devices.accelerators("NVIDIA", tmp_path) == ["0000:06:00.0"]
    monkeypatch.setattr(devices, "_state", lambda _visible: devices.CudaState())
    monkeypatch.setattr(devices, "ctypes", SimpleNamespace(CDLL=lambda _name: None))
    assert main(["reproduce", "bloom-mini", "--results", str(tmp_path / "results")]) == 2
    said = capsys.readouterr().err
    assert "AMD GPUs (PyTorch 2" in said
    assert "predicted, not executed" in said
    assert "libamdhip64.so" in said


def test_no_driver_is_known_without_importing_torch():
    """In a process of its own: that torch is imported would be seen in its modules."""
    code = """
        import sys
        from suite.machine.devices import cuda_devices
        cuda_devices()
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)
