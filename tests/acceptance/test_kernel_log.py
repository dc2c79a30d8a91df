"""XIDs in the kernel's log belong to the GPU with their PCI address."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from suite.acceptance import kernel_log as subject
from suite.acceptance.evidence import EarlierXid
from suite.acceptance.kernel_log import earlier_xids, log_lines, pci_address

GPUS = [pci_address(0, 0x18, 0), pci_address(0, 0xAB, 0)]
LINES = [
    "6,1,100,-;Linux version 6.8",
    "4,2,200,-;NVRM: Xid (PCI:0000:ab:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "4,3,300,-;NVRM: Xid (PCI:0000:18:00.0): 31, pid=4711, name=python, Ch 00000008, MMU Fault",
    "4,4,400,-;NVRM: Xid (PCI:0000:3b:00): 48, pid=1, an uncorrectable double bit error",
]


def test_each_xid_is_of_the_gpu_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "log_lines", lambda: (LINES, ""))
    assert earlier_xids(GPUS) == (
        [
            EarlierXid(gpu=1, pci="0000:ab:00.0", xid=79),
            EarlierXid(gpu=0, pci="0000:18:00.0", xid=31),
            EarlierXid(gpu=-1, pci="0000:3b:00.0", xid=48),
        ],
        "",
    )


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
