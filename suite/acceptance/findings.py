"""Findings of measurements that failed or are confirmed, and what all findings together say of a node."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from suite.acceptance.check_table import BETWEEN_RANKS, EXACT_FIGURES, HANG_GUARD, NOISY
from suite.acceptance.evidence import LEFT_OUT, NOT_BEGUN, OVER_THE_LIMIT, Load, MiniatureLaunch, PhaseTiming
from suite.job.events import Status
from suite.machine.free_memory import KILLED
from suite.records.battery import CheckFinding, CheckVerdict, Decision

_RANK_WITH_STACKS = re.compile(r"^rank (\d+):\n(?!no answer)", re.MULTILINE)
_NOT_IMPORTED = re.compile(r"\b(?:ImportError|ModuleNotFoundError)\b")
# the kernel's words for what a rank lacks, by part: a disk, shared memory of a container, or a limit is no fault of the
# node. NCCL prints them after its own first line, into the log
_LACKING = {
    "a full disk, or too little of /dev/shm": re.compile(r"No space left on device|Disk quota exceeded"),
    "the limit of open files": re.compile(r"Too many open files"),
    "the limit of processes": re.compile(r"can't start new thread|pthread_create failed|Thread creation failed"),
    "a file system that cannot be written": re.compile(r"Read-only file system"),
}
TO_THE_BIT = "to the bit"  # how the subjects end whose contents are compared, in checks that clocks feed too
TIME_LIMIT = "time limit"  # the part of what the battery's limit left unmeasured
NOT_HUNG = "slow, not hung"  # the part of a phase that took too long
PRODUCTS = "verified products"  # how the subjects begin whose clocks are judged, in the check of the soak's contents


_MEASURED = (CheckVerdict.PASS, CheckVerdict.WARN, CheckVerdict.FAIL)


def not_run(check: int, why: str, subject: str = "") -> CheckFinding:
    """The finding that a check did not run, and why."""
    return CheckFinding(check=check, subject=subject, verdict=CheckVerdict.NOT_RUN, evidence=why)


def decision(findings: Sequence[CheckFinding]) -> Decision:
    """The decision that follows from all findings.

    In this order, the most certain decision first:
        rejected            a check failed on what it measured of the node, see `convicts`
        execution failed    a launch hung, crashed, ran out of memory or became NaN, and nobody else explains it
        not decidable       the environment is invalid, a check is inconclusive or failed for what else can explain it,
                            or nothing was measured
        accepted            something was measured, and all of it passes, with warnings perhaps
    A check that did not run never counts as passed. It prevents no acceptance either: a CPU has no ECC counters.
    """
    verdicts = [finding.verdict for finding in findings]
    if any(convicts(finding) for finding in findings):
        return Decision.REJECTED
    ended_badly = [finding for finding in findings if finding.status is not Status.OK]
    if (
        any(finding.verdict is not CheckVerdict.INCONCLUSIVE for finding in ended_badly)
        or CheckVerdict.HANG in verdicts
    ):
        return Decision.EXECUTION_FAILED
    if not {CheckVerdict.INVALID, CheckVerdict.INCONCLUSIVE, CheckVerdict.FAIL}.isdisjoint(verdicts):
        return Decision.UNDECIDED
    if CheckVerdict.PASS in verdicts or CheckVerdict.WARN in verdicts:
        return Decision.ACCEPTED
    return Decision.UNDECIDED


def convicts(finding: CheckFinding) -> bool:
    """Whether a failure is evidence about the node.

    Software alone decides how much work a miniature does, and a file system or the network may be why a phase is slow:
    what is slow of the node fails in a check of its own.
    """
    failed = finding.verdict is CheckVerdict.FAIL and finding.status is Status.OK
    return failed and finding.check not in (EXACT_FIGURES, HANG_GUARD)


def rests_on_clocks(finding: CheckFinding) -> bool:
    """Whether the finding rests on clocks, which other processes can disturb.

    Contents of messages are exact. Of the hang guard, only that a phase is slow rests on clocks, and of the soak, how
    fast its products were.
    """
    slow = finding.check == HANG_GUARD and finding.verdict is CheckVerdict.FAIL
    return (
        slow
        or finding.subject.startswith(PRODUCTS)
        or (finding.check in NOISY and not finding.subject.endswith(TO_THE_BIT))
    )


def confirmed(first: Sequence[CheckFinding], *rounds: Sequence[CheckFinding]) -> list[CheckFinding]:
    """The first findings with what rounds of re-runs, at most three, made of them.

    A failure that rests on clocks needs two of three measurements: it stays one where a re-run fails too. Where two
    re-runs pass, it is a warning with their values; where one passes, or none ended well, it is inconclusive. What
    others made invalid counts as no measurement. An exact failure stays one; the evidence says whether the re-run
    repeated it. A re-run that did not end well is among the findings itself.
    """
    repeated: dict[tuple[int, str], list[CheckFinding]] = {}
    failed: list[CheckFinding] = []
    for finding in (finding for again in rounds for finding in again):
        if finding.status is Status.OK:
            repeated.setdefault(finding.key, []).append(finding)
        elif finding not in first and finding not in failed:
            failed.append(finding)
    why_open = "no re-run of it ended well" if failed else "no time was left for a re-run"
    findings = [_confirmed(finding, repeated.get(finding.key, []), why_open) for finding in first]
    return sorted([*findings, *failed], key=lambda finding: finding.check)


def _confirmed(finding: CheckFinding, repeated: Sequence[CheckFinding], why_open: str) -> CheckFinding:
    """One finding and those of its re-runs, if there were some."""
    is_bad = finding.verdict in (CheckVerdict.FAIL, CheckVerdict.HANG)
    if repeated and (finding.verdict is CheckVerdict.INVALID or finding.part == TIME_LIMIT):
        return _of_most(finding, repeated)
    if not is_bad:
        return finding
    if rests_on_clocks(finding) and finding.verdict is CheckVerdict.FAIL and finding.status is Status.OK:
        if not repeated:
            return _open(finding, f"failed once{_at_ratio(finding)}; {why_open}")
        return _of_most(finding, repeated)
    if not repeated:
        return finding
    second = repeated[0]
    again = f"confirmed by a re-run{_at_ratio(second)}"
    if second.verdict is not CheckVerdict.FAIL:
        again = f"not repeated by a re-run ({second.verdict.value}): intermittent"
    return msgspec.structs.replace(finding, evidence=joined_evidence(finding.evidence, again))


def _of_most(finding: CheckFinding, repeated: Sequence[CheckFinding]) -> CheckFinding:
    """The finding of the majority of up to four measurements by clocks.

    Where ranks are compared with each other, only failures of the same rank agree: noise slows down one rank now and
    another one then.
    """
    measured = [one for one in (finding, *repeated) if one.verdict in _MEASURED]
    bad = [one for one in measured if one.verdict is CheckVerdict.FAIL]
    if finding.check in BETWEEN_RANKS and bad:
        most, _ = Counter(one.part for one in bad).most_common(1)[0]
        bad = [one for one in bad if one.part == most]
    good = [one for one in measured if one not in bad]
    if len(bad) > 1:
        again = f"confirmed by a re-run{_at_ratio(bad[1])}" + (
            "" if not good else f", not in another{_at_ratio(good[0])}"
        )
        return msgspec.structs.replace(bad[0], evidence=joined_evidence(bad[0].evidence, again))
    if not bad:
        evidence = "" if not good else joined_evidence(good[-1].evidence, "measured again")
        return msgspec.structs.replace(good[-1], evidence=evidence) if good else finding
    if not rests_on_clocks(bad[0]):
        return bad[0]
    if len(good) > 1:
        ratios = " and".join(filter(None, map(_at_ratio, good)))
        evidence = joined_evidence(
            good[-1].evidence or bad[0].evidence, f"failed once{_at_ratio(bad[0])}, not in two more{ratios}"
        )
        return msgspec.structs.replace(good[-1], verdict=CheckVerdict.WARN, part=bad[0].part, evidence=evidence)
    other = good[0] if good else repeated[-1]
    second = f"not in the re-run{_at_ratio(other)} ({other.verdict.value})"
    return msgspec.structs.replace(_open(bad[0], f"failed once{_at_ratio(bad[0])}, {second}"), part="")


def _open(finding: CheckFinding, why: str) -> CheckFinding:
    evidence = joined_evidence(finding.evidence, why)
    return msgspec.structs.replace(finding, verdict=CheckVerdict.INCONCLUSIVE, evidence=evidence)


def joined_evidence(*clauses: str) -> str:
    """The clauses in one line; empty ones are left out."""
    return "; ".join(clause for clause in clauses if clause)


def _at_ratio(finding: CheckFinding) -> str:
    return "" if finding.ratio is None else f" at {finding.ratio:.3f}"


def rank_names(ranks: Iterable[int]) -> str:
    """Each rank by its number, comma-separated; empty without any."""
    return ", ".join(f"rank {rank}" for rank in ranks)


def failed_measurement(check: int, failed: Load) -> CheckFinding:
    """The finding of a check whose measurement hung, crashed, ran out of memory or became NaN; its ranks at fault.

    A rank that could not import a package, met a full disk or a limit, or was killed for want of memory says nothing
    about the node, nor does want of time.
    """
    if failed.status is Status.INTERRUPTED:
        return CheckFinding(
            check=check,
            subject="",
            verdict=CheckVerdict.INCONCLUSIVE,
            part=TIME_LIMIT,
            evidence=f"not measured: {failed.message}",
        )
    lacking = _lacking(failed)
    bad = CheckVerdict.HANG if failed.status is Status.HANG else CheckVerdict.FAIL
    record = f"; record {failed.record}" if isinstance(failed, MiniatureLaunch) else ""
    return CheckFinding(
        check=check,
        subject=failed.run if isinstance(failed, MiniatureLaunch) else "",
        verdict=CheckVerdict.INCONCLUSIVE if lacking else bad,
        status=failed.status,
        part=lacking or rank_names(failed.ranks_at_fault),
        evidence=f"{failed.status.value}: {failed.message}{record}",
    )


def _lacking(failed: Load) -> str:
    """Package, room or limit that the ranks lacked though the node is well; empty where they lacked none."""
    if failed.status is Status.OUT_OF_MEMORY and KILLED in failed.message:
        return "memory of the host, or of its container"
    if failed.status is not Status.CRASHED:
        return ""
    if _NOT_IMPORTED.search(failed.message):
        return "a package that does not import"
    said = f"{failed.message}\n{failed.stacks}"
    return next((part for part, words in _LACKING.items() if words.search(said)), "")


def guard_findings(phases: Sequence[PhaseTiming], *, disturbed: bool) -> list[CheckFinding]:
    """Check 17: one finding for each phase that hung or was slow; one for all that ended in time."""
    findings = []
    for phase in phases:
        if phase.outcome == "hang":
            findings.append(
                CheckFinding(
                    check=HANG_GUARD,
                    subject=phase.phase,
                    verdict=CheckVerdict.HANG,
                    status=Status.HANG,
                    part=rank_names(phase.ranks_at_fault) or "unknown rank: all ranks made equal progress",
                    evidence=f"{phase.message}; {_recorded_stacks(phase.stacks)}",
                )
            )
        elif phase.outcome == "slow":
            findings.append(
                CheckFinding(
                    check=HANG_GUARD,
                    subject=phase.phase,
                    verdict=CheckVerdict.INCONCLUSIVE if disturbed else CheckVerdict.FAIL,
                    part=NOT_HUNG,
                    evidence=f"still making progress after {phase.seconds:.0f} s, budget {phase.budget_seconds:.0f} s",
                )
            )
    in_time = [phase for phase in phases if phase.outcome not in ("hang", "slow", LEFT_OUT, *OVER_THE_LIMIT)]
    if in_time:
        longest = max(in_time, key=lambda phase: phase.seconds / phase.budget_seconds)
        used = f"{longest.phase} took {longest.seconds:.0f} s of {longest.budget_seconds:.0f} s"
        evidence = f"{len(in_time)} phases; {used}"
        findings.append(CheckFinding(check=HANG_GUARD, subject="phases", verdict=CheckVerdict.PASS, evidence=evidence))
    return findings


def unmeasured_findings(phases: Sequence[PhaseTiming], earlier: Sequence[CheckFinding]) -> list[CheckFinding]:
    """A finding for each check that nothing measured: its phase was left out, or ended by its budget or by the limit.

    Where another phase measured it, or this one before its end, there is a finding already. What was left out did not
    run; the others leave the check open.
    """
    findings = []
    for phase in phases:
        known = {
            finding.check
            for finding in earlier
            if finding.verdict is not CheckVerdict.NOT_RUN and finding.subject.startswith(phase.subject)
        }
        left_out = phase.outcome == LEFT_OUT
        ended = "" if left_out or phase.outcome == NOT_BEGUN else f" after {phase.seconds:.0f} s"
        why = f"{phase.phase} {phase.outcome}{ended}: {phase.message}, {phase.predicted_seconds:.0f} s needed"
        missing = [check for check in phase.checks if check not in known]
        if left_out:
            findings += [not_run(check, why, phase.subject) for check in missing]
            continue
        findings += [
            CheckFinding(
                check=check, subject=phase.subject, verdict=CheckVerdict.INCONCLUSIVE, part=TIME_LIMIT, evidence=why
            )
            for check in missing
        ]
    return findings


def _recorded_stacks(text: str) -> str:
    """Which ranks have Python stacks in the record; a stopped rank has none."""
    ranks = [int(rank) for rank in _RANK_WITH_STACKS.findall(text)]
    return f"stacks of {rank_names(ranks)} in the record" if ranks else "no rank reported its stacks"
