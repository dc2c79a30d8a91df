"""`accept` on nodes whose GPUs are missing, hidden, in use or broken: the exit code, the part, and what was executed.

NVIDIA's library and torch's answer are made up. Launches end as a test says.
"""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from suite.__main__ import main
from suite.acceptance import gpu_watch, phases
from suite.job.events import Status
from suite.machine import devices
from suite.machine.devices import CudaDevice, CudaState
from suite.paths import ROOT
from tests.support.node import accept, node
from tests.support.nvml import fake_library

__all__ = ["node"]

ECC = "rank 3: AcceleratorError: CUDA error: uncorrectable ECC error encountered"
LOG = "[rank3]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n[rank0]: NCCL timed out"


class GpuNode:
    """A node that should have eight GPUs.

    Attributes:
        executed: names of what was launched, in order.
        ended: how every launch of a miniature ends: fields of its evidence.
    """

    def __init__(self, monkeypatch, capsys, results, simulated):
        self._patch, self._capsys, self._results, self._simulated = monkeypatch, capsys, results, simulated
        self.ended = {}
        launched = simulated.miniature_launch
        monkeypatch.setattr(
            "suite.acceptance.measurements.miniature_launch",
            lambda *arguments, **options: msgspec.structs.replace(launched(*arguments, **options), **self.ended),
        )
        monkeypatch.setattr(gpu_watch, "SAMPLE_SECONDS", 0.01)
        monkeypatch.setattr(phases, "COUNTERS_SECONDS", 0.5)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        self.has(8, 8)

    def has(self, gpus, usable, **state):
        """It has so many GPUs by NVIDIA's library, None: there is no driver; torch can use so many."""
        usual = {"driver_devices": usable, "driver_error": 0 if usable else devices.NO_DEVICE, "torch": "2.13.0"}
        listed = tuple(
            CudaDevice(
                name="NVIDIA H100 80GB HBM3", uuid=f"{n}", pci=f"0000:{0x18 + n:02x}:00.0", memory_bytes=85 * 10**9
            )
            for n in range(usable)
        )
        answer = CudaState(**(usual | state), devices=listed)
        self._patch.setattr(devices, "_state", lambda _visible: answer)
        self._patch.setattr(devices, "has_driver", lambda: gpus is not None)
        self.faults(gpus=gpus or 0)
        if gpus is None:
            self._patch.setattr(sys.modules["pynvml"], "nvmlInit", lambda: 1 / 0)

    def faults(self, gpus=8, **of_gpu_3):
        fake_library(self._patch, gpus=gpus, gpu=3, **of_gpu_3)

    @property
    def executed(self):
        return self._simulated.asked

    def judged(self, *options):
        """Exit code, report, and findings by check and subject."""
        usual = ("--device", "cuda", "--devices", "8", "--others", "1", "--only", "0,7,12,13,14")
        return accept(self._capsys, self._results, *usual, *options)


@pytest.fixture
def gpus(monkeypatch, capsys, tmp_path, node):
    return GpuNode(monkeypatch, capsys, tmp_path / "results", node)


def test_a_missing_gpu_rejects_the_node_before_anything_is_launched(gpus, monkeypatch):
    """The driver itself may be gone, and ranks that were asked for change nothing. What hides a GPU decides nothing."""
    wrong = []
    for has, state, options, code, part in (
        ((8, 8), {}, (), 0, ""),
        ((7, 7), {}, (), 1, "GPUs: 7 of 8"),
        ((7, 7), {}, ("--ranks", "8"), 1, "GPUs: 7 of 8"),
        ((8, 7), {}, (), 1, "GPUs: 7 of 8"),  # one does not answer CUDA
        ((0, 0), {}, (), 1, "GPUs: none of 8"),
        ((None, 0), {}, (), 1, "GPUs: none of 8"),
        ((8, 0), {"driver_error": 802}, (), 1, "GPUs: none of 8"),  # the fabric manager has not begun
    ):
        gpus.has(*has, **state)
        gpus.executed.clear()
        ended, report, found = gpus.judged(*options)
        verdict, named = found[0, "devices"]["verdict"], found[0, "devices"]["part"]
        action = found[0, "devices"]["action"] == ("reboot the node" if code else None)
        if (ended, named, verdict == "FAIL", bool(gpus.executed), action) != (code, part, code == 1, code == 0, True):
            wrong.append((has, state, ended, named, verdict, gpus.executed))
        if part and (part not in report["summary"] or not report["notes"][0].startswith("ended at once")):
            wrong.append(report)
    assert wrong == []
    gpus.has(None, 0)
    assert gpus.judged("--only", "14")[2][0, "devices"]["part"] == "GPUs: none of 8"  # whatever is asked for
    gpus.has(8, 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    code, _, found = gpus.judged()
    assert (code, found[0, "devices"]["verdict"]) == (3, "INVALID")
    assert found[0, "devices"]["action"] == "fix the setting"
    assert "CUDA_VISIBLE_DEVICES=0,1,2,3" in found[0, "devices"]["evidence"]


def test_an_image_that_hides_the_gpus_is_bad_input(gpus, capsys, tmp_path):
    for state, words in (
        ({"driver_error": 803}, "CUDA error 803 (the driver's library is of another version than the kernel's)"),
        ({"kernel_devices": 8}, "the kernel's NVIDIA driver has 8 devices, but libcuda.so.1 does not load here"),
    ):
        gpus.has(8, 0, **state)
        assert main(["accept", "--device", "cuda", "--devices", "8", "--results", str(tmp_path / "results")]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert words in said.err
    assert not (tmp_path / "results").exists()


def test_of_gpus_that_others_use_the_counters_are_read_and_nothing_is_executed(gpus):
    """Decides nothing where counters are clean, and rejects where one counted an error."""
    for fault in ({"processes": [4711]}, {"used_bytes": 30 * 2**30}):  # a pod does not see whose the memory is
        gpus.faults(**fault)
        code, report, found = gpus.judged()
        assert (code, report["decision"], gpus.executed) == (3, "not decidable", [])
        assert (found[0, "GPUs"]["verdict"], found[0, "GPUs"]["part"]) == ("INVALID", "GPU 3")
        assert found[0, "GPUs"]["action"] == "free the node"
        assert [found[check, "GPU 3"]["verdict"] for check in (12, 13)] == ["PASS", "PASS"]
        assert found[13, "GPU 2"]["verdict"] == "NOT RUN"  # under no load
        assert found[14, ""]["evidence"] == "others use GPUs: nothing was executed"
        assert report["notes"] == ["others use GPU 3: their counters were read, nothing was executed"]
        gpus.faults(**fault, uncorrected=1)
        code, report, _ = gpus.judged()
        assert (code, gpus.executed) == (1, [])
        assert "memory or board of GPU 3" in report["summary"]


def test_out_of_memory_beside_others_is_not_decidable(gpus):
    gpus.ended = {"status": Status.OUT_OF_MEMORY, "message": "rank 3: OutOfMemoryError"}
    assert gpus.judged("--only", "7")[0] == 4
    gpus.faults(used_bytes=500 * 2**20)  # a context
    code, _, found = gpus.judged("--only", "7")
    assert code == 3
    assert {finding["verdict"] for (check, _), finding in found.items() if check == 7} == {"INCONCLUSIVE"}


def test_an_uncorrectable_error_in_a_launch_rejects_at_once_and_names_the_gpu(gpus):
    """By the message of the rank that met it, or by its line in the log where another rank spoke first."""
    for ended in (
        {"message": ECC, "ranks_at_fault": [3]},
        {"message": "rank 0: NCCL timed out", "ranks_at_fault": [0], "stacks": LOG},
    ):
        gpus.executed.clear()
        gpus.ended = {"status": Status.CRASHED, **ended}
        code, report, found = gpus.judged("--only", "7,14")
        assert (code, len(gpus.executed)) == (1, 1), gpus.executed
        assert report["notes"][-1].startswith("ended at once: uncorrectable ECC error encountered on rank 3")
        assert "rank 3 (GPU 3 at 0000:1b:00.0)" in report["summary"]
        (error,) = [finding for (check, _), finding in found.items() if check == 13]
        assert (error["part"], error["action"]) == (
            "memory or board of rank 3 (GPU 3 at 0000:1b:00.0)",
            "reset the GPU",
        )


def test_a_rank_that_cannot_import_a_package_says_nothing_about_the_node(gpus):
    gpus.ended = {
        "status": Status.CRASHED,
        "message": "rank 0: ImportError: libcudart.so.13: cannot open shared object",
    }
    code, report, _ = gpus.judged("--only", "7")
    assert (code, report["decision"]) == (3, "not decidable")
    assert "a package that does not import" in report["summary"]


@pytest.mark.parametrize(
    ("message", "log", "part"),
    [
        ("rank 0: OSError: [Errno 28] No space left on device", "", "a full disk, or too little of /dev/shm"),
        (  # NCCL in a container with 64 MB of shared memory: its own first line says nothing
            "rank 0: DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled system error",
            "Last error:\nError while creating shared memory segment /dev/shm/nccl-1: No space left on device (28)",
            "a full disk, or too little of /dev/shm",
        ),
        ("rank 1: OSError: [Errno 24] Too many open files", "", "the limit of open files"),
        ("rank 1: RuntimeError: can't start new thread", "", "the limit of processes"),
        ("rank 0: OSError: [Errno 30] Read-only file system", "", "a file system that cannot be written"),
    ],
)
def test_a_full_disk_or_a_limit_says_nothing_about_the_node(gpus, message, log, part):
    gpus.ended = {"status": Status.CRASHED, "message": message, "stacks": log}
    code, report, found = gpus.judged("--only", "7")
    assert (code, report["decision"]) == (3, "not decidable")
    crashes = [one for (number, _), one in found.items() if number == 7]
    assert {(crash["part"], crash["action"]) for crash in crashes} == {(part, "fix the setting")}


def test_a_torch_that_does_not_import_is_told_with_its_own_error_and_judges_nothing(tmp_path):
    """A process of its own, as a gate starts it."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.13: cannot open')\n")
    command = [sys.executable, "-m", "suite", "accept", "--only", "14", "--summary", "--results", str(tmp_path / "r")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert "torch is installed, but does not import: ImportError: libcudart.so.13: cannot open" in ended.stderr
    assert "drain" not in ended.stderr
    assert not (tmp_path / "r").exists()
