"""The part of check 15 with products of every format and all-reduces at once, in pulses: each was right to the bit."""

from __future__ import annotations

from collections.abc import Sequence

from suite.acceptance.check_table import SOAK
from suite.acceptance.evidence import ProbeResult, PulsedLoad
from suite.acceptance.findings import TO_THE_BIT, not_run
from suite.records.battery import CheckFinding, CheckVerdict

LOAD = "pulsed load"  # how the subjects begin
MIB = 2**20


def load_findings(probe: ProbeResult) -> list[CheckFinding]:
    """A finding for each format of products, also for those that a device lacks, and one for the sums beside them.

    No finding where the ranks did not get so far: then the soak itself has one.
    """
    if not probe.loads:
        return []
    pulses = min(load.pulses for load in probe.loads)
    period = probe.loads[0].pulse_seconds
    beside = "beside all-reduces" if all(load.sums for load in probe.loads) else "one rank, so beside no all-reduce"
    how = f"{pulses} pulses in step, {period / 2:g} s loaded and {period / 2:g} s idle, {beside}"
    findings = [_format(name, probe.loads, how) for name in _formats(probe.loads)]
    missing = {name: why for load in probe.loads for name, why in load.missing.items()}
    findings += [not_run(SOAK, why, f"{LOAD}, {name}") for name, why in missing.items()]
    if any(load.sums for load in probe.loads):
        findings.append(_sums(probe.loads))
    return findings


def _formats(loads: Sequence[PulsedLoad]) -> list[str]:
    return list(dict.fromkeys(one.format for load in loads for one in load.formats))


def _format(name: str, loads: Sequence[PulsedLoad], how: str) -> CheckFinding:
    own = {load.rank: one for load in loads for one in load.formats if one.format == name}
    rates = [one.flop_per_second for one in own.values() if one.flop_per_second is not None]
    rate = f"; at least {min(rates) / 1e12:.3g} Tflop/s a rank while loaded" if rates else ""
    least, size = min(one.products for one in own.values()), loads[0].size
    verified = f"{least} products of {size} x {size} a rank, all verified{rate}; {how}"
    wrong = {rank: one.wrong for rank, one in own.items() if one.wrong}
    return _finding(f"{LOAD}, {name}", wrong, loads, "memory or arithmetic", verified, "exact products")


def _sums(loads: Sequence[PulsedLoad]) -> CheckFinding:
    wrong = {load.rank: load.wrong_sums for load in loads if load.wrong_sums}
    least = min(load.sums for load in loads)
    verified = f"{least} all-reduces of {loads[0].sum_bytes / MIB:.4g} MiB beside products, all verified"
    return _finding(f"{LOAD}, sums {TO_THE_BIT}", wrong, loads, "links or arithmetic", verified, "the exact sum")


def _finding(
    subject: str, wrong: dict[int, int], loads: Sequence[PulsedLoad], what: str, verified: str, source: str
) -> CheckFinding:
    words = {load.rank: load.first for load in loads}
    return CheckFinding(
        check=SOAK,
        subject=subject,
        verdict=CheckVerdict.FAIL if wrong else CheckVerdict.PASS,
        measured=float(sum(wrong.values())),
        expected=0.0,
        source=source,
        part=", ".join(f"rank {rank}: {what}" for rank in wrong),
        evidence="; ".join(f"rank {rank}: {count} wrong, {words[rank]}" for rank, count in wrong.items()) or verified,
    )
