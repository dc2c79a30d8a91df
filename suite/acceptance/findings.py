"""What a check can find, and what all findings together say of a node."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from suite.acceptance.check_table import HANG_GUARD, NOISY
from suite.job.events import Status

TO_THE_BIT = "to the bit"  # how the subjects end whose contents are compared, in checks that clocks feed too


class Verdict(enum.StrEnum):
    """Of one finding. Only PASS and WARN say that something was measured and is good enough."""

    PASS = "PASS"
    WARN = "WARN"
    FAIL = "FAIL"
    INVALID = "INVALID"
    NOT_RUN = "NOT RUN"
    HANG = "HANG"
    INCONCLUSIVE = "INCONCLUSIVE"


class Decision(enum.StrEnum):
    """Of all findings: what an operator acts on."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNDECIDED = "not decidable"
    EXECUTION_FAILED = "execution failed"


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier battery of this node: its identity and when it ended, in seconds since 1970."""

    battery: str
    finished: float


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One check's verdict on one part of the node.

    Args:
        check: number of the check.
        subject: what was looked at: a miniature, a rank, a link.
        measured, expected: in `unit`; None where the check has no number.
        ratio: measured over expected; `warn` and `fail` are thresholds of it.
        source: where the expected value comes from.
        part: at fault, for whoever exchanges it; empty where nothing is.
        evidence: what the verdict rests on, in one line.
        status: how the execution behind it ended, apart from the verdict.
        least_detectable: smallest relative slowdown that this check, with as many launches and their spread, would
            reject in 9 of 10 cases; None where the check has no statistics.
        spread: standard deviation of the logarithms of the launches behind `measured`; None likewise.
        terms: of a step, what each term measured beyond its prediction, as share of the predicted step; empty likewise.
        siblings: names the value under which other batteries of this node and of the fleet compare it; empty: not
            compared.
        good_until: the newest battery of this node in which this check passed on this subject; None: none is known, or
            nothing is bad now.
        bad_since: the oldest one behind that in which it was as bad as now, without one that passed between; None: it
            is bad for the first time.
    """

    check: int
    subject: str
    verdict: Verdict
    measured: float | None = None
    expected: float | None = None
    unit: str = ""
    ratio: float | None = None
    warn: float | None = None
    fail: float | None = None
    source: str = ""
    part: str = ""
    evidence: str = ""
    status: Status = Status.OK
    least_detectable: float | None = None
    spread: float | None = None
    terms: dict[str, float] = {}
    siblings: str = ""
    good_until: Past | None = None
    bad_since: Past | None = None

    @property
    def key(self) -> tuple[int, str]:
        """What a finding and the one of its confirming re-run share."""
        return self.check, self.subject


_WORST_FIRST = (
    Verdict.FAIL,
    Verdict.HANG,
    Verdict.INVALID,
    Verdict.INCONCLUSIVE,
    Verdict.WARN,
    Verdict.PASS,
    Verdict.NOT_RUN,
)


def worst_first(findings: Sequence[Finding]) -> list[Finding]:
    """The findings with those first that an operator must see; each kind in the order of the checks."""
    return sorted(findings, key=lambda finding: (_WORST_FIRST.index(finding.verdict), finding.check))


def decision(findings: Sequence[Finding]) -> Decision:
    """What all findings together say.

    In this order, because each word is more certain than those behind it:
        rejected            a check failed on what it measured
        execution failed    a launch hung, crashed, ran out of memory or became NaN
        not decidable       the environment is invalid, a check is inconclusive, or nothing was measured
        accepted            something was measured, and all of it passes, with warnings perhaps
    What did not run never counts as passed; it does not stand in the way either, because a CPU has no ECC counters.
    """
    verdicts = [finding.verdict for finding in findings]
    if any(finding.verdict is Verdict.FAIL and finding.status is Status.OK for finding in findings):
        return Decision.REJECTED
    if Verdict.HANG in verdicts or any(finding.status is not Status.OK for finding in findings):
        return Decision.EXECUTION_FAILED
    if Verdict.INVALID in verdicts or Verdict.INCONCLUSIVE in verdicts:
        return Decision.UNDECIDED
    if Verdict.PASS in verdicts or Verdict.WARN in verdicts:
        return Decision.ACCEPTED
    return Decision.UNDECIDED


def is_noise(finding: Finding) -> bool:
    """Whether clocks feed the finding, so that other work on the machine can change it; contents are exact.

    Of the hang guard's, that a phase is slow: what hangs does so at any speed.
    """
    slow = finding.check == HANG_GUARD and finding.verdict is Verdict.FAIL
    return slow or (finding.check in NOISY and not finding.subject.endswith(TO_THE_BIT))


def confirmed(first: Sequence[Finding], again: Sequence[Finding]) -> list[Finding]:
    """The first findings, with failures that a re-run did not repeat taken back.

    A failure that clocks feed stands where the re-run fails too; otherwise it becomes inconclusive, and both ratios are
    its evidence. What is exact is not noise: its failures stand, and the evidence says whether the re-run saw them
    again. A failure of clocks that was not run again is inconclusive too, unless the launch itself ended badly.
    A re-run that did not end well confirms nothing; what it ended with is among the findings.
    """
    repeated = {finding.key: finding for finding in again if finding.status is Status.OK}
    broken = [finding for finding in again if finding.status is not Status.OK and finding not in first]
    why_open = "no re-run of it ended well" if broken else "no time was left for a re-run"
    out = []
    for finding in first:
        other = repeated.get(finding.key)
        once = finding.verdict is Verdict.FAIL and is_noise(finding) and finding.status is Status.OK
        if finding.verdict not in (Verdict.FAIL, Verdict.HANG) or (other is None and not once):
            out.append(finding)
            continue
        if other is None:
            words = f"failed once{_at(finding)}; {why_open}"
            finding = msgspec.structs.replace(finding, verdict=Verdict.INCONCLUSIVE)
        elif other.verdict is Verdict.FAIL:
            words = f"confirmed by a re-run{_at(other)}"
        elif is_noise(finding):
            words = f"failed once{_at(finding)}, not in the re-run{_at(other)} ({other.verdict.value})"
            finding = msgspec.structs.replace(finding, verdict=Verdict.INCONCLUSIVE, part="")
        else:
            words = f"not repeated by a re-run ({other.verdict.value}): intermittent"
        out.append(
            msgspec.structs.replace(finding, evidence="; ".join(part for part in (finding.evidence, words) if part))
        )
    return sorted([*out, *broken], key=lambda finding: finding.check)


def _at(finding: Finding) -> str:
    return "" if finding.ratio is None else f" at {finding.ratio:.3f}"
