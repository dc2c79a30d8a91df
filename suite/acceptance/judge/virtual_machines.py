"""Failures of a virtual machine that other guests of its host may explain: they warn, or decide nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from suite.acceptance import check_table as check
from suite.acceptance.evidence import MicroMeasurements, MiniatureLaunch
from suite.acceptance.findings import joined_evidence, rests_on_clocks
from suite.acceptance.judge.launches import RankInLaunches, rank_in_launches
from suite.acceptance.judge.rates import (
    BY_TURNS,
    OF_ALL,
    PRODUCTS,
    PRODUCTS_BY_TURNS,
    judged_rank,
    needs_launches,
    rates_at_moments,
    speeds_by_turns,
)
from suite.acceptance.judge.step_time import OF_CPU_SPEED
from suite.job.events import Status
from suite.records.battery import CheckFinding, CheckVerdict

# of the expected rate of messages between ranks of a virtual machine's CPU, below which they fail: those of good, idle
# ones had 0.51 to 0.64 of their past now and then, where a limited loopback has a hundredth. A judgement: half of it
LEAST_OF_MESSAGES = 0.25
OF_GUESTS = "of a virtual machine, whose processors and memory other guests may share"


def borne_out(
    finding: CheckFinding,
    micro: MicroMeasurements,
    of_micro: Sequence[CheckFinding],
    launches: Sequence[MiniatureLaunch],
) -> CheckFinding:
    """Slow products of a virtual machine only warn: its processors may be halves of cores, which other guests use.

    A rank that is slower than the others, at once or by turns, fails where launches bear it out: it is late in them
    too, and not by chance. Without launches it fails where its products are slower at once and by turns. Memory, which
    other guests use too, fails where what ranks measured at several moments bears it out.

    Args:
        of_micro: all findings of the measurements.
    """
    if finding.verdict is not CheckVerdict.FAIL or not micro.virtual or not rests_on_clocks(finding):
        return finding
    if finding.check == check.MATRIX:
        why = "of a virtual machine, whose processors other guests may share"
    elif finding.check == check.MEMORY:
        why = _why_memory_not_slow(finding, micro, of_micro)
        if not why:
            return finding
    elif needs_launches(finding, virtual=micro.virtual):
        rank = int(finding.part.rpartition(" ")[2])
        in_launches = rank_in_launches(launches, rank)
        why = _why_not_slow(rank, in_launches, micro, by_turns=finding.subject in (BY_TURNS, PRODUCTS_BY_TURNS))
        if not why:
            return finding
    else:
        return finding
    evidence = joined_evidence(finding.evidence, why)
    return msgspec.structs.replace(finding, verdict=CheckVerdict.WARN, evidence=evidence)


def _why_not_slow(rank: int, in_launches: RankInLaunches | None, micro: MicroMeasurements, *, by_turns: bool) -> str:
    """Why a virtual machine's slow rank does not count as slow; empty where it does."""
    if in_launches is None and by_turns:
        return "of a virtual machine, and no launches say whether the rank is late"
    if in_launches is None:
        speed = speeds_by_turns(micro.moments, rank).get(PRODUCTS, 0.0) if len(micro.moments) > 1 else 0.0
        warn = check.CHECKS[check.SPREAD].warn
        assert warn is not None
        return f"of a virtual machine; alone, by turns, rank {rank} is at {speed:.3f} of the others" * (speed >= warn)
    if in_launches.is_late:
        return ""
    chance = ", which may be chance" if in_launches.warns else ""
    return f"of a virtual machine; in launches rank {rank} is at {in_launches.over_best:.3f} of the best rank{chance}"


def _why_memory_not_slow(finding: CheckFinding, micro: MicroMeasurements, of_micro: Sequence[CheckFinding]) -> str:
    """Why a virtual machine's slow memory does not count as slow; empty where it does, or where no moments say it.

    It counts where all ranks together fail over several moments, and where the rank is that slow beside the others at
    the same moments: other guests slow all ranks down, for minutes and then not.
    """
    (together,) = [other for other in of_micro if other.subject == OF_ALL]
    if finding is together or together.verdict is CheckVerdict.FAIL or together.ratio is None:
        return ""
    rank = judged_rank(getattr(micro, finding.subject), None)
    beside = rates_at_moments(micro.moments, rank, finding.subject)
    assert finding.fail is not None
    if beside < finding.fail:
        return ""
    at_moments = f"at several moments all ranks are at {together.ratio:.3f}, rank {rank} at {beside:.3f} of the others"
    return f"of a virtual machine, whose memory other guests may share; {at_moments}"


def beside_guests(finding: CheckFinding) -> CheckFinding:
    """Slow messages of a virtual machine's ranks only warn: they have no link, but memory that other guests use too."""
    failed = finding.verdict is CheckVerdict.FAIL and finding.status is Status.OK and rests_on_clocks(finding)
    if not failed or (finding.ratio or 0.0) < LEAST_OF_MESSAGES:
        return finding
    evidence = joined_evidence(finding.evidence, f"{OF_GUESTS}: below {LEAST_OF_MESSAGES} it would fail")
    return msgspec.structs.replace(finding, verdict=CheckVerdict.WARN, evidence=evidence)


def open_of_guests(finding: CheckFinding, at_speed: CheckFinding) -> CheckFinding:
    """The finding; a failure is open where it is of slower processors, or would be none at their speed of before.

    Args:
        at_speed: the same finding of launches whose steps are as fast as the processors were.
    """
    if finding.verdict is not CheckVerdict.FAIL or finding.status is not Status.OK:
        return finding
    of_speed = finding.subject.endswith(OF_CPU_SPEED)
    if not of_speed and (finding.check != check.STEP_TIME or at_speed.verdict is CheckVerdict.FAIL):
        return finding
    ratio = f", {at_speed.ratio:.3f} at their speed of before" if at_speed.ratio and not of_speed else ""
    evidence = joined_evidence(finding.evidence, f"{OF_GUESTS}{ratio}")
    return msgspec.structs.replace(finding, verdict=CheckVerdict.INCONCLUSIVE, evidence=evidence)


def steady_beside_guests(finding: CheckFinding) -> CheckFinding:
    """Steps of a virtual machine that differ only warn: other guests come and go."""
    if finding.verdict is not CheckVerdict.FAIL or finding.status is not Status.OK:
        return finding
    evidence = joined_evidence(finding.evidence, OF_GUESTS)
    return msgspec.structs.replace(finding, verdict=CheckVerdict.WARN, evidence=evidence)
