"""The table of XIDs, and what the driver's own words say of them."""

from __future__ import annotations

import pynvml

from suite.acceptance.xid_table import RECOVERIES, Severity, is_fatal, recovery, recovery_in, xid_entry, xids
from suite.records.battery import RecoveryAction

PROGRAMS = {13, 31, 43, 45, 68, 69}


def test_every_entry_has_an_action_that_its_severity_asks_for():
    harmless = {RecoveryAction.NONE, RecoveryAction.REPEAT}
    known = {*RecoveryAction}
    wrong = {
        number: xid
        for number, xid in xids().items()
        if xid.action not in known
        or (xid.severity is Severity.PROGRAM) != (xid.action == RecoveryAction.NONE)
        or (xid.severity in (Severity.FATAL, Severity.LINK, Severity.RECOVERY) and xid.action in harmless)
    }
    assert wrong == {}
    assert {number for number, xid in xids().items() if xid.severity is Severity.PROGRAM} >= PROGRAMS
    assert xid_entry(9999).severity is Severity.WARNING


def test_recoveries_are_those_of_the_library():
    names = [name for name in dir(pynvml) if name.startswith("NVML_GPU_RECOVERY_ACTION_")]
    assert {getattr(pynvml, name) for name in names} == set(RECOVERIES)
    assert {one.action for one in RECOVERIES.values()} <= {*RecoveryAction}
    assert "recovery 99" in recovery(99).words


def test_the_drivers_words_decide_where_the_number_does_not():
    changed = "GPU recovery action changed from 0x0 (None) to {}"
    cases = {
        (48, ""): True,
        (79, "pid=1, GPU has fallen off the bus."): True,
        (31, "MMU Fault"): False,
        (63, ""): False,
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 13 (0x004505c6)"): True,
        (145, "RLW_REMAP Nonfatal XC0 i1 Link 09 (0x00000002)"): False,
        (145, "RLW_REMAP Non-fatal XC0 i1 Link 09 (0x00000002)"): False,
        (150, ""): True,
        (154, changed.format("0x1 (GPU Reset Required)")): True,
        (154, changed.format("0x0 (None)")): False,
        (154, ""): True,
        (9999, "Fatal"): False,
    }
    assert {case: fatal for case in cases if (fatal := is_fatal(*case)) != cases[case]} == {}
    assert recovery_in(changed.format("0x4 (Drain and Reset)")) == 4
    assert recovery_in("another message") is None
