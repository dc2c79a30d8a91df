"""Products of 10 s and more are held to what a GPU keeps up at its power limit, bursts to what it reaches below."""

from __future__ import annotations

import msgspec
import pytest

from reference_runs.accelerator import known_gpu
from suite.acceptance.findings import rests_on_clocks
from suite.acceptance.judge.verified_products import product_findings
from tests.support.batteries import NOTHING, probing
from tests.support.batteries import soaked as made_up_soak

H100, H200 = known_gpu("NVIDIA H100 80GB HBM3"), known_gpu("NVIDIA H200")
BURST, FP8, SUSTAINED, SPREAD = (
    f"verified products, {what}" for what in ("burst", "FP8 burst", "sustained", "slowest rank / median rank")
)


def soaked(rates, *, seconds=60.0, bursts=None):
    bursts = bursts or [None] * len(rates)
    soaks = [
        made_up_soak(rank, product_flop_per_second=rate, product_seconds=seconds, burst_flop_per_second=burst)
        for rank, (rate, burst) in enumerate(zip(rates, bursts, strict=True))
    ]
    return probing(soaks=soaks)


def found(probe, gpu=H200):
    return {finding.subject: finding for finding in product_findings(probe, NOTHING, gpu)}


@pytest.mark.parametrize(
    ("rates", "seconds", "sustained", "spread"),
    [
        ([700e12] * 8, 60.0, "PASS", "PASS"),
        ([660e12] * 8, 10.0, "PASS", "PASS"),
        ([700e12] * 7 + [620e12], 60.0, "WARN", "WARN"),
        ([700e12] * 7 + [350e12], 60.0, "FAIL", "FAIL"),  # one is throttled
        ([350e12] * 8, 60.0, "FAIL", "PASS"),  # all are
        ([700e12] * 7 + [1100e12], 60.0, "INVALID", "PASS"),
        ([350e12] * 8, 9.9, "NOT RUN", None),
    ],
)
def test_products_of_ten_seconds_are_held_to_the_power_limit(rates, seconds, sustained, spread):
    findings = found(soaked(rates, seconds=seconds), H100)
    assert {finding.check for finding in findings.values()} == {15}
    assert findings[SUSTAINED].verdict == sustained
    assert (findings[SPREAD].verdict if SPREAD in findings else None) == spread
    if sustained == "FAIL":
        assert findings[SUSTAINED].part == f"matrix rate of rank {rates.index(350e12)} under sustained load"
        assert rests_on_clocks(findings[SUSTAINED])  # a re-run of the soak confirms it
        # what an H200 keeps up is assumed: only its siblings reject it
        assert found(soaked(rates, seconds=seconds))[SUSTAINED].verdict == "WARN"


@pytest.mark.parametrize(
    ("bursts", "verdict"), [([780e12] * 2, "PASS"), ([780e12, 715e12], "WARN"), ([780e12, 1100e12], "INVALID")]
)
def test_bursts_are_held_to_more_than_what_is_kept_up(bursts, verdict):
    """A rank whose bursts are at 715 Tflop/s is slow, one that keeps up as much is not."""
    findings = found(soaked([700e12] * 2, bursts=bursts))
    assert (findings[BURST].verdict, findings[SUSTAINED].verdict) == (verdict, "PASS")
    assert findings[BURST].check == 15


def with_soaks(probe, **fields):
    changed = [
        msgspec.structs.replace(soak, **{name: values[soak.rank] for name, values in fields.items()})
        for soak in probe.soaks
    ]
    return msgspec.structs.replace(probe, soaks=changed)


def test_a_host_that_waited_for_a_processor_leaves_slow_products_open_and_one_that_did_not_rejects():
    slow = soaked([700e12] * 7 + [350e12])
    starved = found(with_soaks(slow, undelayed_flop_per_second=[710e12] * 7 + [690e12]), H100)
    for subject in (SUSTAINED, SPREAD):
        assert starved[subject].verdict == "INCONCLUSIVE"
        assert "the host waited for a processor, and rank 7 for it: without that up to 690 Tf" in (
            starved[subject].evidence
        )
    for most in ([710e12] * 7 + [360e12], [None] * 8):  # it hardly waited, or nobody knows
        fed = found(with_soaks(slow, undelayed_flop_per_second=most), H100)
        assert [fed[subject].verdict for subject in (SUSTAINED, SPREAD)] == ["FAIL", "FAIL"]
    # rank 0 is the slowest and was starved; rank 7 is slow without that
    two = with_soaks(soaked([300e12, *[700e12] * 6, 350e12]), undelayed_flop_per_second=[690e12] * 7 + [355e12])
    named = [found(two, H100)[subject] for subject in (SUSTAINED, SPREAD)]
    assert {(one.verdict, one.part) for one in named} == {("FAIL", "matrix rate of rank 7 under sustained load")}


@pytest.mark.parametrize(
    ("rates", "gpu", "verdict", "words"),
    [
        ([1300e12, 1290e12], H100, "PASS", "published by others"),
        ([1300e12, 1200e12], H100, "WARN", "published by others"),
        ([1300e12, 1100e12], H100, "FAIL", "published by others"),  # below 0.9 of what others published
        ([1300e12, 2100e12], H100, "INVALID", "the work was not done"),
        ([400e12, 400e12], known_gpu("NVIDIA L40S"), "WARN", "no FP8 GEMM rate of NVIDIA L40S"),
        ([1300e12, None], H100, None, ""),
    ],
)
def test_fp8_bursts_are_held_to_the_floor_of_fp8(rates, gpu, verdict, words):
    findings = found(with_soaks(soaked([700e12] * 2), fp8_flop_per_second=rates), gpu)
    assert (findings[FP8].verdict if FP8 in findings else None) == verdict
    if verdict is not None:
        assert words in findings[FP8].source + findings[FP8].evidence
        assert rests_on_clocks(findings[FP8])
    if verdict == "FAIL":
        assert findings[FP8].part == "FP8 matrix rate of rank 1"


def test_a_soak_that_did_not_time_its_products_says_nothing_of_them():
    assert found(soaked([])) == {}
    untimed = made_up_soak()
    assert found(msgspec.structs.replace(soaked([]), soaks=[untimed])) == {}


def test_the_slowest_rank_may_stand_still():
    findings = found(soaked([700e12, 0.0]))
    assert (findings[SUSTAINED].measured, findings[SPREAD].ratio) == (0.0, 0.0)
    assert findings[SUSTAINED].evidence.startswith("60 s; Tflop/s: rank 0 700, rank 1 0")


def test_sustained_products_take_ten_seconds_on_every_rank():
    probe = soaked([700e12] * 2)
    shorter = [msgspec.structs.replace(soak, product_seconds=10.0 - soak.rank) for soak in probe.soaks]
    short = found(msgspec.structs.replace(probe, soaks=shorter))[SUSTAINED]
    assert (short.verdict, short.evidence) == ("NOT RUN", "products ran for 9.0 s, 10 s needed")
    assert SPREAD not in found(soaked([700e12]))
    ratio = found(soaked([700e12, 600e12, 500e12]))[SPREAD]
    assert (ratio.ratio, ratio.part) == (5 / 6, "matrix rate of rank 2 under sustained load")
    assert BURST not in found(soaked([700e12] * 2, bursts=[780e12, None]))
