"""NVIDIA's XIDs and the recoveries that its driver asks for: names, severities, and what to do next."""

from __future__ import annotations

import enum
import re
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from reference_runs.recorded_file import record_of

TABLE = Path(__file__).parent / "xids.toml"
RECOVERY_CHANGED = 154  # the XID that names the recovery that the driver asks for
# "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
_CHANGED_TO = re.compile(r"changed from .* to 0x([0-9a-fA-F]{1,2})\b")
_LINK_ERROR = re.compile(r"\b(Fatal|Non-?fatal)\b", re.IGNORECASE)


class Severity(enum.StrEnum):
    """An XID of the table, as xids.toml explains it."""

    FATAL = "fatal"
    LINK = "link"
    RECOVERY = "recovery"
    WARNING = "warning"
    PROGRAM = "program"


class Xid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entry of the table."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    severity: Severity
    action: Annotated[str, msgspec.Meta(min_length=1)]


class XidTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file xids.toml."""

    source: str
    xid: dict[str, Xid]


@cache
def xids() -> dict[int, Xid]:
    """Every XID of the table by its number.

    Raises:
        InputError: unreadable file, broken TOML, missing, unknown or wrongly typed key.
    """
    return {int(number): xid for number, xid in record_of(TABLE, XidTable, what="XIDs").xid.items()}


def xid_entry(number: int) -> Xid:
    """The XID's entry; one that is not in the table warns."""
    return xids().get(number, Xid(name="not in the table", severity=Severity.WARNING, action="repeat"))


class Recovery(msgspec.Struct, frozen=True):
    """A recovery that the driver asks for, in words, and what to do next."""

    words: str
    action: str


# NVML's nvmlDeviceGpuRecoveryAction_t, which XID 154 has too
RECOVERIES = {
    0: Recovery("none", "none"),
    1: Recovery("reset the GPU", "reset the GPU"),
    2: Recovery("reboot the node", "reboot the node"),
    3: Recovery("end all traffic between GPUs", "free the node"),
    4: Recovery("end all programs on the GPU and reset it", "reset the GPU"),
    5: Recovery("recover the IMEX domain", "fix the setting"),
    6: Recovery("reset the GPU's bus", "reset the GPU"),
    7: Recovery("reboot the whole system", "reboot the node"),
}


def recovery(number: int) -> Recovery:
    """The recovery with this number; an unknown one is named by it."""
    return RECOVERIES.get(number, Recovery(f"recovery {number}, which this suite does not know", "reboot the node"))


def recovery_in(message: str) -> int | None:
    """The recovery that an XID 154 says is asked for now; None where it says none."""
    found = _CHANGED_TO.search(message)
    return None if found is None else int(found[1], 16)


def is_fatal(number: int, message: str) -> bool:
    """Whether the GPU needs a recovery after this XID.

    Args:
        message: the driver's text after the number.
    """
    severity = xid_entry(number).severity
    if severity is Severity.LINK:
        said = _LINK_ERROR.search(message)
        return said is None or said[1].lower() == "fatal"
    if severity is Severity.RECOVERY:
        return recovery_in(message) != 0
    return severity is Severity.FATAL
