"""Checks 1 to 6: what ranks, memory and links can do, beside what they should."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from reference_runs.accelerator import Accelerator
from suite.acceptance.check_table import ALL_REDUCE, CHECKS, HOST_DEVICE, MATRIX, MEMORY, PEER, SPREAD, Check
from suite.acceptance.evidence import Exchange, Micro, Probing
from suite.acceptance.findings import TO_THE_BIT, Finding, Verdict
from suite.acceptance.judge.data_sheet import (
    all_reduce_expected,
    host_expected,
    memory_expected,
    pair_expected,
    product_expected,
)
from suite.acceptance.judge.expected_rates import Expected, from_peak, from_values, limited, rated
from suite.acceptance.judge.failed_measurements import broken
from suite.acceptance.past_batteries import History
from suite.job.events import Status

PAIRS_FOR_A_MEDIAN = 3


def micro_findings(micro: Micro, history: History, gpu: Accelerator | None = None) -> list[Finding]:
    """Checks 1 to 4, from the micro-measurements; `gpu` is the model of the node's GPUs, where it is known."""
    if micro.status is not Status.OK:
        return [broken(number, micro) for number in (MATRIX, SPREAD, MEMORY)]
    findings = []
    slowest = min(range(len(micro.matrix)), key=lambda rank: micro.matrix[rank])
    peak = product_expected(gpu)
    if micro.peak is not None:
        peak.append(from_peak(micro.peak, micro.peak_source))
    part = f"matrix rate of rank {slowest}"
    same = f"slowest rank, {micro.points} shapes timed"
    findings.append(against(CHECKS[MATRIX], "slowest rank", micro.matrix[slowest], history, part, peak, siblings=same))
    if len(micro.matrix) < 2:
        findings.append(_not_run(SPREAD, "one rank has nothing to be compared with"))
    else:
        share = micro.matrix[slowest] / statistics.median(micro.matrix)
        rates = ", ".join(f"rank {rank} {rate / 1e9:,.1f}" for rank, rate in enumerate(micro.matrix))
        findings.append(
            limited(
                CHECKS[SPREAD],
                "matrix rate",
                share,
                part=f"matrix rate of rank {slowest}",
                source="median of the ranks",
                evidence=f"Gflop/s: {rates}",
            )
        )
    for name, rates_of in (("copy", micro.copy), ("triad", micro.triad)):
        slow = min(range(len(rates_of)), key=lambda rank: rates_of[rank])
        part = f"memory bandwidth (rank {slow} slowest)"
        findings.append(against(CHECKS[MEMORY], name, rates_of[slow], history, part, memory_expected(gpu, name)))
    if not micro.host_device:
        findings.append(_not_run(HOST_DEVICE, "no GPU"))
    for direction, rate in micro.host_device.items():
        expected = host_expected(gpu)
        findings.append(against(CHECKS[HOST_DEVICE], direction, rate, history, f"host link, {direction}", expected))
    return findings


def exchange_findings(
    probing: Probing, history: History, gpu: Accelerator | None = None, gpus: int = 0
) -> list[Finding]:
    """Checks 5 and 6: what arrived between two ranks and from all of them, to the bit, and how fast.

    Args:
        gpu: the model of the node's GPUs, where it is known; `gpus` their number.
    """
    if probing.status is not Status.OK:
        return [broken(PEER, probing), broken(ALL_REDUCE, probing)]
    if not probing.exchanges:
        return [_not_run(number, "one rank has nobody to exchange with") for number in (PEER, ALL_REDUCE)]
    findings = []
    pairs = [one for one in probing.exchanges if one.peer is not None and one.rank < one.peer]
    rates = {(one.rank, one.peer): one.bytes_per_second for one in pairs}
    size = f"messages of {probing.exchanges[0].bytes} byte"
    middle = statistics.median(rates.values())
    for (first, second), rate in rates.items():
        assert second is not None
        cell = [Expected(value=middle, source=f"median of {len(rates)} pairs", warn=0.97, fail=0.93)]
        enough = len(rates) >= PAIRS_FOR_A_MEDIAN
        link = f"link {first}-{second}"
        expected = [*(cell if enough else []), *pair_expected(gpu, gpus)]
        findings.append(against(CHECKS[PEER], link, rate, history, link, expected, siblings=f"{link}, {size}"))
    sums = [one for one in probing.exchanges if one.peer is None]
    if sums:
        n = len(sums)
        slowest = min(one.bytes_per_second for one in sums) * 2 * (n - 1) / n
        expected = all_reduce_expected(gpu, n)
        part = "link 0-1" if n == 2 else f"links between {n} ranks"
        name = f"busbw of {n} ranks"
        same = f"{name}, {size}"
        findings.append(against(CHECKS[ALL_REDUCE], name, slowest, history, part, expected, siblings=same))
    for kind, number, among in (
        ("messages", PEER, [one for one in probing.exchanges if one.peer is not None]),
        ("sums", ALL_REDUCE, sums),
    ):
        findings.append(_contents(number, kind, among))
    return findings


def _contents(number: int, kind: str, exchanges: Sequence[Exchange]) -> Finding:
    """Whether every element that arrived was the right one."""
    wrong = [one for one in exchanges if one.wrong]
    parts = sorted({f"rank {one.rank}" if one.peer is None else f"link {one.peer}-{one.rank}" for one in wrong})
    words = "; ".join(f"rank {one.rank}: {one.wrong} wrong, {one.first}" for one in wrong[:4])
    return Finding(
        check=number,
        subject=f"{kind} {TO_THE_BIT}",
        verdict=Verdict.FAIL if wrong else Verdict.PASS,
        measured=float(sum(one.wrong for one in exchanges)),
        expected=0.0,
        source="what was sent" if kind == "messages" else "the exact sum",
        part=", ".join(parts),
        evidence=words or f"{len(exchanges)} exchanges",
    )


def against(
    check: Check,
    subject: str,
    value: float,
    history: History,
    part: str,
    others: Sequence[Expected],
    evidence: str = "",
    siblings: str = "",
) -> Finding:
    """The verdict on a rate beside `others`, this node's past, and its siblings.

    Args:
        siblings: names what other batteries measured in the same way, where the subject alone does not.
    """
    past, fleet = history.of(check.number, siblings or subject)
    expected = [
        *others,
        *(one for one in (from_values(check, past, "accepted batteries of this node"),) if one),
        *(one for one in (from_values(check, fleet, "siblings in the fleet"),) if one),
    ]
    return rated(check, subject, value, expected, part=part, fleet=fleet, evidence=evidence, siblings=siblings)


def _not_run(number: int, why: str) -> Finding:
    return Finding(check=number, subject="", verdict=Verdict.NOT_RUN, evidence=why)
