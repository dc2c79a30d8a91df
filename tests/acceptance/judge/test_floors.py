"""A GPU is held to intervals that somebody measured, and to nothing where nobody did."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.accelerator import accelerator, known_gpu
from reference_runs.floors import FloorKind, FloorQuantity, RateFloor
from suite.acceptance.check_table import ALL_REDUCE, CHECKS, MATRIX, MEMORY
from suite.acceptance.findings import decision
from suite.acceptance.judge.expected_rates import rated
from suite.acceptance.judge.floors import floor_rates, without_floor
from suite.acceptance.judge.judge import battery_findings
from suite.acceptance.judge.rates import exchange_findings, micro_findings
from suite.records.battery import WORST_FIRST
from suite.report.terminal.acceptance import comparison
from tests.support.batteries import NOTHING, exchange, history_of, micro, probing, surroundings

SHAPE = "BF16, 8192 x 8192 x 8192"
HALVES = {"host to device": 55e9, "device to host": 54e9}
B200, MI300X, RUBIN, H100 = "NVIDIA B200", "AMD Instinct MI300X", "NVIDIA Rubin", "NVIDIA H100 80GB HBM3"


def battery(model, gemm, copy=None, history=NOTHING):
    """Findings and decision of checks 1 to 3 of eight GPUs that all reach these rates, by the whole judge."""
    gpu = known_gpu(model)
    copy = copy or 0.8 * gpu.board.memory_bytes_per_second
    measured = micro(matrix=[gemm] * 8, copy=[copy] * 8, triad=[copy] * 8, host_device=HALVES, peak=2 * gemm)
    around = surroundings(device="cuda", ranks=8, devices=8, gpus=model)
    found = battery_findings([around, measured], history, others=0.05, selected={1, 2, 3})
    return {(one.check, one.subject): one for one in found}, decision(found)


@pytest.mark.parametrize(
    ("model", "gemm", "verdict", "decided"),
    [
        (B200, 1420e12, "PASS", "accepted"),
        (B200, 1800e12, "PASS", "accepted"),
        (B200, 1300e12, "WARN", "accepted"),
        (B200, 900e12, "FAIL", "rejected"),
        (MI300X, 500e12, "PASS", "accepted"),
        (MI300X, 430e12, "FAIL", "rejected"),
        (H100, 725e12, "WARN", "accepted"),  # within the published interval, below what we measured
        (H100, 640e12, "FAIL", "rejected"),
        (RUBIN, 2000e12, "WARN", "accepted"),  # half of its peak, and nothing is published
        (RUBIN, 18e12, "WARN", "accepted"),
    ],
)
def test_a_part_is_rejected_only_far_below_what_working_ones_reached(model, gemm, verdict, decided):
    found, decided_now = battery(model, gemm)
    finding = found[1, "slowest rank"]
    assert (finding.verdict, decided_now, finding.measured) == (verdict, decided, gemm)
    if verdict == "FAIL":
        title = known_gpu(model).title
        assert finding.source.startswith(f"published by others of {title}: ")
        assert finding.part == "matrix rate of rank 0"


def test_a_rejection_says_on_whose_numbers_and_when():
    source = battery(H100, 600e12)[0][1, "slowest rank"].source
    assert source.startswith(
        "published by others of NVIDIA H100 SXM5 80 GB (2022): 720 to 794.5 Tflop/s, 2024-12-22, SemiAnalysis, MI300X"
    )
    assert source.endswith("(known figures, not re-read for this file): " + SHAPE + "; upper end: mamf H100 SXM")
    assert comparison(battery(B200, 1300e12)[0][1, "slowest rank"]).endswith("warns below that")


def test_without_a_floor_the_rate_is_kept_and_the_way_to_a_floor_is_named():
    found, _ = battery(RUBIN, 2000e12)
    for key in ((1, "slowest rank"), (3, "copy"), (3, "triad")):
        assert (found[key].verdict, found[key].expected, found[key].part) == ("WARN", None, "")
        assert found[key].compared_as
        assert "no floor: no " in found[key].evidence
        assert "of NVIDIA Rubin, one GPU of a Vera Rubin NVL72, as announced (2026) is published" in found[key].evidence
        assert "`fleet references`" in found[key].evidence
    past = history_of(past={f"1:{found[1, 'slowest rank'].compared_as}": [2000e12] * 3})
    assert battery(RUBIN, 2000e12, history=past)[0][1, "slowest rank"].verdict == "PASS"
    assert battery(RUBIN, 1650e12, history=past)[1] == "rejected"


def test_a_gpu_whose_memory_is_slower_than_its_siblings_is_rejected_without_any_floor():
    copies = [700e9] * 5 + [350e9] + [700e9] * 2
    measured = micro(matrix=[181e12] * 8, copy=copies, triad=copies, host_device=HALVES)
    found = {(one.check, one.subject): one for one in micro_findings(measured, NOTHING, known_gpu(RUBIN))}
    assert found[3, "copy"].verdict == "WARN"
    slow = found[2, "memory copy"]
    assert (slow.verdict, slow.ratio, slow.part) == ("FAIL", 0.5, "memory bandwidth of rank 5")
    on_cpu = micro_findings(micro(copy=[7e9, 3e9]), NOTHING)
    assert (2, "memory copy") not in {(one.check, one.subject) for one in on_cpu}


@pytest.mark.parametrize(
    ("model", "ranks", "algorithm", "rates"),
    [
        (MI300X, 8, "", {150e9: "PASS", 95e9: "WARN", 89e9: "FAIL"}),
        ("NVIDIA GB200", 72, "nvls", {840e9: "PASS", 800e9: "WARN", 700e9: "FAIL"}),
        ("NVIDIA GB200", 4, "nvls", {690e9: "PASS", 500e9: "WARN", 100e9: "WARN"}),  # assumed
        (B200, 8, "nvls", {800e9: "PASS", 500e9: "WARN", 100e9: "WARN"}),
        ("NVIDIA H200", 8, "ring", {365e9: "PASS", 340e9: "WARN", 320e9: "FAIL"}),
        ("NVIDIA H200", 4, "ring", {365e9: "WARN", 1e9: "WARN"}),  # no floor of as many
        ("NVIDIA of tomorrow", 8, "", {365e9: "WARN", 1e9: "WARN"}),
        (H100, 8, "nvls", {430e9: "PASS", 400e9: "WARN", 370e9: "FAIL"}),
        ("NVIDIA A100-SXM4-80GB", 8, "", {228e9: "PASS", 210e9: "WARN", 200e9: "FAIL"}),
    ],
)
def test_all_reduces_are_held_to_floors_of_as_many_by_the_same_algorithm(model, ranks, algorithm, rates):
    for busbw, verdict in rates.items():
        own = busbw / (2 * (ranks - 1) / ranks)
        sums = [exchange(rank, None, own, algorithm=algorithm) for rank in range(ranks)]
        found = exchange_findings(probing(exchanges=sums), NOTHING, known_gpu(model), ranks)
        (finding,) = (one for one in found if one.subject.startswith("busbw"))
        assert (finding.verdict, busbw) == (verdict, busbw)
        assert finding.expected is not None or "`fleet references`" in finding.evidence


def test_an_all_reduce_of_a_cpu_has_no_floor_to_miss():
    sums = probing(exchanges=[exchange(rank, None, 1e9) for rank in (0, 1)])
    for around, verdict in ((surroundings(), "NOT RUN"), (surroundings(device="cuda", gpus="NVIDIA Rubin"), "WARN")):
        found = battery_findings([around, sums], NOTHING, others=0.05, selected={6})
        assert [one.verdict for one in found if one.subject.startswith("busbw")] == [verdict]


def floors(*ends):
    """Made-up floors of a GEMM: kind and ends."""
    return tuple(
        RateFloor(
            quantity=FloorQuantity.BF16_GEMM,
            lower=lower,
            upper=lower * width,
            unit="flop/s",
            kind=kind,
            date="2026",
            source="datasheet x",
            why="w",
        )
        for kind, lower, width in ends
    )


ENDS = st.tuples(st.sampled_from(FloorKind), st.floats(1e12, 1e15), st.floats(1.0, 2.0))
RATES = st.floats(1e10, 9e15)
CHECK = st.sampled_from([CHECKS[MATRIX], CHECKS[MEMORY], CHECKS[ALL_REDUCE]])


def verdict_of(ends, rate, check):
    gpu = msgspec.structs.replace(accelerator("h200-sxm"), floors=floors(*ends))
    expected = floor_rates(gpu, check, FloorQuantity.BF16_GEMM)
    return rated(check, "x", rate, expected, part="p", without=without_floor(gpu, "rate")).verdict


@given(st.lists(ENDS, max_size=4), st.lists(RATES, min_size=2, max_size=5), CHECK)
def test_a_faster_part_is_never_judged_worse(ends, rates, check):
    order = [WORST_FIRST.index(verdict_of(ends, rate, check)) for rate in sorted(rates)]
    assert all(slower <= faster for slower, faster in itertools.pairwise(order))


@given(st.lists(ENDS, max_size=4), RATES, CHECK)
def test_only_an_interval_that_somebody_measured_rejects(ends, rate, check):
    verdict = verdict_of(ends, rate, check)
    measured = [lower for kind, lower, _ in ends if kind is not FloorKind.ASSUMED]
    assert verdict != "FAIL" or any(rate < 0.9 * lower for lower in measured)
    assert ends or verdict == "WARN"


@given(st.lists(ENDS.filter(lambda end: end[0] is FloorKind.PUBLISHED), min_size=1, max_size=4), RATES, CHECK)
def test_published_intervals_pass_what_one_of_them_holds_and_reject_what_is_below_all(ends, rate, check):
    lowest = min(lower for _, lower, _ in ends)
    verdict = "PASS" if rate / lowest >= 1 else "WARN" if rate / lowest >= 0.9 else "FAIL"
    assert verdict_of(ends, rate, check) == verdict
