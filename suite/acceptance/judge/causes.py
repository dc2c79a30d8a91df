"""Causes of a finding: what each says, how bad it is, and what to do next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from suite.acceptance.findings import joined_evidence
from suite.records.battery import CheckFinding, CheckVerdict, RecoveryAction

# each also helps against whatever the later ones help against
_STRONGEST_FIRST = (
    RecoveryAction.RETURN,
    RecoveryAction.RESEAT,
    RecoveryAction.REBOOT_NODE,
    RecoveryAction.RESET_GPU,
    RecoveryAction.FIX_SETTING,
    RecoveryAction.FREE_NODE,
    RecoveryAction.REPEAT,
    RecoveryAction.NONE,
)
_WORST_FIRST = (CheckVerdict.FAIL, CheckVerdict.WARN, CheckVerdict.NOT_RUN)


class Cause(NamedTuple):
    """Observation about a part of the node; without an action, `suite.acceptance.actions` chooses it."""

    verdict: CheckVerdict
    words: str
    action: RecoveryAction | None = None


def bad(words: str, action: RecoveryAction | None = None) -> Cause:
    """A cause that rejects."""
    return Cause(CheckVerdict.FAIL, words, action)


def minor(words: str, action: RecoveryAction | None = None) -> Cause:
    """A cause that warns."""
    return Cause(CheckVerdict.WARN, words, action)


def unread(words: str) -> Cause:
    """Something that is not known, so that the part cannot pass."""
    return Cause(CheckVerdict.NOT_RUN, words)


def finding_of(
    check: int, subject: str, causes: Sequence[Cause], *, part: str, fine: str, also: str = ""
) -> CheckFinding:
    """The finding of the worst cause, with the evidence of all, worst first; PASS without any.

    Args:
        part: that is at fault where a cause fails or warns.
        fine: the evidence where there is no cause; `also` follows in any case.
    """
    ordered = sorted(causes, key=lambda cause: _WORST_FIRST.index(cause.verdict))
    verdict = ordered[0].verdict if ordered else CheckVerdict.PASS
    at_fault = verdict in (CheckVerdict.FAIL, CheckVerdict.WARN)
    return CheckFinding(
        check=check,
        subject=subject,
        verdict=verdict,
        part=part if at_fault else "",
        evidence=joined_evidence(*(cause.words for cause in ordered), "" if ordered else fine, also),
        action=strongest_action(cause.action for cause in ordered if cause.verdict is verdict) if at_fault else None,
    )


def strongest_action(actions: Iterable[RecoveryAction | None]) -> RecoveryAction | None:
    """The one that helps against all causes; None where no cause has one."""
    known = set(actions)
    return next((action for action in _STRONGEST_FIRST if action in known), None)
