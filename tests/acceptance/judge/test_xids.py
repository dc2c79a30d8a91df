"""XIDs before the battery reject by their severity until the GPU has had its recovery, and none of a program does."""

from __future__ import annotations

import msgspec
import pytest

from suite.acceptance.gpu_evidence import EarlierXid
from suite.acceptance.judge.gpu_health import gpu_findings
from suite.acceptance.kernel_log import xids_of
from suite.acceptance.xid_table import Severity, xids
from tests.support.nvml import health_of

GPUS = ["0000:18:00.0", "0000:19:00.0"]
LOADED = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.124.06"
CHANGED = "GPU recovery action changed from 0x0 (None) to {}"


@pytest.fixture
def finding(monkeypatch):
    """A function: the finding of earlier XIDs of two GPUs, the second with faults, with these lines in the log."""

    def of(*lines, why="", **second):
        health = health_of(monkeypatch, **second)
        earlier = xids_of(lines, GPUS)
        return gpu_findings(msgspec.structs.replace(health, earlier_xids=earlier, why_no_xids=why), loaded=(0, 1))[-1]

    return of


def line(xid, message="", bus=0x19):
    return f"NVRM: Xid (PCI:0000:{bus:02x}:00): {xid}, {message}"


REJECTED = {48, 54, 62, 64, 79, 95, 119, 120, 140, 143, *range(144, 151), 154}


def test_every_xid_of_the_table_rejects_by_its_severity_alone_and_names_its_gpu(finding):
    wrong = {}
    healthy = finding()
    assert (healthy.verdict, healthy.evidence) == ("PASS", "none since the machine started")
    for number, xid in xids().items():
        found = finding(line(number))
        expected = "FAIL" if number in REJECTED else "WARN"
        named = found.evidence.startswith(f"GPU 1: XID {number} (")
        if (found.verdict, found.part, named) != (expected, "GPU 1", True) or (
            xid.severity is not Severity.RECOVERY and found.action != xid.action
        ):
            wrong[number] = found
    assert wrong == {}


def test_messages_resolutions_and_parts_of_earlier_xids(finding):
    nonfatal = "RLW_REMAP Nonfatal XC0 i1 Link 09 (0x00000002)"
    reset, reboot = CHANGED.format("0x1 (GPU Reset Required)"), CHANGED.format("0x2 (Node Reboot Required)")
    cases = {
        "nonfatal": ([line(145, nonfatal)], {}, ("WARN", "GPU 1", "none")),
        "reset asked for": ([line(154, reset)], {"recovery": 1}, ("FAIL", "GPU 1", "reset the GPU")),
        "reboot asked for": ([line(154, reboot)], {"recovery": 2}, ("FAIL", "GPU 1", "reboot the node")),
        "asked for, and not any more": ([line(95), line(154, reset)], {}, ("WARN", "GPU 1", "none")),
        "never asked for": ([line(95)], {}, ("FAIL", "GPU 1", "reset the GPU")),
        "driver loaded": ([line(79), LOADED], {}, ("WARN", "GPU 1", "none")),
        "driver loaded before": ([LOADED, line(79)], {}, ("FAIL", "GPU 1", "reboot the node")),
        "remapping failed": ([line(64), LOADED], {}, ("FAIL", "GPU 1", "return")),
        "not listed": ([line(999)], {}, ("WARN", "GPU 1", "repeat")),
        "the worst names the part": ([line(31, bus=0x18), line(79)], {}, ("FAIL", "GPU 1", "reboot the node")),
        "of two GPUs": ([line(13, bus=0x18), line(31)], {}, ("WARN", "GPU 0, GPU 1", "none")),
        "of no GPU of today": ([line(79, bus=0xFF)], {}, ("FAIL", "a GPU at 0000:ff:00.0", "reboot the node")),
    }
    wrong = {}
    for name, (lines, second, expected) in cases.items():
        found = finding(*lines, **second)
        if (found.verdict, found.part, found.action) != expected:
            wrong[name] = found
    assert wrong == {}


def test_under_load_the_log_has_what_the_library_does_not_say(monkeypatch):
    """Its events have a number alone, and some drivers offer none."""
    nonfatal, none = "RLW_REMAP Nonfatal XC0 i1 Link 09", CHANGED.format("0x0 (None)")
    cases = {
        "by the library alone": ([79], [], ("FAIL", "XID 79 (GPU has fallen off the bus)")),
        "in the log alone": ([], [line(79)], ("FAIL", "XID 79 (GPU has fallen off the bus)")),
        "of another GPU": ([], [line(79, bus=0x18)], ("PASS", "no counter changed")),
        "of a program": ([], [line(13)], ("WARN", "XID 13 (of a program)")),
        "fatal or not is not said": ([145], [], ("FAIL", "XID 145 (NVLink: RLW error)")),
        "nonfatal": ([145], [line(145, nonfatal)], ("WARN", "XID 145 (NVLink: RLW error), not fatal")),
        "one of two": ([145], [line(145, nonfatal), line(145, "Fatal")], ("FAIL", "XID 145 (NVLink: RLW error)")),
        "no recovery": ([154], [line(154, none)], ("WARN", "XID 154 (recovery action changed), not fatal")),
    }
    wrong = {}
    for name, (events, lines, expected) in cases.items():
        health = health_of(monkeypatch, xids=events)
        health = msgspec.structs.replace(health, load_xids=xids_of(lines, GPUS))
        (found,) = (one for one in gpu_findings(health, loaded=(0, 1)) if (one.check, one.subject) == (13, "GPU 1"))
        if (found.verdict, found.evidence) != expected:
            wrong[name] = found
    assert wrong == {}


def test_a_log_that_cannot_be_read_passes_nothing_and_batteries_before_8_4_are_judged(finding):
    found = finding(line(79), why="the kernel's log cannot be read: Operation not permitted")
    assert (found.verdict, found.evidence) == ("NOT RUN", "the kernel's log cannot be read: Operation not permitted")
    stored = msgspec.json.decode(b'{"gpu": 1, "pci": "0000:19:00.0", "xid": 79}', type=EarlierXid)
    assert (stored.message, stored.resolved) == ("", "")
