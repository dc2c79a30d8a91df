"""The second half of check 15: how fast the soak's verified products were, in bursts and for long."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

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
from suite.records.battery import CheckFinding

SUSTAINED_SECONDS = 10.0  # of products, from which a GPU is at its power limit
BURST = msgspec.structs.replace(VERIFIED_PRODUCTS, warn=CHECKS[MATRIX].warn, fail=CHECKS[MATRIX].fail)
# GPUs of one model at their power limit differ by some percent: a judgement, to be set anew from known-good nodes
SPREAD = msgspec.structs.replace(VERIFIED_PRODUCTS, warn=0.90, fail=0.80, unit="")


def product_findings(probe: ProbeResult, history: History, gpu: Accelerator | None = None) -> list[CheckFinding]:
    """The slowest rank in bursts, over 10 s or more, and how much the ranks differ in the latter.

    A burst of milliseconds ends before a GPU is at its power limit, so both are judged apart. Products of fewer seconds
    are no sustained ones.

    Args:
        gpu: the model of the node's GPUs, where it is known.
    """
    timed = [soak for soak in probe.soaks if soak.product_flop_per_second is not None]
    if not probe.has("soaks") or not timed:
        return []
    findings = []
    bursts = [soak.burst_flop_per_second for soak in timed if soak.burst_flop_per_second is not None]
    if len(bursts) == len(timed):
        most = data_sheet.upper_limit(gpu, "product")
        number = judged_rank(bursts, most)
        findings.append(
            rate_finding(
                BURST,
                f"{PRODUCTS}, burst",
                bursts[number],
                history,
                f"matrix rate of rank {timed[number].rank}",
                floor_rates(gpu, BURST, FloorQuantity.BF16_GEMM),
                _of_ranks(timed, bursts),
                most=most,
                without=without_floor(gpu, "16-bit GEMM rate"),
            )
        )
    seconds, subject = min(soak.product_seconds for soak in timed), f"{PRODUCTS}, sustained"
    if seconds < SUSTAINED_SECONDS:
        why = f"products ran for {seconds:.1f} s, {SUSTAINED_SECONDS:.0f} s needed"
        return [*findings, not_run(SOAK, why, subject)]
    rates = [soak.product_flop_per_second or 0.0 for soak in timed]
    most = data_sheet.upper_limit(gpu, "sustained product")
    number = judged_rank(rates, most)
    findings.append(
        rate_finding(
            VERIFIED_PRODUCTS,
            subject,
            rates[number],
            history,
            f"matrix rate of rank {timed[number].rank} under sustained load",
            floor_rates(gpu, VERIFIED_PRODUCTS, FloorQuantity.SUSTAINED_GEMM),
            joined_evidence(f"{seconds:.0f} s", _of_ranks(timed, rates)),
            most=most,
            without=without_floor(gpu, "16-bit GEMM rate of 10 s or more"),
        )
    )
    if len(timed) > 1:
        slowest = rates.index(min(rates))
        findings.append(
            limited(
                SPREAD,
                f"{PRODUCTS}, slowest rank / median rank",
                rates[slowest] / statistics.median(rates),
                part=f"matrix rate of rank {timed[slowest].rank} under sustained load",
                source="median of the ranks",
            )
        )
    return findings


def _of_ranks(timed: Sequence[SoakResult], rates: Sequence[float]) -> str:
    return "Tflop/s: " + ", ".join(
        f"rank {soak.rank} {rate / 1e12:,.4g}" for soak, rate in zip(timed, rates, strict=True)
    )
