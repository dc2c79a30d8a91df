"""Checks 1 to 6: rates of ranks, memory and links against the rates expected of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from reference_runs.accelerator import Accelerator
from suite.acceptance.check_table import ALL_REDUCE, CHECKS, HOST_DEVICE, MATRIX, MEMORY, PEER, SPREAD, AcceptanceCheck
from suite.acceptance.evidence import Exchange, MicroMeasurements, ProbeResult
from suite.acceptance.findings import TO_THE_BIT, CheckFinding, CheckVerdict, failed_measurement, not_run
from suite.acceptance.judge import data_sheet
from suite.acceptance.judge.expected_rates import ExpectedRate, from_peak, from_values, limited, rated
from suite.acceptance.past_batteries import NODE_PAST, OTHER_NODES, History, measured_values
from suite.job.events import Status

PAIRS_FOR_A_MEDIAN = 3


def micro_findings(micro: MicroMeasurements, history: History, gpu: Accelerator | None = None) -> list[CheckFinding]:
    """Checks 1 to 4, from the micro-measurements.

    Args:
        gpu: the model of the node's GPUs, where it is known.
    """
    if micro.status is not Status.OK:
        return [failed_measurement(number, micro) for number in (MATRIX, SPREAD, MEMORY)]
    findings = [_slowest_rank(micro, history, gpu), _spread(micro.matrix)]
    for operation, rates in (("copy", micro.copy), ("triad", micro.triad)):
        slowest = rates.index(min(rates))
        part = f"memory bandwidth (rank {slowest} slowest)"
        expected = data_sheet.expected(gpu, operation)
        findings.append(rate_finding(CHECKS[MEMORY], operation, rates[slowest], history, part, expected))
    if not micro.host_device:
        findings.append(not_run(HOST_DEVICE, "no GPU"))
    for direction, rate in micro.host_device.items():
        part, expected = f"host link, {direction}", data_sheet.expected(gpu, "host link")
        findings.append(rate_finding(CHECKS[HOST_DEVICE], direction, rate, history, part, expected))
    return findings


def _slowest_rank(micro: MicroMeasurements, history: History, gpu: Accelerator | None) -> CheckFinding:
    slowest = micro.matrix.index(min(micro.matrix))
    expected = data_sheet.expected(gpu, "product")
    if micro.peak is not None:
        expected.append(from_peak(micro.peak, micro.peak_source))
    return rate_finding(
        CHECKS[MATRIX],
        "slowest rank",
        micro.matrix[slowest],
        history,
        f"matrix rate of rank {slowest}",
        expected,
        compared_as=f"slowest rank, {micro.points} shapes timed",
    )


def _spread(rates: Sequence[float]) -> CheckFinding:
    if len(rates) < 2:
        return not_run(SPREAD, "one rank has nothing to be compared with")
    slowest = rates.index(min(rates))
    return limited(
        CHECKS[SPREAD],
        "matrix rate",
        rates[slowest] / statistics.median(rates),
        part=f"matrix rate of rank {slowest}",
        source="median of the ranks",
        evidence="Gflop/s: " + ", ".join(f"rank {rank} {rate / 1e9:,.1f}" for rank, rate in enumerate(rates)),
    )


def exchange_findings(
    probe: ProbeResult, history: History, gpu: Accelerator | None = None, gpus: int = 0
) -> list[CheckFinding]:
    """Checks 5 and 6: messages between two ranks and all-reduces of all, their rates and every bit that arrived.

    Args:
        gpu: the model of the node's GPUs, where it is known; `gpus` their number.
    """
    if probe.status is not Status.OK:
        return [failed_measurement(PEER, probe), failed_measurement(ALL_REDUCE, probe)]
    if not probe.exchanges:
        return [not_run(number, "one rank has nobody to exchange with") for number in (PEER, ALL_REDUCE)]
    messages = [exchange for exchange in probe.exchanges if exchange.peer is not None]
    sums = [exchange for exchange in probe.exchanges if exchange.peer is None]
    size = f"messages of {probe.exchanges[0].bytes} byte"
    findings = []
    pairs = {(message.rank, message.peer): message.bytes_per_second for message in messages}
    rates = {(rank, peer): rate for (rank, peer), rate in pairs.items() if peer is not None and rank < peer}
    of_pairs = data_sheet.expected(gpu, "pair", gpus)
    if len(rates) >= PAIRS_FOR_A_MEDIAN:
        median = statistics.median(rates.values())
        of_pairs.insert(0, ExpectedRate(value=median, source=f"median of {len(rates)} pairs", warn=0.97, fail=0.93))
    for (rank, peer), rate in rates.items():
        link = f"link {rank}-{peer}"
        compared_as = f"{link}, {size}"
        findings.append(rate_finding(CHECKS[PEER], link, rate, history, link, of_pairs, compared_as=compared_as))
    if sums:
        ranks = len(sums)
        rate = min(exchange.bytes_per_second for exchange in sums) * 2 * (ranks - 1) / ranks
        name = f"busbw of {ranks} ranks"
        part = "link 0-1" if ranks == 2 else f"links between {ranks} ranks"
        expected = data_sheet.expected(gpu, "all-reduce", ranks)
        compared_as = f"{name}, {size}"
        findings.append(rate_finding(CHECKS[ALL_REDUCE], name, rate, history, part, expected, compared_as=compared_as))
    return [*findings, _contents(PEER, "messages", messages), _contents(ALL_REDUCE, "sums", sums)]


def _contents(number: int, kind: str, exchanges: Sequence[Exchange]) -> CheckFinding:
    """Whether every element that arrived is the one that was sent, or the exact sum."""
    bad = [exchange for exchange in exchanges if exchange.wrong]
    parts = {f"rank {item.rank}" if item.peer is None else f"link {item.peer}-{item.rank}" for item in bad}
    evidence = "; ".join(f"rank {exchange.rank}: {exchange.wrong} wrong, {exchange.first}" for exchange in bad[:4])
    return CheckFinding(
        check=number,
        subject=f"{kind} {TO_THE_BIT}",
        verdict=CheckVerdict.FAIL if bad else CheckVerdict.PASS,
        measured=float(sum(exchange.wrong for exchange in exchanges)),
        expected=0.0,
        source="what was sent" if kind == "messages" else "the exact sum",
        part=", ".join(sorted(parts)),
        evidence=evidence or f"{len(exchanges)} exchanges",
    )


def rate_finding(
    check: AcceptanceCheck,
    subject: str,
    value: float,
    history: History,
    part: str,
    known: Sequence[ExpectedRate],
    evidence: str = "",
    compared_as: str = "",
) -> CheckFinding:
    """The verdict on a rate against `known` rates, this node's past, and other nodes of the fleet.

    Args:
        compared_as: name of what other batteries measured in the same way, where the subject alone does not say it.
    """
    past, fleet = (measured_values(findings) for findings in history.of(check.number, compared_as or subject))
    measured = (from_values(check, past, NODE_PAST), from_values(check, fleet, OTHER_NODES))
    expected = [*known, *(rate for rate in measured if rate)]
    return rated(check, subject, value, expected, part=part, fleet=fleet, evidence=evidence, compared_as=compared_as)
