"""A known GPU's links are held to its data sheet, all its rates to what it can, with the source on the line."""

from __future__ import annotations

import msgspec
import pytest

from reference_runs.accelerator import known_gpu
from suite.acceptance.judge.judge import battery_findings
from suite.acceptance.judge.rates import exchange_findings, micro_findings
from tests.support.batteries import NOTHING, exchange, surroundings
from tests.support.batteries import micro as made_up_micro
from tests.support.batteries import probing as made_up_probe

H200 = known_gpu("NVIDIA H200, NVIDIA H200")
# of 8 H200 that reach what is known: products, copy and triad of 4.8 TB/s, 64 GB/s each way to the host
GOOD = made_up_micro(
    matrix=[780e12] * 8,
    copy=[4.3e12] * 8,
    triad=[4.3e12] * 8,
    host_device={"host to device": 55e9, "device to host": 54e9},
    peak=989.5e12,
    peak_source="data sheet of the H200, bf16 dense",
)


def probing(pair=380e9, sums=480e9, ranks=8, by=None, all_to_all=None):
    """All-reduces of `sums` byte/s of bus bandwidth, or `by` algorithm; all-to-alls by rank."""
    links = [(rank, peer) for rank in range(ranks) for peer in range(ranks) if rank != peer]
    exchanges = [exchange(*link, pair) for link in links]
    for algorithm, busbw in (by or {"": sums}).items():
        own, why = busbw / (2 * (ranks - 1) / ranks), "" if busbw else "not available: no multicast"
        exchanges += [exchange(rank, None, own, algorithm=algorithm, first=why) for rank in range(ranks)]
    exchanges += [exchange(rank, None, rate, operation="all-to-all") for rank, rate in enumerate(all_to_all or [])]
    return made_up_probe(exchanges=exchanges)


def of_micro(micro, gpu=H200):
    return {(f.check, f.subject): f for f in micro_findings(micro, NOTHING, gpu)}


def test_a_good_h200_passes_every_rate_of_its_first_battery():
    found = [*micro_findings(GOOD, NOTHING, H200), *exchange_findings(probing(), NOTHING, H200, 8)]
    assert {f.verdict for f in found} == {"PASS"}
    assert {f.check for f in found} == {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize(
    ("changes", "key", "expected", "verdict"),
    [
        ({"matrix": [780e12] * 7 + [715e12]}, (1, "slowest rank"), 720e12, "WARN"),
        ({"matrix": [780e12] * 7 + [640e12]}, (1, "slowest rank"), 720e12, "FAIL"),
        ({"copy": [4.3e12] * 7 + [4.1e12]}, (3, "copy"), 4.3e12, "WARN"),
        ({"triad": [3.8e12] * 8}, (3, "triad"), 4.3e12, "WARN"),  # nobody's measurement supports more
        ({"host_device": {"host to device": 27e9}}, (4, "host to device"), 64e9, "WARN"),
    ],
)
def test_a_slow_h200_is_found_by_its_first_battery(changes, key, expected, verdict):
    finding = of_micro(msgspec.structs.replace(GOOD, **changes))[key]
    assert (finding.verdict, finding.expected) == (verdict, expected)
    assert "NVIDIA H200 SXM 141 GB (2024)" in finding.source
    assert finding.part


def test_the_source_says_which_figure_of_which_document_and_what_is_assumed():
    found = of_micro(GOOD)
    assert found[3, "copy"].source.startswith(
        "assumed of NVIDIA H200 SXM 141 GB (2024): 4,300 GB/s, 2026-11-23, copies of 4.3 TB/s are reported"
    )
    assert found[4, "host to device"].source.endswith("128 GB/s both ways, datasheet Interconnect")


@pytest.mark.parametrize(
    ("changes", "gpus", "key", "verdict"),
    [
        ({"pair": 330e9}, 8, (5, "link 0-1"), "WARN"),
        ({"sums": 330e9}, 8, (6, "busbw of 8 ranks"), "WARN"),
        ({"sums": 180e9}, 8, (6, "busbw of 8 ranks"), "FAIL"),  # one link at half rate holds up a ring
        ({"by": {"ring": 365e9, "nvls": 473e9}}, 8, (6, "busbw of 8 ranks, nvls"), "PASS"),
        ({"by": {"ring": 365e9, "nvls": 430e9}}, 8, (6, "busbw of 8 ranks, nvls"), "WARN"),
        ({"by": {"ring": 365e9, "nvls": 430e9}}, 8, (6, "busbw of 8 ranks, ring"), "PASS"),
        ({"by": {"ring": 365e9, "nvls": 240e9}}, 8, (6, "busbw of 8 ranks, nvls"), "FAIL"),
        ({"by": {"ring": 365e9, "nvls": 0.0}}, 8, (6, "busbw of 8 ranks, nvls"), "WARN"),  # refused
        ({"by": {"ring": 365e9, "nvls": 0.0}, "ranks": 4}, 4, (6, "busbw of 4 ranks, nvls"), "NOT RUN"),
        ({"all_to_all": [340e9] * 8}, 8, (5, "all-to-all of 8 ranks"), "PASS"),
        ({"all_to_all": [340e9] * 7 + [200e9]}, 8, (5, "all-to-all of 8 ranks"), "WARN"),
        ({"pair": 160e9, "ranks": 4}, 4, (5, "link 0-1"), "PASS"),  # a board of 4 has no switch: a third
        ({"sums": 330e9, "ranks": 4}, 4, (6, "busbw of 4 ranks"), "WARN"),  # no floor of 4
        ({"pair": 160e9, "ranks": 2}, 2, (5, "link 0-1"), "NOT RUN"),
    ],
)
def test_links_are_held_to_the_data_sheet_of_a_whole_node(changes, gpus, key, verdict):
    found = {(f.check, f.subject): f for f in exchange_findings(probing(**changes), NOTHING, H200, gpus)}
    assert found[key].verdict == verdict
    refused = 0.0 in changes.get("by", {}).values() and "nvls" in key[1]
    assert ("not available: no multicast" in found[key].evidence) == refused


@pytest.mark.parametrize(
    ("changes", "key", "most"),
    [
        ({"matrix": [780e12] * 7 + [49e15]}, (1, "slowest rank"), 989.5e12),
        ({"copy": [750e12] * 8}, (3, "copy"), 4.8e12),
        ({"triad": [4.3e12] * 7 + [5e12]}, (3, "triad"), 4.8e12),
        ({"host_device": {"host to device": 66e9}}, (4, "host to device"), 64e9),
    ],
)
def test_a_rate_above_the_data_sheet_is_invalid_and_says_so(changes, key, most):
    finding = of_micro(msgspec.structs.replace(GOOD, **changes))[key]
    assert finding.verdict == "INVALID"
    assert finding.expected == pytest.approx(1.02 * most)
    assert finding.part == "measurement: faster than such a device can be"
    assert finding.source.startswith("1.02 of the data sheet of NVIDIA H200")
    assert "the work was not done, or the clock is wrong" in finding.evidence


def test_a_rate_of_the_whole_data_sheet_is_no_more_than_can_be():
    whole = msgspec.structs.replace(
        GOOD, matrix=[989.5e12] * 8, copy=[4.8e12] * 8, host_device={"host to device": 64e9}
    )
    assert {f.verdict for f in micro_findings(whole, NOTHING, H200)} == {"PASS"}


@pytest.mark.parametrize(
    ("changes", "key", "limit"),
    [
        ({"pair": 470e9}, (5, "link 0-1"), 450e9),
        ({"all_to_all": [340e9] * 7 + [470e9]}, (5, "all-to-all of 8 ranks"), 450e9),
        ({"by": {"ring": 473e9, "nvls": 473e9}}, (6, "busbw of 8 ranks, ring"), 450e9),
        ({"by": {"ring": 365e9, "nvls": 810e9}}, (6, "busbw of 8 ranks, nvls"), 1.75 * 450e9),
        ({"sums": 810e9}, (6, "busbw of 8 ranks"), 1.75 * 450e9),
    ],
)
def test_messages_faster_than_their_links_are_invalid(changes, key, limit):
    found = {(f.check, f.subject): f for f in exchange_findings(probing(**changes), NOTHING, H200, 8)}
    assert found[key].verdict == "INVALID"
    assert found[key].expected == pytest.approx(1.02 * limit)


def test_cards_that_a_bridge_may_join_have_no_limit_of_their_pcie_links():
    """Its data sheet has 64 GB/s each way, and 300 over the bridge."""
    found = exchange_findings(probing(pair=270e9, ranks=2), NOTHING, known_gpu("NVIDIA H100 NVL"), 2)
    assert "INVALID" not in {f.verdict for f in found}


def test_an_unknown_model_has_nothing_to_be_held_to():
    found = of_micro(msgspec.structs.replace(GOOD, matrix=[100e12] * 8), None)
    assert {f.verdict for (check, _), f in found.items() if check in (1, 3)} == {"WARN"}
    assert found[1, "slowest rank"].expected is None
    assert "of a GPU that the catalog does not know is published" in found[1, "slowest rank"].evidence
    assert {f.verdict for (check, _), f in found.items() if check == 4} == {"NOT RUN"}
    for models in ("NVIDIA H200, NVIDIA A100-SXM4-80GB", "NVIDIA X1", "none"):
        assert known_gpu(models) is None


def test_the_battery_says_which_gpus_the_node_has_and_a_cpu_has_none():
    slow = msgspec.structs.replace(GOOD, matrix=[640e12] * 8)
    around = surroundings(device="cuda", ranks=8, devices=8, gpus="NVIDIA H200")
    on_gpu = battery_findings([around, slow], NOTHING, others=0.05, selected={1})
    assert [f.verdict for f in on_gpu] == ["FAIL"]
    on_cpu = battery_findings([msgspec.structs.replace(around, gpus="")], NOTHING, others=0.05, selected={1})
    assert [f.verdict for f in on_cpu] == ["NOT RUN"]
