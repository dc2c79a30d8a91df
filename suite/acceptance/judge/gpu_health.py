"""Checks 12 and 13: what the GPUs' clocks and counters say."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import msgspec

from suite.acceptance.check_table import ERRORS, THROTTLE
from suite.acceptance.evidence import GpuHealth, Health
from suite.acceptance.findings import CheckFinding, CheckVerdict, joined_evidence, not_run

CONSECUTIVE = 3  # samples with a reason, from which it is throttling
BAD_REASONS = ("hardware slowdown", "hardware thermal slowdown", "software thermal slowdown", "power brake")
# without an answer to one of these, XIDs are not known
EVENT_CALLS = frozenset({"nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"})
# XIDs that a user's program can cause (NVIDIA, XID Errors: 13 graphics engine exception, 31 MMU fault, 43 reset
# channel, 45 preemptive removal, 68 video processor exception); all others are of the board, the link or the driver
XIDS_OF_PROGRAMS = frozenset({13, 31, 43, 45, 68})


def gpu_findings(
    health: Health | None, *, loaded: Collection[int], why_idle: str = "no rank ran on it"
) -> list[CheckFinding]:
    """Checks 12 and 13 of every GPU; a GPU without ranks (see `environment_findings`) passes neither: `why_idle`."""
    if health is None or not health.gpus:
        why = "not read" if health is None else health.why_none
        return [not_run(number, why) for number in (THROTTLE, ERRORS)]
    findings = [finding for gpu in health.gpus for finding in (_throttling(gpu), _errors(gpu))]
    idle = {f"GPU {gpu.index}" for gpu in health.gpus if gpu.index not in loaded}
    return [
        msgspec.structs.replace(
            finding, verdict=CheckVerdict.NOT_RUN, evidence=joined_evidence(why_idle, finding.evidence)
        )
        if finding.verdict is CheckVerdict.PASS and finding.subject in idle
        else finding
        for finding in findings
    ]


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
    bad += ["remapping a row failed"] if after.remap_failed else []
    bad += [f"XID {xid}" for xid in gpu.xids if xid not in XIDS_OF_PROGRAMS]
    minor += [f"XID {xid} (of a program)" for xid in gpu.xids if xid in XIDS_OF_PROGRAMS]
    unknown += ["XIDs"] if set(gpu.unanswered) & EVENT_CALLS else []
    unanswered = ", ".join(gpu.unanswered) or "no answer"
    gaps = f"not reported: {', '.join(unknown)} ({unanswered})" if unknown else ""
    causes = ((bad, CheckVerdict.FAIL), (minor, CheckVerdict.WARN), (unknown, CheckVerdict.NOT_RUN))
    verdict = next((verdict for cause, verdict in causes if cause), CheckVerdict.PASS)
    return CheckFinding(
        check=ERRORS,
        subject=name,
        verdict=verdict,
        part=f"memory or board of {name}" if bad or minor else "",
        evidence=joined_evidence(*bad, *minor, gaps) or "no counter changed",
    )
