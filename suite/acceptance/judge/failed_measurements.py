"""Findings of measurements that failed, and check 17: phases end in time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from suite.acceptance.check_table import HANG_GUARD
from suite.acceptance.evidence import Load, MiniatureLaunch, PhaseTiming
from suite.acceptance.findings import CheckFinding, CheckVerdict
from suite.job.events import Status

_RANK_WITH_STACKS = re.compile(r"^rank (\d+):\n(?!no answer)", re.MULTILINE)


def rank_names(ranks: Iterable[int]) -> str:
    """Each rank by its number, comma-separated; empty without any."""
    return ", ".join(f"rank {rank}" for rank in ranks)


def failed_measurement(check: int, failed: Load) -> CheckFinding:
    """The finding of a check whose measurement hung, crashed, ran out of memory or became NaN; its ranks at fault."""
    record = f"; record {failed.record}" if isinstance(failed, MiniatureLaunch) else ""
    return CheckFinding(
        check=check,
        subject=failed.run if isinstance(failed, MiniatureLaunch) else "",
        verdict=CheckVerdict.HANG if failed.status is Status.HANG else CheckVerdict.FAIL,
        status=failed.status,
        part=rank_names(failed.ranks_at_fault),
        evidence=f"{failed.status.value}: {failed.message}{record}",
    )


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
                    part="slow, not hung",
                    evidence=f"still making progress after {phase.seconds:.0f} s, budget {phase.budget_seconds:.0f} s",
                )
            )
    in_time = [phase for phase in phases if phase.outcome not in ("hang", "slow")]
    if in_time:
        longest = max(in_time, key=lambda phase: phase.seconds / phase.budget_seconds)
        used = f"{longest.phase} took {longest.seconds:.0f} s of {longest.budget_seconds:.0f} s"
        evidence = f"{len(in_time)} phases; {used}"
        findings.append(CheckFinding(check=HANG_GUARD, subject="phases", verdict=CheckVerdict.PASS, evidence=evidence))
    return findings


def _recorded_stacks(text: str) -> str:
    """Which ranks have Python stacks in the record; a stopped rank has none."""
    ranks = [int(rank) for rank in _RANK_WITH_STACKS.findall(text)]
    return f"stacks of {rank_names(ranks)} in the record" if ranks else "no rank reported its stacks"
