"""Check 0 of the host itself: clocks, shares of the processors, memory, disk, and the time of day."""

from __future__ import annotations

import time

from suite.acceptance.check_table import ENVIRONMENT
from suite.acceptance.evidence import Surroundings
from suite.machine.host_state import HostState
from suite.records.battery import CheckFinding, CheckVerdict

# of the results directory: a disk that turns writes 4 MiB in 0.1 s, at 40 MB/s
SLOW_DISK_BYTES_PER_SECOND = 5e6
CLOCK_SECONDS = 60.0  # by which clocks of a cluster may differ
LEAST_CLOCK = 0.98  # of the highest there is
# their "powersave" lets the processor choose, up to its highest clock
CHOOSING_DRIVERS = ("intel_pstate", "amd-pstate-epp")


def host_findings(around: Surroundings, *, others: float) -> list[CheckFinding]:
    """A finding for each unusual setting, or one that says that nothing is unusual."""
    host = around.host
    if host is None:
        return []
    unusual = [*_processors(host, around, others), *_memory(host), *_disk(host), *_clock(around)]
    if unusual:
        return unusual
    return [CheckFinding(check=ENVIRONMENT, subject="host", verdict=CheckVerdict.PASS, evidence="nothing unusual")]


def _found(verdict: CheckVerdict, part: str, evidence: str) -> CheckFinding:
    return CheckFinding(check=ENVIRONMENT, subject=f"host, {part}", verdict=verdict, part=part, evidence=evidence)


def _processors(host: HostState, around: Surroundings, others: float) -> list[CheckFinding]:
    """Clocks only warn: a site may want them so. A quota below the usable cores stops ranks again and again."""
    findings = []
    slow = {name for name in host.governors if name in ("powersave", "conservative")}
    chooses = host.governor_driver.startswith(CHOOSING_DRIVERS)
    if len(host.governors) > 1 or (slow and not chooses):
        counts = ", ".join(f"{name} on {count}" for name, count in sorted(host.governors.items()))
        findings.append(_found(CheckVerdict.WARN, "clock governor", f"{counts} processors ({host.governor_driver})"))
    if host.clock_share is not None and host.clock_share < LEAST_CLOCK:
        evidence = f"clocks may reach {host.clock_share:.0%} of the processors' highest"
        findings.append(_found(CheckVerdict.WARN, "clock limit", evidence))
    cores = around.cores or around.devices
    if host.quota_cores is not None and host.quota_cores < cores:
        verdict = CheckVerdict.INVALID if around.device == "cpu" else CheckVerdict.WARN
        evidence = f"a cgroup allows the time of {host.quota_cores:.3g} processors, and {cores} are usable"
        findings.append(_found(verdict, "cgroup quota", evidence))
    if host.siblings_share is not None and host.siblings_share > others:
        evidence = (
            f"others compute {host.siblings_share:.0%} of the time on a hardware thread that shares a core with ours"
        )
        findings.append(_found(CheckVerdict.INVALID, "SMT sibling", evidence))
    return findings


def _memory(host: HostState) -> list[CheckFinding]:
    findings = []
    for nodes, why in (
        (host.numa_absent, "the firmware lists, and the system has not"),
        (host.numa_without_memory, "has processors and no memory"),
    ):
        if nodes:
            part = f"NUMA node {', '.join(map(str, nodes))}"
            findings.append(_found(CheckVerdict.WARN, part, f"{part}: {why}"))
    if host.huge_pages == "never":
        evidence = "transparent huge pages are off: memory is slower than on nodes that have them"
        findings.append(_found(CheckVerdict.WARN, "huge pages", evidence))
    return findings


def _disk(host: HostState) -> list[CheckFinding]:
    rate = host.written_bytes_per_second
    if rate is None or rate >= SLOW_DISK_BYTES_PER_SECOND:
        return []
    evidence = f"results are written at {rate / 1e6:.2g} MB/s, {SLOW_DISK_BYTES_PER_SECOND / 1e6:.0f} expected at least"
    return [_found(CheckVerdict.WARN, "disk of the results", evidence)]


def _clock(around: Surroundings) -> list[CheckFinding]:
    """A clock that went back would date this battery before its own past."""
    ahead = around.newest_past - around.now if around.newest_past and around.now else 0.0
    if ahead <= CLOCK_SECONDS:
        return []
    stamp = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(around.newest_past))
    return [_found(CheckVerdict.WARN, "clock", f"a battery of this node ended {ahead:.0f} s in the future, {stamp}")]
