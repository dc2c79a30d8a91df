"""The kernel's log, and the XIDs that the driver wrote into it before the battery began."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterable, Sequence

import msgspec

from suite.acceptance.gpu_evidence import EarlierXid
from suite.acceptance.xid_table import RECOVERY_CHANGED, recovery_in

KERNEL_LOG = "/dev/kmsg"
JOURNAL = ("journalctl", "--dmesg", "--boot", "--output=short-monotonic", "--no-pager", "--quiet")
JOURNAL_SECONDS = 10.0
RECORD_BYTES = 8192  # the kernel's limit of one record
# "NVRM: Xid (PCI:0000:0a:00): 79, pid=1234, name=python, GPU has fallen off the bus."
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)[^)]*\): (\d+)(?:, (.*))?")
DRIVER_LOADED = "NVRM: loading NVIDIA UNIX"  # as the driver's module is loaded
# written by whoever resets a GPU: the driver writes nothing
_RESET = re.compile(r"GPU reset executed: ([-:.\w]+)")
MESSAGE_CHARACTERS = 160  # of an XID's message that are kept


def xids_of(lines: Iterable[str], gpus: Sequence[str], uuids: Sequence[str] = ()) -> list[EarlierXid]:
    """Every XID in these lines of the log, oldest first.

    An XID is resolved by a later line: the driver was loaded, somebody wrote that the GPU was reset, or the driver
    wrote that it asks for no recovery any more.

    Args:
        gpus: PCI addresses as `pci_address` gives them, in the order of the GPUs' numbers.
        uuids: likewise.
    """
    address_of = dict(zip(uuids, gpus, strict=False))
    found: list[EarlierXid] = []
    for line in lines:
        if match := _XID.search(line):
            pci = pci_address(*(int(part, 16) for part in match.groups()[:3]))
            number, message = int(match[4]), _printable(match[5] or "")
            if number == RECOVERY_CHANGED and recovery_in(message) == 0:
                found = _resolved(found, pci, "the driver asks for no recovery since")
            index = gpus.index(pci) if pci in gpus else -1
            found.append(EarlierXid(gpu=index, pci=pci, xid=number, message=message))
        elif DRIVER_LOADED in line:
            found = _resolved(found, "", "the driver was loaded since")
        elif reset := _RESET.search(line):
            found = _resolved(found, address_of.get(reset[1], reset[1]), "the GPU was reset since")
    return found


def _resolved(found: Sequence[EarlierXid], pci: str, why: str) -> list[EarlierXid]:
    """These XIDs, those of the GPU at this address resolved; of every GPU where it is empty."""
    return [
        msgspec.structs.replace(xid, resolved=why) if not xid.resolved and pci in ("", xid.pci) else xid
        for xid in found
    ]


def _printable(message: str) -> str:
    """The message without control characters, cut: programs choose their names in it."""
    return "".join(character for character in message if character.isprintable())[:MESSAGE_CHARACTERS]


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
