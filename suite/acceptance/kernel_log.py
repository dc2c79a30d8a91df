"""XIDs that the driver wrote into the kernel's log before the battery began."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess

from suite.acceptance.evidence import EarlierXid

KERNEL_LOG = "/dev/kmsg"
JOURNAL = ("journalctl", "--dmesg", "--boot", "--output=cat", "--no-pager", "--quiet")
JOURNAL_SECONDS = 10.0
RECORD_BYTES = 8192  # the kernel's limit of one record
# "NVRM: Xid (PCI:0000:0a:00): 79, pid=1234, name=python, GPU has fallen off the bus."
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)[^)]*\): (\d+)")


def earlier_xids(gpus: list[str]) -> tuple[list[EarlierXid], str]:
    """Every XID since the machine started, oldest first, or why they cannot be read.

    Args:
        gpus: PCI addresses as `pci_address` gives them, in the order of the GPUs' numbers.
    """
    lines, why_none = log_lines()
    found = [
        (pci_address(*(int(part, 16) for part in match.groups()[:3])), int(match[4]))
        for match in map(_XID.search, lines)
        if match
    ]
    return [EarlierXid(gpu=gpus.index(pci) if pci in gpus else -1, pci=pci, xid=xid) for pci, xid in found], why_none


def pci_address(domain: int, bus: int, device: int) -> str:
    """As in "0000:0a:00.0", as the kernel writes it: domain, bus and device of a GPU, which has one function."""
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def log_lines() -> tuple[list[str], str]:
    """The kernel's log since the start of the machine, or why it cannot be read."""
    try:
        return _kernel_lines(), ""
    except OSError as error:
        why_none = f"the kernel's log cannot be read: {error.strerror}"
    try:
        journal = subprocess.run(JOURNAL, capture_output=True, text=True, timeout=JOURNAL_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return [], why_none
    return (journal.stdout.splitlines(), "") if journal.stdout else ([], why_none)


def _kernel_lines() -> list[str]:
    lines = []
    log = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with contextlib.suppress(BlockingIOError):  # after the last record
            while True:
                try:
                    lines.append(os.read(log, RECORD_BYTES).decode(errors="replace"))
                except BrokenPipeError:  # records were overwritten meanwhile; the next read goes on behind them
                    continue
    finally:
        os.close(log)
    return lines
