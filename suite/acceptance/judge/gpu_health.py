"""Checks 12 and 13, of the GPUs' clocks and counters; and the GPU behind each rank, which an operator exchanges."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence

import msgspec

from suite.acceptance.check_table import ERRORS, THROTTLE
from suite.acceptance.evidence import GpuHealth, Health
from suite.acceptance.findings import joined_evidence, not_run
from suite.records.battery import CheckFinding, CheckVerdict

CONSECUTIVE = 3  # samples with a reason, from which it is throttling
BAD_REASONS = ("hardware slowdown", "hardware thermal slowdown", "software thermal slowdown", "power brake")
# without an answer to one of these, XIDs are not known
EVENT_CALLS = frozenset({"nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"})
# XIDs that a user's program can cause (NVIDIA, XID Errors: 13 graphics engine exception, 31 MMU fault, 43 reset
# channel, 45 preemptive removal, 68 video processor exception); all others are of the board, the link or the driver
XIDS_OF_PROGRAMS = frozenset({13, 31, 43, 45, 68})
XID_REMAPPING_FAILED = 64  # NVIDIA, GPU Memory Error Management: such a GPU is to be replaced
_RANKS = re.compile(r"\brank (\d+)\b|\blink (\d+)-(\d+)\b")
FABRIC_FAULTS = frozenset({"degraded bandwidth", "unhealthy route"})  # others are being recovered from


def gpu_findings(
    health: Health | None, *, loaded: Collection[int], why_idle: str = "no rank ran on it"
) -> list[CheckFinding]:
    """Checks 12 and 13 of every GPU; a GPU without ranks (see `environment_findings`) passes neither: `why_idle`."""
    if health is None or not health.gpus:
        why = "not read" if health is None else health.why_none
        return [not_run(number, why) for number in (THROTTLE, ERRORS)]
    links = max(sum(gpu.before.nvlinks) for gpu in health.gpus)
    findings = []
    for gpu in health.gpus:
        of_gpu = [_throttling(gpu), _errors(gpu), *_nvlinks(gpu, links)]
        if gpu.index not in loaded:
            of_gpu = [_not_passed(finding, why_idle) for finding in of_gpu]
        findings += of_gpu
    return [*findings, _earlier_xids(health)]


def _not_passed(finding: CheckFinding, why: str) -> CheckFinding:
    """The finding, but NOT RUN where it would pass without a load."""
    if finding.verdict is not CheckVerdict.PASS:
        return finding
    evidence = joined_evidence(why, finding.evidence)
    return msgspec.structs.replace(finding, verdict=CheckVerdict.NOT_RUN, evidence=evidence)


def _throttling(gpu: GpuHealth) -> CheckFinding:
    samples = [sample for sample in gpu.samples if sample.reasons is not None]
    name = f"GPU {gpu.index}"
    if len(samples) < CONSECUTIVE:
        unanswered = f"no answer to {', '.join(gpu.unanswered)}" if gpu.unanswered else ""
        return not_run(THROTTLE, joined_evidence(f"{len(samples)} samples under load", unanswered), name)
    longest = {reason: longest_run([reason in (sample.reasons or []) for sample in samples]) for reason in BAD_REASONS}
    bad = {reason: length for reason, length in longest.items() if length >= CONSECUTIVE}
    capped = sum("software power cap" in (sample.reasons or []) for sample in samples)
    hottest = max((sample.celsius for sample in samples if sample.celsius is not None), default=None)
    slowest = min((sample.mhz for sample in samples if sample.mhz is not None), default=None)
    evidence = joined_evidence(
        *(f"{reason} in {length} consecutive samples" for reason, length in bad.items()),
        f"{len(samples)} samples",
        f"software power cap in {capped}",
        "" if hottest is None else f"at most {hottest:.0f} C",
        "" if slowest is None else f"at least {slowest:.0f} MHz",
    )
    part = f"clocks of {name}: {', '.join(bad)}" if bad else ""
    verdict = CheckVerdict.FAIL if bad else CheckVerdict.PASS
    return CheckFinding(check=THROTTLE, subject=name, verdict=verdict, part=part, evidence=evidence)


def longest_run(flags: Sequence[bool]) -> int:
    """The most consecutive true values."""
    return max((len(list(group)) for value, group in itertools.groupby(flags) if value), default=0)


def _errors(gpu: GpuHealth) -> CheckFinding:
    """Counters that grew under load, and what was there before: the latter fails only where a GPU is to be replaced."""
    name, before, after = f"GPU {gpu.index}", gpu.before, gpu.after
    bad: list[str] = []
    minor: list[str] = []
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
            (bad if uncorrectable else minor).append(f"{last - first} {counter} under load")
    bad += ["a row waits to be remapped"] if after.remap_pending else []
    bad += ["remapping a row failed: replace the GPU"] if after.remap_failed else []
    bad += (
        ["too many errors of static memory (its threshold is exceeded): replace the GPU"]
        if after.sram_threshold_exceeded
        else []
    )
    bad += [f"XID {xid}" for xid in gpu.xids if xid not in XIDS_OF_PROGRAMS]
    minor += [f"XID {xid} (of a program)" for xid in gpu.xids if xid in XIDS_OF_PROGRAMS]
    minor += _earlier_errors(gpu)
    unknown += ["XIDs"] if set(gpu.unanswered) & EVENT_CALLS else []
    unanswered = ", ".join(gpu.unanswered) or "no answer"
    gaps = f"not reported: {', '.join(unknown)} ({unanswered})" if unknown else ""
    return _counted(name, f"memory or board of {name}", bad, minor, unknown, gaps, "no counter changed")


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
    bad = [f"link {' '.join(down)} went down under load"] if down else []
    bad += [f"{active} links active, {most} on other GPUs of the node"] if active < most else []
    bad += [problem for problem in after.fabric_problems if problem in FABRIC_FAULTS]
    # behind switches all links of a GPU are used; a bridge between two cards leaves some free
    unused = before.fabric and active == most < links
    minor = [f"{active} of {links} links active on every GPU"] if unused else []
    minor += [problem for problem in after.fabric_problems if problem not in FABRIC_FAULTS]
    for kind, count in after.nvlink_errors.items():
        grown = count - before.nvlink_errors.get(kind, 0)
        minor += [f"{grown} {kind} under load"] if grown > 0 else []
    failed = before.nvlink_errors.get("failed recoveries", 0)
    minor += [f"{failed} failed recoveries since the driver was loaded"] if failed else []
    counted = ", ".join(f"{count} {kind}" for kind, count in after.nvlink_errors.items() if count)
    fine = joined_evidence(
        f"{active} links active",
        f"in all {counted}" if counted else "",
        f"fabric {after.fabric}" if after.fabric else "",
    )
    return [_counted(f"{name}, NVLink", f"NVLink of {name}", bad, minor, [], "", fine)]


def _counted(
    subject: str, part: str, bad: Sequence[str], minor: Sequence[str], unknown: Sequence[str], gaps: str, fine: str
) -> CheckFinding:
    """The finding of check 13 for what fails, what warns, and what is not known."""
    causes = ((bad, CheckVerdict.FAIL), (minor, CheckVerdict.WARN), (unknown, CheckVerdict.NOT_RUN))
    return CheckFinding(
        check=ERRORS,
        subject=subject,
        verdict=next((verdict for cause, verdict in causes if cause), CheckVerdict.PASS),
        part=part if bad or minor else "",
        evidence=joined_evidence(*bad, *minor, gaps) or fine,
    )


def _earlier_xids(health: Health) -> CheckFinding:
    """XIDs since the machine started, before the battery began: they warn, except those of a GPU to be replaced."""
    if health.why_no_xids:
        return not_run(ERRORS, health.why_no_xids, "earlier XIDs")
    bad, minor = [], []
    for xid in dict.fromkeys(health.earlier_xids):
        name = f"GPU {xid.gpu}" if xid.gpu >= 0 else f"a GPU at {xid.pci}"
        words = f"{name}: XID {xid.xid}" + (" (of a program)" if xid.xid in XIDS_OF_PROGRAMS else "")
        if xid.xid == XID_REMAPPING_FAILED:
            bad.append(f"{words}, remapping a row failed: replace the GPU")
        else:
            minor.append(words)
    part = ", ".join(sorted({words.partition(":")[0] for words in bad or minor}))
    return _counted("earlier XIDs", part, bad, minor, [], "", "none since the machine started")


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
