"""XIDs in the kernel's log belong to the GPU with their PCI address."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from suite.acceptance import kernel_log as subject
from suite.acceptance.gpu_evidence import EarlierXid
from suite.acceptance.kernel_log import log_lines, pci_address, xids_of

GPUS = [pci_address(0, 0x18, 0), pci_address(0, 0xAB, 0)]
UUIDS = ["GPU-a", "GPU-b"]
LINES = [
    "6,1,100,-;Linux version 6.8",
    "4,2,200,-;NVRM: Xid (PCI:0000:ab:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "4,3,300,-;NVRM: Xid (PCI:0000:18:00.0): 31, pid=4711, name=python, Ch 00000008, MMU Fault",
    "4,4,400,-;NVRM: Xid (PCI:0000:3b:00): 48, pid=1, an uncorrectable double bit error",
]


def test_each_xid_is_of_the_gpu_with_its_address_and_keeps_its_message() -> None:
    assert xids_of(LINES, GPUS) == [
        EarlierXid(gpu=1, pci="0000:ab:00.0", xid=79, message=LINES[1].partition("79, ")[2]),
        EarlierXid(gpu=0, pci="0000:18:00.0", xid=31, message="pid=4711, name=python, Ch 00000008, MMU Fault"),
        EarlierXid(gpu=-1, pci="0000:3b:00.0", xid=48, message="pid=1, an uncorrectable double bit error"),
    ]


def test_a_message_keeps_no_control_characters_and_has_an_end() -> None:
    (found,) = xids_of(["NVRM: Xid (PCI:0000:18:00): 13, name=\x1b[2J" + "x" * 4000], GPUS)
    assert found.message.startswith("name=[2J")
    assert len(found.message) == 160


CHANGED = "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"


def test_a_later_line_resolves_the_xids_of_its_gpu_and_no_earlier_line_does() -> None:
    first, second = LINES[2], LINES[1]  # of GPU 0, and of GPU 1
    loaded = "6,9,900,-;NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build"
    cases = {
        "nothing": ([], ["", ""]),
        "driver": ([loaded], ["the driver was loaded since"] * 2),
        "address": (["GPU reset executed: 0000:18:00.0"], ["the GPU was reset since", ""]),
        "uuid": (["GPU reset executed: GPU-b"], ["", "the GPU was reset since"]),
        "another": (["GPU reset executed: GPU-c"], ["", ""]),
        "a program's name": (["NVRM: Xid (PCI:0000:3b:00): 13, name=GPU reset executed: GPU-b"], ["", ""]),
        "recovery": ([CHANGED], ["the driver asks for no recovery since", ""]),
    }
    wrong = {
        name: found
        for name, (after, resolved) in cases.items()
        if (found := [xid.resolved for xid in xids_of([loaded, first, second, *after], GPUS, UUIDS)][:2]) != resolved
    }
    assert wrong == {}


def test_the_kernels_log_is_read_to_its_end_and_no_further(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each read gives a record; overwritten ones are skipped; after the last one a read would block."""
    answers = iter([b"one", BrokenPipeError(), b"two", BlockingIOError()])

    def read(_log: int, _size: int) -> bytes:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    (tmp_path / "kmsg").touch()
    monkeypatch.setattr(subject, "KERNEL_LOG", str(tmp_path / "kmsg"))
    opened = SimpleNamespace(O_RDONLY=os.O_RDONLY, O_NONBLOCK=os.O_NONBLOCK, open=os.open, close=os.close, read=read)
    monkeypatch.setattr(subject, "os", opened)
    assert log_lines() == (["one", "two"], "")


@pytest.mark.parametrize(("journal", "lines"), [("a\nb\n", ["a", "b"]), ("", [])])
def test_without_permission_the_journal_is_asked_and_then_it_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, journal: str, lines: list[str]
) -> None:
    monkeypatch.setattr(subject, "KERNEL_LOG", str(tmp_path / "none"))
    answer = SimpleNamespace(stdout=journal)
    asked = SimpleNamespace(run=lambda *_a, **_k: answer, SubprocessError=subprocess.SubprocessError)
    monkeypatch.setattr(subject, "subprocess", asked)
    why = "" if lines else "the kernel's log cannot be read: No such file or directory"
    assert log_lines() == (lines, why)
