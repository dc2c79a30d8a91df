"""Check 13 of the GPUs: their counters and links; and the GPU behind each rank, which an operator exchanges."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import msgspec

from reference_runs.accelerator import known_gpu
from suite.acceptance.check_table import ERRORS, THROTTLE
from suite.acceptance.fabric import fabric_problem
from suite.acceptance.findings import joined_evidence, not_run
from suite.acceptance.gpu_evidence import EarlierXid, GpuHealth, GpuState, Health
from suite.acceptance.judge.causes import Cause, bad, finding_of, minor, unread
from suite.acceptance.judge.gpu_clocks import clock_finding
from suite.acceptance.judge.xids import earlier_xid_finding, load_xid_causes, recovery_cause
from suite.records.battery import CheckFinding, CheckVerdict, RecoveryAction

# without an answer to one of these, XIDs are not known
EVENT_CALLS = frozenset({"nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"})
# readings that only some drivers and GPUs offer, and their field of a state
NOT_EVERYWHERE = {"recovery action": "recovery", "PCIe replays": "pcie_replays"}
_RANKS = re.compile(r"\brank (\d+)\b|\blink (\d+)-(\d+)\b")
SUMMARY_PROBLEMS = {"unhealthy": "fabric unhealthy", "limited capacity": "fabric with limited capacity"}


def gpu_findings(
    health: Health | None, *, loaded: Collection[int], why_idle: str = "no rank ran on it"
) -> list[CheckFinding]:
    """Checks 12 and 13 of every GPU; a GPU without ranks (see `environment_findings`) passes neither: `why_idle`."""
    if health is None or not health.gpus:
        why = "not read" if health is None else health.why_none
        nothing = [not_run(number, why) for number in (THROTTLE, ERRORS)]
        return [*nothing, earlier_xid_finding(health)] if health and health.earlier_xids else nothing
    links = max(sum(gpu.before.nvlinks) for gpu in health.gpus)
    findings = []
    for gpu in health.gpus:
        of_gpu = [clock_finding(gpu, health.gpus, loaded), _errors(gpu, health.load_xids), *_nvlinks(gpu, links)]
        if gpu.index not in loaded:
            of_gpu = [_not_passed(finding, why_idle) for finding in of_gpu]
        findings += of_gpu
    return [*findings, earlier_xid_finding(health)]


def _not_passed(finding: CheckFinding, why: str) -> CheckFinding:
    """The finding, but NOT RUN where it would pass without a load."""
    if finding.verdict is not CheckVerdict.PASS:
        return finding
    evidence = joined_evidence(why, finding.evidence)
    return msgspec.structs.replace(finding, verdict=CheckVerdict.NOT_RUN, evidence=evidence)


def _errors(gpu: GpuHealth, logged: Sequence[EarlierXid]) -> CheckFinding:
    """Counters that grew under load, and what was there before: the latter fails only where a GPU is to be replaced.

    Args:
        logged: XIDs in the kernel's log since the battery began.
    """
    name, before, after = f"GPU {gpu.index}", gpu.before, gpu.after
    causes: list[Cause] = []
    unknown: list[str] = []
    for counter, first, last, uncorrectable in (
        ("uncorrectable ECC errors", before.uncorrected, after.uncorrected, True),
        ("corrected ECC errors", before.corrected, after.corrected, False),
        ("rows remapped for uncorrectable errors", before.remapped_uncorrected, after.remapped_uncorrected, True),
        ("rows remapped for corrected errors", before.remapped_corrected, after.remapped_corrected, False),
    ):
        if first is None or last is None:
            unknown.append(counter)
        elif last > first:
            words = f"{last - first} {counter} under load"
            causes.append(bad(words) if uncorrectable else minor(words))
    if after.remap_pending:
        causes.append(bad("a row waits to be remapped"))
    if after.remap_failed:
        causes.append(bad("remapping a row failed: replace the GPU"))
    if after.sram_threshold_exceeded:
        words = "too many errors of static memory (its threshold is exceeded): replace the GPU"
        causes.append(bad(words))
    causes += recovery_cause(after.recovery)
    causes += load_xid_causes(gpu, logged)
    causes += [minor(words) for words in _earlier_errors(gpu)]
    if before.pcie_replays is not None and after.pcie_replays is not None and after.pcie_replays > before.pcie_replays:
        words = f"{after.pcie_replays - before.pcie_replays} PCIe replays under load"
        causes.append(minor(words, RecoveryAction.RESEAT))
    unknown += ["XIDs"] if set(gpu.unanswered) & EVENT_CALLS else []
    if unknown:
        unanswered = ", ".join(gpu.unanswered) or "no answer"
        causes.append(unread(f"not reported: {', '.join(unknown)} ({unanswered})"))
    not_offered = [words for words, field in NOT_EVERYWHERE.items() if getattr(after, field) is None]
    return finding_of(
        ERRORS,
        name,
        causes,
        part=f"memory or board of {name}",
        fine="no counter changed",
        also=f"not read: {', '.join(not_offered)}" if not_offered else "",
    )


def _earlier_errors(gpu: GpuHealth) -> list[str]:
    """Faults that the GPU had before the battery began."""
    before, spare = gpu.before, gpu.before.spare_rows
    found = []
    if before.uncorrected:
        found.append(f"{before.uncorrected} uncorrectable ECC errors since the driver was loaded")
    if before.lifetime_uncorrected and before.lifetime_uncorrected > (before.uncorrected or 0):
        found.append(f"{before.lifetime_uncorrected} uncorrectable ECC errors in its life")
    if before.remapped_uncorrected:
        found.append(f"{before.remapped_uncorrected} rows remapped earlier for uncorrectable errors")
    if spare.get("none"):
        found.append(
            f"{spare['none']} of {sum(spare.values())} banks have no spare row left: the next error cannot be remapped"
        )
    if spare.get("low"):
        found.append(f"{spare['low']} of {sum(spare.values())} banks have few spare rows left")
    return found


def _nvlinks(gpu: GpuHealth, most: int) -> list[CheckFinding]:
    """Links that are down, errors that they counted under load, and what the switches' manager says; none without any.

    Args:
        most: active links of the GPU of this node that has most.
    """
    name, before, after = f"GPU {gpu.index}", gpu.before, gpu.after
    if not before.nvlinks and not before.fabric:
        return []
    down = [
        str(link)
        for link, (first, last) in enumerate(zip(before.nvlinks, after.nvlinks, strict=False))
        if first and not last
    ]
    active, links = sum(before.nvlinks), len(before.nvlinks)
    causes: list[Cause] = []
    if down:
        causes.append(bad(f"link {' '.join(down)} went down under load"))
    if active < most:
        words = f"{active} links active, {most} on other GPUs of the node"
        causes.append(minor(f"{words}: perhaps without a bridge") if _is_bridged(gpu) and not active else bad(words))
    causes += _fabric_causes(after)
    # behind switches all links of a GPU are used; a bridge between two cards leaves some free
    if before.fabric and active == most < links:
        causes.append(minor(f"{active} of {links} links active on every GPU"))
    for kind, count in after.nvlink_errors.items():
        grown = count - before.nvlink_errors.get(kind, 0)
        causes += [minor(f"{grown} {kind} under load")] if grown > 0 else []
    if failed := before.nvlink_errors.get("failed recoveries", 0):
        words = f"{failed} failed recoveries since the driver was loaded"
        causes.append(minor(words))
    counted = ", ".join(f"{count} {kind}" for kind, count in after.nvlink_errors.items() if count)
    fine = joined_evidence(
        f"{active} links active",
        f"in all {counted}" if counted else "",
        f"fabric {after.fabric}" if after.fabric else "",
    )
    parts = dict.fromkeys(fabric_problem(problem).part or "NVLink" for problem in after.fabric_problems)
    return [
        finding_of(
            ERRORS,
            f"{name}, NVLink",
            causes,
            part=f"{', '.join(parts) or 'NVLink'} of {name}",
            fine=fine,
            also=f"not read of the fabric: {', '.join(after.fabric_unread)}" if after.fabric_unread else "",
        )
    ]


def _is_bridged(gpu: GpuHealth) -> bool:
    """Whether links of this model are those of a bridge between two cards, which some cards of a node may not have."""
    model = known_gpu(gpu.model)
    return model is not None and not model.board.direct_link


def _fabric_causes(state: GpuState) -> list[Cause]:
    """Causes that the switches' manager reports: each field of a GPU's health, or the summary where none says more."""
    names = list(state.fabric_problems)
    if not names and state.fabric_summary in SUMMARY_PROBLEMS:
        names = [SUMMARY_PROBLEMS[state.fabric_summary]]
    causes = []
    for name in names:
        problem = fabric_problem(name)
        words = f"{name}: {problem.meaning}"
        action = RecoveryAction(problem.action)
        causes.append(bad(words, action) if problem.fatal else minor(words, action))
    return causes


def with_gpus(finding: CheckFinding, gpus_with_ranks: Sequence[int], health: Health | None) -> CheckFinding:
    """The finding, whose part names the GPU behind each rank: "rank 1 (GPU 5 at 0000:1b:00.0)".

    Args:
        gpus_with_ranks: see `Surroundings`.
    """
    addresses = {gpu.index: gpu.pci for gpu in (health.gpus if health else []) if gpu.pci}

    def gpu(rank: str) -> str:
        number = gpus_with_ranks[int(rank)]
        return f"GPU {number} at {addresses[number]}" if number in addresses else f"GPU {number}"

    def named(match: re.Match[str]) -> str:
        ranks = [rank for rank in match.groups() if rank is not None]
        if any(int(rank) >= len(gpus_with_ranks) for rank in ranks):
            return match[0]
        return f"{match[0]} ({', '.join(map(gpu, ranks))})"

    return msgspec.structs.replace(finding, part=_RANKS.sub(named, finding.part))
