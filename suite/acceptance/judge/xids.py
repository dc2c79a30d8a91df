"""XIDs since the machine started, and the recovery that the driver asks for: how they are judged."""

from __future__ import annotations

from collections.abc import Sequence

from suite.acceptance.check_table import ERRORS
from suite.acceptance.findings import not_run
from suite.acceptance.gpu_evidence import EarlierXid, GpuHealth, Health
from suite.acceptance.judge.causes import Cause, bad, finding_of, minor
from suite.acceptance.xid_table import RECOVERY_CHANGED, Severity, is_fatal, recovery, recovery_in, xid_entry
from suite.records.battery import CheckFinding, RecoveryAction

SUBJECT = "earlier XIDs"


def is_of_programs(number: int) -> bool:
    """Whether a user's program can cause this XID."""
    return xid_entry(number).severity is Severity.PROGRAM


def load_xid_causes(gpu: GpuHealth, logged: Sequence[EarlierXid]) -> list[Cause]:
    """XIDs under the battery's own load, whose programs cause none: they reject, unless they are of programs.

    Args:
        logged: in the kernel's log since the battery began, of any GPU; those that the library did not report count
            too. The driver's words may say that an error of a link is not fatal, or that no recovery is asked for.
    """
    messages: dict[int, list[str]] = {number: [] for number in gpu.xids}
    for xid in logged:
        if xid.gpu == gpu.index:
            messages.setdefault(xid.xid, []).append(xid.message)
    return [_load_cause(number, words) for number, words in messages.items()]


def _load_cause(number: int, messages: Sequence[str]) -> Cause:
    entry = xid_entry(number)
    if entry.severity is Severity.PROGRAM:
        return minor(f"XID {number} (of a program)", RecoveryAction.NONE)
    words = f"XID {number} ({entry.name})"
    by_words = entry.severity in (Severity.LINK, Severity.RECOVERY) and messages
    if by_words and not any(is_fatal(number, message) for message in messages):
        return minor(f"{words}, not fatal", RecoveryAction.NONE)
    return bad(words, _action(number, messages[-1] if messages else ""))


def recovery_cause(asked: int | None) -> list[Cause]:
    """The recovery that the driver asks for; none where it asks for none, or does not say."""
    if not asked:
        return []
    return [bad(f"the driver asks to {recovery(asked).words}", RecoveryAction(recovery(asked).action))]


def earlier_xid_finding(health: Health) -> CheckFinding:
    """XIDs since the machine started, before the battery began.

    One that needs a recovery, by NVIDIA's catalog, rejects until the GPU has had it. Those of programs and those that
    the GPU recovered from warn.
    """
    if health.why_no_xids:
        return not_run(ERRORS, health.why_no_xids, SUBJECT)
    recovered = _recovered(health)
    causes = dict.fromkeys(
        _earlier_cause(xid, xid.resolved or recovered.get(xid.pci, "")) for xid in health.earlier_xids
    )
    worst = min((cause.verdict for cause in causes), key=["FAIL", "WARN"].index, default=None)
    names = {cause.words.partition(": XID ")[0] for cause in causes if cause.verdict == worst}
    return finding_of(
        ERRORS, SUBJECT, list(causes), part=", ".join(sorted(names)), fine="none since the machine started"
    )


def _earlier_cause(xid: EarlierXid, resolved: str) -> Cause:
    name = f"GPU {xid.gpu}" if xid.gpu >= 0 else f"a GPU at {xid.pci}"
    if is_of_programs(xid.xid):
        return minor(f"{name}: XID {xid.xid} (of a program)", RecoveryAction.NONE)
    words = f"{name}: XID {xid.xid} ({_meaning(xid)})"
    if resolved and _action(xid.xid, xid.message) is not RecoveryAction.RETURN:
        return minor(f"{words}, but {resolved}", RecoveryAction.NONE)
    if is_fatal(xid.xid, xid.message):
        return bad(words, _action(xid.xid, xid.message))
    spared = xid_entry(xid.xid).severity is not Severity.WARNING  # by the driver's own words
    return minor(words, RecoveryAction.NONE if spared else _action(xid.xid, xid.message))


def _meaning(xid: EarlierXid) -> str:
    asked = recovery_in(xid.message) if xid.xid == RECOVERY_CHANGED else None
    return xid_entry(xid.xid).name if asked is None else f"{xid_entry(xid.xid).name}: {recovery(asked).words}"


def _action(number: int, message: str) -> RecoveryAction:
    asked = recovery_in(message) if number == RECOVERY_CHANGED else None
    return RecoveryAction(xid_entry(number).action if asked is None else recovery(asked).action)


def _recovered(health: Health) -> dict[str, str]:
    """By PCI address, why a GPU has had its recovery: the driver asked for one, and asks for none now."""
    asking = {
        xid.pci
        for xid in health.earlier_xids
        if xid.xid == RECOVERY_CHANGED and recovery_in(xid.message) not in (None, 0)
    }
    why = "the driver asks for no recovery any more"
    return {gpu.pci: why for gpu in health.gpus if gpu.pci in asking and gpu.before.recovery == gpu.after.recovery == 0}
