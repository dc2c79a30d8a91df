"""Check 0: devices, other processes, records that were left out, and what the GPUs are set to."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from suite.acceptance.check_table import ENVIRONMENT
from suite.acceptance.evidence import Load, MicroMeasurements, Surroundings, Timed, made_for_times
from suite.acceptance.findings import joined_evidence, not_run
from suite.acceptance.gpu_evidence import GpuHealth, Health
from suite.acceptance.judge.host import host_findings
from suite.records.battery import CheckFinding, CheckVerdict, RecoveryAction

LEAST_MEMORY_CLOCK = 0.97  # of a GPU's highest
FABRIC_MANAGER, IMEX = "fabric manager", "IMEX"  # among the services of a `HostReading`
SERVICES = {FABRIC_MANAGER: "NVSwitches, and nvidia-fabricmanager", IMEX: "IMEX channels, and nvidia-imex"}
DEVICES = "devices"  # the subject of their number
OTHERS_BYTES = 64 * 2**20  # of a GPU's memory: an idle one has none, a context takes some hundred MiB
BUSY_BYTES = 2**30  # of a GPU's memory: a display takes less, and a pod does not see whose it is
MOST_IN_PART, MOST_NAMED = 3, 12  # competing processes


def environment_findings(
    around: Surroundings | None,
    health: Health | None,
    during: Sequence[Timed],
    *,
    others: float,
    loaded: Collection[int],
) -> list[CheckFinding]:
    """Check 0: devices, other processes, records that were left out, and GPUs; each may make the battery invalid.

    Args:
        loaded: numbers of the GPUs on which a load ended well.
    """
    findings = []
    if around is not None:
        findings.append(_devices(around))
        findings.append(_other_processes(around, during, others))
        findings += host_findings(around, others=others)
        records = {"fleet records": around.fleet_problems, "records of this node": around.past_problems}
        for subject, problems in records.items():
            if problems:
                warning = CheckFinding(check=ENVIRONMENT, subject=subject, verdict=CheckVerdict.WARN)
                findings.append(msgspec.structs.replace(warning, evidence="; ".join(problems[:3])))
    if health is None or not health.gpus:
        findings.append(not_run(ENVIRONMENT, "not read" if health is None else health.why_none, "GPUs"))
    else:
        findings.append(_gpus(health.gpus, loaded=loaded))
        findings += _services(health)
    return findings


def _devices(around: Surroundings) -> CheckFinding:
    if around.device == "cuda" and around.devices < (around.devices_expected or 1):
        return _missing_gpus(around)
    kind = "GPUs" if around.device == "cuda" else "cores"
    expected = around.devices_expected
    wrong = expected is not None and around.devices != expected
    if around.gpus_before:
        part = f"GPUs: none in place of {around.gpus_before}"
        rest = "--device cpu judges the rest of the node"
        unknown = (
            "" if around.why_gone else "an image or a setting may hide them, and --device cuda rejects such a node"
        )
        return CheckFinding(
            check=ENVIRONMENT,
            subject=DEVICES,
            verdict=CheckVerdict.FAIL if around.why_gone else CheckVerdict.INVALID,
            measured=0.0,
            source=around.seen_by,
            part=part,
            evidence=joined_evidence(
                f"{around.seen_by} had GPUs, and now no driver reports one", around.why_gone, unknown, rest
            ),
        )
    return CheckFinding(
        check=ENVIRONMENT,
        subject=DEVICES,
        verdict=CheckVerdict.INVALID if wrong else CheckVerdict.PASS,
        measured=float(around.devices),
        expected=None if expected is None else float(expected),
        source="" if expected is None else "--devices",
        part=f"{kind}: {around.devices} in place of {expected}" if wrong else "",
        evidence=f"{around.devices} {kind}, {around.ranks} ranks",
    )


def _missing_gpus(around: Surroundings) -> CheckFinding:
    """A missing GPU rejects the node, unless the driver has them all and something hides them from torch."""
    expected, seen = around.devices_expected or 1, around.devices
    hidden = around.why_fewer and (around.driver_gpus is None or around.driver_gpus >= expected)
    if around.why_fewer and not hidden:
        seen = around.driver_gpus or 0
    known = "" if around.driver_gpus is None else f"{around.driver_gpus} answer NVIDIA's management library"
    usable = f"PyTorch can use {around.devices}"
    return CheckFinding(
        check=ENVIRONMENT,
        subject=DEVICES,
        verdict=CheckVerdict.INVALID if hidden else CheckVerdict.FAIL,
        measured=float(seen),
        expected=float(expected),
        source="--devices" if around.devices_expected else "--device cuda",
        part=f"GPUs: {seen or 'none'} of {expected}" if around.devices_expected else "GPUs: none",
        evidence=joined_evidence(around.why_gone, usable, known, around.why_fewer),
        action=RecoveryAction.FIX_SETTING if hidden else None,
    )


def others_gpus(gpus: Sequence[GpuHealth]) -> list[int]:
    """Numbers of the GPUs that others used before anything of ours ran: with processes, or with memory of theirs."""
    return [gpu.index for gpu in gpus if gpu.before.processes or (gpu.before.used_bytes or 0) >= BUSY_BYTES]


def _other_processes(around: Surroundings, during: Sequence[Timed], limit: float) -> CheckFinding:
    """Share of the processors that other processes used, before and during measurements, and the host's other guests.

    Launches for exact figures alone do not count: none of their clocks is judged.
    """
    timed = [item for item in during if made_for_times(item)]
    judged = [item for item in timed if not item.set_aside]
    repeated = [share_of_others(item) for item in timed if item.set_aside]
    guests = "other guests of the host"
    shares = [("before", around.others_share, "processes")]
    shares += [(_when(item), item.others_share, "processes") for item in judged]
    shares += [(f"{_when(item)}, other guests", item.steal_share, guests) for item in judged]
    known = [(share, when, who) for when, share, who in shares if share is not None]
    if not known:
        why = "the system does not report who uses its processors"
        return not_run(ENVIRONMENT, why, "other processes")
    share, when, who = max(known, key=lambda item: item[0])
    names = [f"{process.name} (pid {process.pid}) {process.cores:.0%} of a core" for process in around.competitors]
    busiest = ", ".join(names[:MOST_IN_PART]) or "ended since, or not visible"
    evidence = "; ".join([f"at most {share:.0%} of the processors, {when}", *names[:MOST_NAMED]])
    if repeated:
        evidence += f"; {len(repeated)} measurements at up to {max(repeated):.0%} were not judged, but repeated"
    bad = share > limit
    part = who if who == guests else f"other processes: {busiest}"
    return CheckFinding(
        check=ENVIRONMENT,
        subject="other processes",
        verdict=CheckVerdict.INVALID if bad else CheckVerdict.PASS,
        measured=share,
        expected=0.0,
        fail=limit,
        source="--others",
        part=part if bad else "",
        evidence=evidence,
    )


def share_of_others(measurement: Load) -> float:
    """Share of the processors that other processes or other guests of the host used meanwhile: the larger one."""
    return max(measurement.others_share or 0.0, measurement.steal_share or 0.0)


def _when(measurement: Timed) -> str:
    return "in the micro-measurements" if isinstance(measurement, MicroMeasurements) else f"in {measurement.run}"


def _gpus(gpus: Sequence[GpuHealth], *, loaded: Collection[int]) -> CheckFinding:
    """The state of the GPUs; the PCIe link only under load, because an idle link saves power at a lower generation.

    Firmware that differs only warns: after an exchange it often does.
    """
    wrong = []
    for what in ("model", "driver"):
        values = {getattr(gpu, what) for gpu in gpus}
        if len(values) > 1:
            wrong.append(("GPUs", f"{what} differs: {', '.join(sorted(values))}"))
    for gpu in gpus:
        wrong += [(f"GPU {gpu.index}", what) for what in _wrong_settings(gpu, loaded=gpu.index in loaded)]
    unequal = _firmware(gpus)
    verdict = CheckVerdict.WARN if unequal else CheckVerdict.PASS
    parts = sorted({name for name, _ in wrong}) or (["firmware of the GPUs"] if unequal else [])
    return CheckFinding(
        check=ENVIRONMENT,
        subject="GPUs",
        verdict=CheckVerdict.INVALID if wrong else verdict,
        part=", ".join(parts),
        evidence=joined_evidence(*(f"{name}: {what}" for name, what in wrong), unequal)
        or f"{len(gpus)} alike, nothing unusual",
    )


def _wrong_settings(gpu: GpuHealth, *, loaded: bool) -> list[str]:
    """Settings of GPUs that make every measurement invalid."""
    wrong, state = [], gpu.before
    if state.ecc is False:
        wrong.append("ECC off")
    if state.mig:
        wrong.append("MIG on")
    if state.processes:
        wrong.append(f"other processes: {state.processes}")
    elif (state.used_bytes or 0) >= BUSY_BYTES:
        wrong.append(f"{(state.used_bytes or 0) / 2**30:.1f} GiB of its memory are in use")
    if state.watts_limit and state.watts_default and state.watts_limit < state.watts_default:
        wrong.append(f"power limit {state.watts_limit:.0f} W, default {state.watts_default:.0f} W")
    if state.fabric not in ("", "completed"):
        wrong.append(f"not registered with the NVLink switches: {state.fabric} (is the fabric manager running?)")
    under_load = gpu.samples if loaded else []
    generations = [sample.pcie_generation for sample in under_load if sample.pcie_generation]
    widths = [sample.pcie_width for sample in under_load if sample.pcie_width]
    if generations and state.pcie_most_generation and max(generations) < state.pcie_most_generation:
        wrong.append(f"PCIe generation {max(generations)} of {state.pcie_most_generation} under load")
    if widths and state.pcie_most_width and max(widths) < state.pcie_most_width:
        wrong.append(f"PCIe width x{max(widths)} of x{state.pcie_most_width} under load")
    clocks = [sample.memory_mhz for sample in under_load if sample.memory_mhz]
    if clocks and state.most_memory_mhz and max(clocks) < LEAST_MEMORY_CLOCK * state.most_memory_mhz:
        wrong.append(f"memory clock {max(clocks):.0f} of {state.most_memory_mhz:.0f} MHz under load")
    return wrong


def _services(health: Health) -> list[CheckFinding]:
    """Persistence mode and the services of the fabric, which warn where they are known to be off.

    Without persistence the driver forgets counters, and lets clocks sink, whenever the last program on a GPU ends.
    """
    warning = CheckFinding(check=ENVIRONMENT, subject="persistence mode", verdict=CheckVerdict.WARN)
    findings = []
    off = [str(gpu.index) for gpu in health.gpus if gpu.before.persistence is False]
    host = health.host_after
    if off:
        evidence = f"off on GPU {' '.join(off)} (nvidia-smi -pm 1, or the service nvidia-persistenced)"
        findings.append(msgspec.structs.replace(warning, part="persistence mode", evidence=evidence))
    needed = {} if host is None else {FABRIC_MANAGER: host.switches, IMEX: host.imex_channels}
    for service, devices in needed.items():
        if host is not None and host.services is not None and devices and service not in host.services:
            evidence = f"{devices} {SERVICES[service]} does not run"
            findings.append(msgspec.structs.replace(warning, subject=service, part=service, evidence=evidence))
    return [msgspec.structs.replace(finding, action=RecoveryAction.FIX_SETTING) for finding in findings]


def _firmware(gpus: Sequence[GpuHealth]) -> str:
    """Which GPUs have which firmware, where it differs; empty where it does not."""
    versions: dict[str, list[str]] = {}
    for gpu in gpus:
        versions.setdefault(gpu.firmware, []).append(str(gpu.index))
    if len(versions) < 2:
        return ""
    return "firmware differs: " + ", ".join(f"{version} on GPU {' '.join(of)}" for version, of in versions.items())
