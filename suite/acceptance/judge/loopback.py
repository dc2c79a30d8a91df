"""Check 5 through the node's network cards: every bit that arrived, and rates, which only warn."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from suite.acceptance.check_table import CHECKS, PEER
from suite.acceptance.evidence import Exchange, NicLoopback
from suite.acceptance.findings import TO_THE_BIT, joined_evidence, not_run
from suite.acceptance.judge.expected_rates import ExpectedRate, rate_finding
from suite.acceptance.judge.rates import PAIRS_FOR_A_MEDIAN
from suite.acceptance.past_batteries import History
from suite.job.events import Status
from suite.records.battery import CheckFinding, CheckVerdict, RecoveryAction

SUBJECT = "network cards"
LEAST_OF_MEDIAN = 0.80  # judgement: pairs share cards and switches in different ways
LEAST_OF_CARDS = 0.50  # judgement: what falls back to TCP is far below, and NCCL's own overhead is not


def loopback_findings(loopback: NicLoopback, history: History) -> list[CheckFinding]:
    """Findings of exchanges through the network cards; a hang is one, and a crash leaves them open."""
    if loopback.why_not:
        return [not_run(PEER, loopback.why_not, SUBJECT)]
    if loopback.status is not Status.OK:
        hangs = loopback.status is Status.HANG
        return [
            CheckFinding(
                check=PEER,
                subject=SUBJECT,
                verdict=CheckVerdict.HANG if hangs else CheckVerdict.INCONCLUSIVE,
                status=Status.HANG if hangs else Status.OK,
                part=f"{SUBJECT}: {', '.join(loopback.ports)}",
                evidence=f"{loopback.status.value} with P2P and shared memory off: {loopback.message}",
                action=RecoveryAction.REPEAT if hangs else RecoveryAction.FIX_SETTING,
            )
        ]
    pairs = [item for item in loopback.exchanges if item.peer is not None]
    sums = [item for item in loopback.exchanges if item.peer is None and not item.operation and not item.algorithm]
    return [*_rates(loopback, pairs, sums, history), _contents(loopback)]


def _rates(
    loopback: NicLoopback, pairs: Sequence[Exchange], sums: Sequence[Exchange], history: History
) -> list[CheckFinding]:
    """The slowest pair against their median, and the all-reduce against the rate of all cards."""
    findings = []
    rates = {(item.rank, item.peer): item.bytes_per_second for item in pairs if item.peer is not None}
    if rates:
        (rank, peer), slowest = min(rates.items(), key=lambda item: item[1])
        known: list[ExpectedRate] = []
        if len(rates) >= PAIRS_FOR_A_MEDIAN:
            median = statistics.median(rates.values())
            known = [
                ExpectedRate(value=median, source=f"median of {len(rates)} pairs", warn=LEAST_OF_MEDIAN, fail=None)
            ]
        subject = f"{SUBJECT}, slowest pair"
        findings.append(_rate(subject, slowest, f"link {rank}-{peer} through network cards", known, loopback, history))
    if sums:
        ranks = len(sums)
        slowest = min(item.bytes_per_second for item in sums) * 2 * (ranks - 1) / ranks
        # what a ring sends from one rank to the next leaves through that rank's share of the cards
        share = loopback.gbits * 1e9 / 8 / ranks
        known = [
            ExpectedRate(value=share, source=f"rate of {len(loopback.ports)} ports", warn=LEAST_OF_CARDS, fail=None)
        ]
        subject = f"{SUBJECT}, busbw of {ranks} ranks"
        findings.append(_rate(subject, slowest, SUBJECT, known if share else [], loopback, history))
    return findings


def _rate(
    subject: str, value: float, part: str, known: list[ExpectedRate], loopback: NicLoopback, history: History
) -> CheckFinding:
    """The rate, which warns at worst: no floor of good nodes is known."""
    compared_as = f"{subject}, {len(loopback.ports)} ports"
    finding = rate_finding(CHECKS[PEER], subject, value, history, part, known, compared_as=compared_as)
    if finding.verdict is not CheckVerdict.FAIL:
        return finding
    evidence = joined_evidence(finding.evidence, "no floor of good nodes is known: it only warns")
    return msgspec.structs.replace(finding, verdict=CheckVerdict.WARN, evidence=evidence)


def _contents(loopback: NicLoopback) -> CheckFinding:
    wrong = [item for item in loopback.exchanges if item.wrong]
    first = "; ".join(f"rank {item.rank}: {item.wrong} wrong, {item.first}" for item in wrong[:4])
    return CheckFinding(
        check=PEER,
        subject=f"{SUBJECT}, messages {TO_THE_BIT}",
        verdict=CheckVerdict.FAIL if wrong else CheckVerdict.PASS,
        measured=float(sum(item.wrong for item in wrong)),
        expected=0.0,
        source="what was sent",
        part=f"{SUBJECT}: {', '.join(loopback.ports)}" if wrong else "",
        evidence=first or f"{len(loopback.exchanges)} exchanges through {', '.join(loopback.ports)}",
        action=RecoveryAction.RETURN if wrong else None,
    )
