"""Verdicts on a page: each with a sign and a colour."""

from __future__ import annotations

from suite.job.events import Status
from suite.predict.diagnosis.diagnosis import RunOutcome

_AS_GOOD = (RunOutcome.EXPECTED, RunOutcome.FAST)
_AS_BAD = (RunOutcome.SLOW, RunOutcome.IMPLAUSIBLE, RunOutcome.COUNTED_WRONGLY)
_VERDICTS_OF_MARKS = {
    "✓": ("pass", "PASS", "accepted", *_AS_GOOD),
    "✗": ("fail", "FAIL", "rejected", *_AS_BAD),
    "⚠": ("WARN",),
    "▲": ("regression",),
    "▼": ("improved",),
    "≈": ("noise",),
    "…": ("running",),
    "?": ("inconclusive", "unknown", "INCONCLUSIVE", "INVALID", "not decidable"),
}
MARKS = {verdict: mark for mark, verdicts in _VERDICTS_OF_MARKS.items() for verdict in verdicts}
GOOD = frozenset({"pass", "improved", "PASS", "accepted", *_AS_GOOD})
BAD = frozenset({"fail", "regression", "FAIL", "HANG", "rejected", "execution failed", *_AS_BAD, *Status}) - {Status.OK}


def mark(verdict: str) -> str:
    """A sign that shows the verdict without its colour."""
    return MARKS.get(verdict, "!" if verdict in BAD else "○")


def tone(verdict: str) -> str:
    """good, bad or plain: the class of its colour."""
    return "good" if verdict in GOOD else "bad" if verdict in BAD else "plain"
