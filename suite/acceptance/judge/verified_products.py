"""The second half of check 15: how fast the soak's verified products were, in bursts and for long."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from reference_runs.accelerator import Accelerator
from reference_runs.floors import FloorQuantity
from suite.acceptance.check_table import CHECKS, MATRIX, SOAK, VERIFIED_PRODUCTS
from suite.acceptance.evidence import ProbeResult, SoakResult
from suite.acceptance.findings import PRODUCTS, joined_evidence, not_run
from suite.acceptance.judge import data_sheet
from suite.acceptance.judge.expected_rates import limited, rate_finding
from suite.acceptance.judge.floors import floor_rates, without_floor
from suite.acceptance.judge.rates import judged_rank
from suite.acceptance.past_batteries import History
from suite.records.battery import CheckFinding, CheckVerdict

SUSTAINED_SECONDS = 10.0  # of products, from which a GPU is at its power limit
BURST = msgspec.structs.replace(VERIFIED_PRODUCTS, warn=CHECKS[MATRIX].warn, fail=CHECKS[MATRIX].fail)
# GPUs of one model at their power limit differ by some percent: a judgement, to be set anew from known-good nodes
SPREAD = msgspec.structs.replace(VERIFIED_PRODUCTS, warn=0.90, fail=0.80, unit="")


class _Burst(NamedTuple):
    """Products of one format: their rate, names for people, their floor, and the rate that none exceeds."""

    subject: str
    words: str
    gemm: str
    quantity: FloorQuantity
    limit: str
    rate: Callable[[SoakResult], float | None]


BF16 = _Burst(
    f"{PRODUCTS}, burst",
    "matrix rate",
    "16-bit GEMM",
    FloorQuantity.BF16_GEMM,
    "product",
    attrgetter("burst_flop_per_second"),
)
FP8 = _Burst(
    f"{PRODUCTS}, FP8 burst",
    "FP8 matrix rate",
    "FP8 GEMM",
    FloorQuantity.FP8_GEMM,
    "FP8 product",
    attrgetter("fp8_flop_per_second"),
)


def product_findings(probe: ProbeResult, history: History, gpu: Accelerator | None = None) -> list[CheckFinding]:
    """The slowest rank in bursts, of bf16 and FP8, over 10 s or more, and how much the ranks differ in the latter.

    A burst of milliseconds ends before a GPU is at its power limit, so both are judged apart. Products of fewer seconds
    are no sustained ones. A burst is the fastest of many: a host that is late now and then does not lower it.

    Args:
        gpu: the model of the node's GPUs, where it is known.
    """
    timed = [soak for soak in probe.soaks if soak.product_flop_per_second is not None]
    if not probe.has("soaks") or not timed:
        return []
    findings = [*_bursts(timed, history, gpu, BF16), *_bursts(timed, history, gpu, FP8)]
    seconds, subject = min(soak.product_seconds for soak in timed), f"{PRODUCTS}, sustained"
    if seconds < SUSTAINED_SECONDS:
        why = f"products ran for {seconds:.1f} s, {SUSTAINED_SECONDS:.0f} s needed"
        return [*findings, not_run(SOAK, why, subject)]
    rates = [soak.product_flop_per_second or 0.0 for soak in timed]
    most = data_sheet.upper_limit(gpu, "sustained product")

    def judged(number: int, rate: float) -> CheckFinding:
        return rate_finding(
            VERIFIED_PRODUCTS,
            subject,
            rate,
            history,
            f"matrix rate of rank {timed[number].rank} under sustained load",
            floor_rates(gpu, VERIFIED_PRODUCTS, FloorQuantity.SUSTAINED_GEMM),
            joined_evidence(f"{seconds:.0f} s", _of_ranks(timed, rates)),
            most=most,
            without=without_floor(gpu, "16-bit GEMM rate of 10 s or more"),
        )

    def compared(number: int, rate: float) -> CheckFinding:
        return limited(
            SPREAD,
            f"{PRODUCTS}, slowest rank / median rank",
            rate / statistics.median(rates),
            part=f"matrix rate of rank {timed[number].rank} under sustained load",
            source="median of the ranks",
        )

    findings.append(_unless_the_host_waited(timed, rates, judged_rank(rates, most), judged))
    if len(timed) > 1:
        findings.append(_unless_the_host_waited(timed, rates, rates.index(min(rates)), compared))
    return findings


def _bursts(
    timed: Sequence[SoakResult], history: History, gpu: Accelerator | None, burst: _Burst
) -> list[CheckFinding]:
    """The slowest rank's fastest products of one format; none where not all ranks have timed some."""
    known = [rate for soak in timed if (rate := burst.rate(soak)) is not None]
    if len(known) < len(timed):
        return []
    most = data_sheet.upper_limit(gpu, burst.limit)
    number = judged_rank(known, most)
    return [
        rate_finding(
            BURST,
            burst.subject,
            known[number],
            history,
            f"{burst.words} of rank {timed[number].rank}",
            floor_rates(gpu, BURST, burst.quantity),
            _of_ranks(timed, known),
            most=most,
            without=without_floor(gpu, f"{burst.gemm} rate"),
        )
    ]


def _unless_the_host_waited(
    timed: Sequence[SoakResult], rates: Sequence[float], slowest: int, judged: Callable[[int, float], CheckFinding]
) -> CheckFinding:
    """The finding about the slowest rank; a failure is left open where the host may explain it.

    A GPU has nothing to do while its host waits for a processor. So a rank fails where it would if the host had never
    waited, the slowest of such ranks first.
    """
    most = [max(soak.undelayed_flop_per_second or 0.0, rate) for soak, rate in zip(timed, rates, strict=True)]
    surely = most.index(min(most))
    if judged(surely, most[surely]).verdict is CheckVerdict.FAIL:
        return judged(surely, rates[surely])
    finding = judged(slowest, rates[slowest])
    if finding.verdict is not CheckVerdict.FAIL:
        return finding
    waited = f"the host waited for a processor, and rank {timed[slowest].rank} for it"
    evidence = joined_evidence(finding.evidence, f"{waited}: without that up to {most[slowest] / 1e12:,.4g} Tflop/s")
    return msgspec.structs.replace(finding, verdict=CheckVerdict.INCONCLUSIVE, evidence=evidence)


def _of_ranks(timed: Sequence[SoakResult], rates: Sequence[float]) -> str:
    return "Tflop/s: " + ", ".join(
        f"rank {soak.rank} {rate / 1e12:,.4g}" for soak, rate in zip(timed, rates, strict=True)
    )
