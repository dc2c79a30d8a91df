"""Checks 0, 12 and 13: the node's surroundings, and what its GPUs' counters say."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import msgspec

from suite.acceptance.check_table import ENVIRONMENT, ERRORS, THROTTLE
from suite.acceptance.evidence import GpuHealth, Health, Launched, Micro, Surroundings
from suite.acceptance.findings import Finding, Verdict

RUNNING = 3  # samples in a row
MOST_IN_PART, MOST_NAMED = 3, 12  # competing processes
BAD_REASONS = ("hardware slowdown", "hardware thermal slowdown", "software thermal slowdown", "power brake")
# without an answer to one of these nobody is told of an XID
OF_EVENTS = frozenset({"nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"})
# XIDs that a program of the user can cause by itself (NVIDIA, XID Errors: 13 graphics engine exception, 31 MMU fault,
# 43 reset channel, 45 preemptive removal, 68 video processor exception); every other one is the board's, the link's or
# the driver's
OF_PROGRAMS = frozenset({13, 31, 43, 45, 68})


def environment_findings(
    around: Surroundings | None,
    health: Health | None,
    during: Sequence[Micro | Launched],
    *,
    others: float,
    loaded: Collection[int],
) -> list[Finding]:
    """Check 0: each subject that is wrong makes the battery invalid; otherwise each passes.

    Args:
        loaded: numbers of the GPUs on which ranks ran to a good end.
    """
    findings = []
    if around is not None:
        findings.append(_devices(around))
        findings.append(_others(around, during, others))
        for subject, problems in (
            ("fleet records", around.fleet_problems),
            ("records of this node", around.past_problems),
        ):
            if problems:
                words = "; ".join(problems[:3])
                findings.append(Finding(check=ENVIRONMENT, subject=subject, verdict=Verdict.WARN, evidence=words))
    if health is None or not health.gpus:
        why = "not read" if health is None else health.why_none
        findings.append(Finding(check=ENVIRONMENT, subject="GPUs", verdict=Verdict.NOT_RUN, evidence=why))
    else:
        findings.append(_gpus(health.gpus, loaded=loaded))
    return findings


def _devices(around: Surroundings) -> Finding:
    kind = "GPUs" if around.device == "cuda" else "cores"
    expected = around.devices_expected
    wrong = expected is not None and around.devices != expected
    if around.gpus_before:
        return Finding(
            check=ENVIRONMENT,
            subject="devices",
            verdict=Verdict.INVALID,
            measured=0.0,
            source="an earlier battery of this node",
            part=f"GPUs: none in place of {around.gpus_before}",
            evidence="an earlier battery of this node had GPUs, and now no driver tells of one; --device cpu judges "
            "the rest of the node",
        )
    return Finding(
        check=ENVIRONMENT,
        subject="devices",
        verdict=Verdict.INVALID if wrong else Verdict.PASS,
        measured=float(around.devices),
        expected=None if expected is None else float(expected),
        source="" if expected is None else "--devices",
        part=f"{kind}: {around.devices} in place of {expected}" if wrong else "",
        evidence=f"{around.devices} {kind}, {around.ranks} ranks",
    )


def _others(around: Surroundings, during: Sequence[Micro | Launched], limit: float) -> Finding:
    """Other processes before and while ours ran, and what the host gave to other guests.

    Launches for exact figures alone may be disturbed: no clock of theirs is judged.
    """
    seen = [("before", around.others_share, False)]
    clocks = [one for one in during if isinstance(one, Micro) or one.purpose != "exact"]
    clocked = [one for one in clocks if not one.set_aside]
    set_aside = [share_of_others(one) for one in clocks if one.set_aside]
    seen += [(_when(one), one.others_share, False) for one in clocked]
    seen += [(f"{_when(one)}, other guests", one.steal_share, True) for one in clocked]
    told = [(when, share, guests) for when, share, guests in seen if share is not None]
    if not told:
        why = "the system does not tell who uses its processors"
        return Finding(check=ENVIRONMENT, subject="other processes", verdict=Verdict.NOT_RUN, evidence=why)
    when, share, guests = max(told, key=lambda one: one[1])
    named = [f"{one.name} (pid {one.pid}) {one.cores:.0%} of a core" for one in around.competitors]
    busy = ", ".join(named[:MOST_IN_PART])
    part = "other guests of the host" if guests else f"other processes: {busy or 'gone since, or not to be seen'}"
    bad = share > limit
    words = "; ".join([f"at most {share:.0%} of the processors, {when}", *named[:MOST_NAMED]])
    if set_aside:
        words += f"; set aside, and made once more: {len(set_aside)} measurements at up to {max(set_aside):.0%}"
    return Finding(
        check=ENVIRONMENT,
        subject="other processes",
        verdict=Verdict.INVALID if bad else Verdict.PASS,
        measured=share,
        expected=0.0,
        fail=limit,
        source="--others",
        part=part if bad else "",
        evidence=words,
    )


def share_of_others(one: Micro | Launched) -> float:
    """Of the processors, what other processes or other guests of the host took meanwhile, the larger of the two."""
    return max(one.others_share or 0.0, one.steal_share or 0.0)


def _when(one: Micro | Launched) -> str:
    return "in the micro-measurements" if isinstance(one, Micro) else f"in {one.run}"


def _gpus(gpus: Sequence[GpuHealth], *, loaded: Collection[int]) -> Finding:
    """The state of the GPUs; of the PCIe link only under load: an idle one saves power at a lower generation."""
    wrong = []
    for what in ("model", "driver", "firmware"):
        values = {getattr(gpu, what) for gpu in gpus}
        if len(values) > 1:
            wrong.append(("GPUs", f"{what} differs: {', '.join(sorted(values))}"))
    for gpu in gpus:
        name, state = f"GPU {gpu.index}", gpu.before
        if state.ecc is False:
            wrong.append((name, "ECC off"))
        if state.mig:
            wrong.append((name, "MIG on"))
        if state.processes:
            wrong.append((name, f"other processes: {state.processes}"))
        if state.watts_limit and state.watts_default and state.watts_limit < state.watts_default:
            wrong.append((name, f"power limit {state.watts_limit:.0f} W, default {state.watts_default:.0f} W"))
        under_load = gpu.samples if gpu.index in loaded else []
        generations = [sample.pcie_generation for sample in under_load if sample.pcie_generation]
        widths = [sample.pcie_width for sample in under_load if sample.pcie_width]
        if generations and state.pcie_most_generation and max(generations) < state.pcie_most_generation:
            wrong.append((name, f"PCIe generation {max(generations)} of {state.pcie_most_generation} under load"))
        if widths and state.pcie_most_width and max(widths) < state.pcie_most_width:
            wrong.append((name, f"PCIe width x{max(widths)} of x{state.pcie_most_width} under load"))
    return Finding(
        check=ENVIRONMENT,
        subject="GPUs",
        verdict=Verdict.INVALID if wrong else Verdict.PASS,
        part=", ".join(sorted({name for name, _ in wrong})),
        evidence="; ".join(f"{name}: {what}" for name, what in wrong) or f"{len(gpus)} alike, nothing unusual",
    )


def gpu_findings(
    health: Health | None, *, loaded: Collection[int], why_idle: str = "no rank ran on it"
) -> list[Finding]:
    """Checks 12 and 13 of every GPU; one without ranks (see `environment_findings`) passes neither: `why_idle`."""
    if health is None or not health.gpus:
        why = "not read" if health is None else health.why_none
        return [
            Finding(check=number, subject="", verdict=Verdict.NOT_RUN, evidence=why) for number in (THROTTLE, ERRORS)
        ]
    findings = [finding for gpu in health.gpus for finding in (_throttling(gpu), _errors(gpu))]
    idle = {f"GPU {gpu.index}" for gpu in health.gpus if gpu.index not in loaded}
    return [
        msgspec.structs.replace(one, verdict=Verdict.NOT_RUN, evidence=f"{why_idle}; {one.evidence}")
        if one.verdict is Verdict.PASS and one.subject in idle
        else one
        for one in findings
    ]


def _throttling(gpu: GpuHealth) -> Finding:
    told = [sample for sample in gpu.samples if sample.reasons is not None]
    name = f"GPU {gpu.index}"
    if len(told) < RUNNING:
        why = f"{len(told)} samples under load" + (
            f"; no answer to {', '.join(gpu.unanswered)}" if gpu.unanswered else ""
        )
        return Finding(check=THROTTLE, subject=name, verdict=Verdict.NOT_RUN, evidence=why)
    longest = {reason: longest_run([reason in (sample.reasons or []) for sample in told]) for reason in BAD_REASONS}
    bad = {reason: length for reason, length in longest.items() if length >= RUNNING}
    capped = sum("software power cap" in (sample.reasons or []) for sample in told)
    hottest = max((sample.celsius for sample in told if sample.celsius is not None), default=None)
    slowest = min((sample.mhz for sample in told if sample.mhz is not None), default=None)
    words = [f"{reason} in {length} samples running" for reason, length in bad.items()]
    words += [f"{len(told)} samples", f"software power cap in {capped}"]
    words += [f"at most {hottest:.0f} C"] if hottest is not None else []
    words += [f"at least {slowest:.0f} MHz"] if slowest is not None else []
    return Finding(
        check=THROTTLE,
        subject=name,
        verdict=Verdict.FAIL if bad else Verdict.PASS,
        part=f"clocks of {name}: {', '.join(bad)}" if bad else "",
        evidence="; ".join(words),
    )


def longest_run(flags: Sequence[bool]) -> int:
    """The most true values in a row."""
    return max((len(list(group)) for value, group in itertools.groupby(flags) if value), default=0)


def _errors(gpu: GpuHealth) -> Finding:
    name, before, after = f"GPU {gpu.index}", gpu.before, gpu.after
    bad: list[str] = []
    noted: list[str] = []
    silent: list[str] = []
    for what, one, other, uncorrectable in (
        ("uncorrectable ECC errors", before.uncorrected, after.uncorrected, True),
        ("corrected ECC errors", before.corrected, after.corrected, False),
        ("rows remapped for uncorrectable errors", before.remapped_uncorrected, after.remapped_uncorrected, True),
        ("rows remapped for corrected errors", before.remapped_corrected, after.remapped_corrected, False),
    ):
        if one is None or other is None:
            silent.append(what)
        elif other > one:
            (bad if uncorrectable else noted).append(f"{other - one} {what} under load")
    bad += ["a row waits to be remapped"] if after.remap_pending else []
    bad += ["remapping a row failed"] if after.remap_failed else []
    bad += [f"XID {xid}" for xid in gpu.xids if xid not in OF_PROGRAMS]
    noted += [f"XID {xid} (a program's)" for xid in gpu.xids if xid in OF_PROGRAMS]
    silent += ["XIDs"] if set(gpu.unanswered) & OF_EVENTS else []
    untold = f"not told: {', '.join(silent)} ({', '.join(gpu.unanswered) or 'no answer'})" if silent else ""
    verdict = Verdict.FAIL if bad else Verdict.WARN if noted else Verdict.NOT_RUN if silent else Verdict.PASS
    return Finding(
        check=ERRORS,
        subject=name,
        verdict=verdict,
        part=f"memory or board of {name}" if bad or noted else "",
        evidence="; ".join(words for words in (*bad, *noted, untold) if words) or "no counter moved",
    )
