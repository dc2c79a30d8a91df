"""Check 13 of the node beside its GPUs: messages of the kernel, errors of memory and PCIe, disks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from suite.acceptance.check_table import ERRORS
from suite.acceptance.findings import not_run
from suite.acceptance.gpu_evidence import Health
from suite.acceptance.judge.causes import Cause, bad, finding_of, minor
from suite.acceptance.judge.nics import nic_findings
from suite.acceptance.node_state import Disk, HostCounter, HostReading, LogEvent, LogSubject
from suite.records.battery import CheckFinding, CheckVerdict, RecoveryAction

Item = TypeVar("Item")
KERNEL_LOG = "kernel log"
LEAST_SIBLINGS = 2  # disks of one model, beside the one that is compared with them
_ACTIONS = {
    LogSubject.SWITCH: RecoveryAction.REBOOT_NODE,
    LogSubject.PCIE: RecoveryAction.RESEAT,
    LogSubject.MEMORY: RecoveryAction.RETURN,
    LogSubject.NETWORK: RecoveryAction.RESEAT,
    LogSubject.DISK: RecoveryAction.RETURN,
}


def node_findings(health: Health | None) -> list[CheckFinding]:
    """Findings of the node beside its GPUs; none of a record that has no readings of it."""
    if health is None or health.host_after is None:
        return []
    before, after = health.host_before or health.host_after, health.host_after
    names = _device_names(health)
    return [
        *_log_findings(health, names),
        *_counter_findings(before, after, names),
        *nic_findings(before.nics, after.nics),
        _disk_finding(after.disks),
    ]


def _device_names(health: Health) -> dict[str, str]:
    """By PCI address, what an operator calls the device."""
    names = {gpu.pci: f"GPU {gpu.index} at {gpu.pci}" for gpu in health.gpus if gpu.pci}
    for nic in health.host_after.nics if health.host_after else []:
        if nic.pci:
            names[nic.pci] = f"{nic.name} at {nic.pci}"
    return names


def _log_findings(health: Health, names: Mapping[str, str]) -> list[CheckFinding]:
    """Findings on the kernel's messages, one a part of the node; without messages one that says so, or why.

    On a node with GPUs, the finding of earlier XIDs says that the log cannot be read.
    """
    if health.why_no_xids:
        return [] if health.gpus else [not_run(ERRORS, health.why_no_xids, KERNEL_LOG)]
    findings = []
    for subject in LogSubject:
        events = [event for event in health.log if event.subject is subject]
        if events:
            causes = [_log_cause(event, names) for event in events]
            parts = _parts(zip(causes, events, strict=True), lambda event: names.get(event.device, event.device))
            part = f"{subject.value}: {parts}"
            findings.append(finding_of(ERRORS, f"{KERNEL_LOG}, {subject.value}", causes, part=part, fine=""))
    none = "no errors of NVSwitches, PCIe, memory, network cards or disks since the machine started"
    return findings or [finding_of(ERRORS, KERNEL_LOG, [], part="", fine=none)]


def _log_cause(event: LogEvent, names: Mapping[str, str]) -> Cause:
    """Fatal messages under load reject. Earlier ones warn: some are of the machine's life before it started.

    An NVSwitch stays out of order after a fatal error until its driver is loaded anew.
    """
    times = "" if event.times == 1 else f", {event.times} times"
    since = "under load" if event.under_load else "since the machine started"
    words = f"{names.get(event.device, event.device)}: {event.what}{times} {since}"
    rejects = event.fatal and (event.under_load or event.subject is LogSubject.SWITCH)
    action = _ACTIONS[event.subject]
    if not event.fatal:
        action = (
            RecoveryAction.RESEAT if event.subject in (LogSubject.PCIE, LogSubject.NETWORK) else RecoveryAction.NONE
        )
    return bad(words, action) if rejects else minor(words, action)


def _parts(causes: Iterable[tuple[Cause, Item]], name: Callable[[Item], str]) -> str:
    """Devices of the worst causes."""
    pairs = list(causes)
    fails = any(cause.verdict is CheckVerdict.FAIL for cause, _ in pairs)
    return ", ".join(
        dict.fromkeys(name(item) for cause, item in pairs if not fails or cause.verdict is CheckVerdict.FAIL)
    )


def _counter_findings(before: HostReading, after: HostReading, names: Mapping[str, str]) -> list[CheckFinding]:
    """Growth of counters under load; uncorrected errors of memory reject whenever they were counted."""
    first = {counter.key: counter.value for counter in before.counters}
    findings = []
    for subject, title in ((LogSubject.MEMORY, "host memory"), (LogSubject.PCIE, "PCIe errors")):
        counters = [counter for counter in after.counters if counter.subject is subject]
        if not counters:
            why = "the system counts no errors of its memory (EDAC)" if subject is LogSubject.MEMORY else "not counted"
            findings.append(not_run(ERRORS, why, title))
            continue
        causes = [
            (cause, counter)
            for counter in counters
            if (cause := _counter_cause(counter, first.get(counter.key, 0), names)) is not None
        ]
        earlier = sum(counter.value for counter in counters)
        part = f"{title}: {_parts(causes, lambda counter: names.get(counter.device, counter.device))}"
        fine = "no counter changed" + (f", {earlier} errors since the machine started" if earlier else "")
        findings.append(finding_of(ERRORS, title, [cause for cause, _ in causes], part=part, fine=fine))
    return findings


def _counter_cause(counter: HostCounter, first: int, names: Mapping[str, str]) -> Cause | None:
    grown = counter.value - first if counter.value >= first else counter.value  # the machine restarted
    device = names.get(counter.device, counter.device)
    action = RecoveryAction.RETURN if counter.subject is LogSubject.MEMORY else RecoveryAction.RESEAT
    if grown:
        words = f"{device}: {grown} {counter.what} under load"
        return bad(words, action) if counter.fatal else minor(words, action)
    if counter.fatal and counter.value and counter.subject is LogSubject.MEMORY:
        return bad(f"{device}: {counter.value} {counter.what} since the machine started", action)
    return None


def _disk_finding(disks: Sequence[Disk]) -> CheckFinding:
    """NVMe controllers; their wear and media errors are for root alone."""
    title = "NVMe disks"
    if not disks:
        return not_run(ERRORS, "no NVMe disk", title)
    causes = [(cause, disk) for disk in disks for cause in _disk_causes(disk, disks)]
    unread = sorted(
        {"state" for disk in disks if not disk.state} | {"temperature" for disk in disks if not disk.celsius}
    )
    not_read = f"not read: {', '.join([*unread, 'wear', 'media errors'])} (the latter two need root: nvme smart-log)"
    part = f"disk {_parts(causes, lambda disk: disk.name)}"
    fine = f"{len(disks)} live"
    return finding_of(ERRORS, title, [cause for cause, _ in causes], part=part, fine=fine, also=not_read)


def _disk_causes(disk: Disk, disks: Sequence[Disk]) -> list[Cause]:
    causes = []
    if disk.state == "dead":
        causes.append(bad(f"{disk.name}: dead", RecoveryAction.RETURN))
    elif disk.state and disk.state != "live":
        causes.append(minor(f"{disk.name}: {disk.state}", RecoveryAction.REPEAT))
    if disk.alarm or (disk.celsius and disk.most_celsius and disk.celsius >= disk.most_celsius):
        causes.append(minor(f"{disk.name}: critical temperature, {disk.celsius or 0:.0f} C", RecoveryAction.RESEAT))
    alike = [other for other in disks if other.model == disk.model and other is not disk]
    if len(alike) >= LEAST_SIBLINGS:
        for field, word in (("pcie_width", "PCIe lanes"), ("pcie_gigatransfers", "GT/s of PCIe")):
            own, others = getattr(disk, field), [getattr(other, field) for other in alike]
            if own is not None and None not in others and own < min(others):
                words = f"{disk.name}: {own:g} {word}, {min(others):g} of others of its model"
                causes.append(minor(words, RecoveryAction.RESEAT))
    return causes
