"""An unusual state is found on its own GPU alone, a GPU without load passes nothing; ranks name their GPU."""

from __future__ import annotations

import re

import msgspec
import pytest

from suite.acceptance.fabric import FIELDS
from suite.acceptance.gpu_evidence import GpuHealth, GpuSample, GpuState, Health
from suite.acceptance.gpu_watch import HealthWatch
from suite.acceptance.judge.environment import environment_findings
from suite.acceptance.judge.gpu_health import gpu_findings, with_gpus
from suite.acceptance.judge.judge import battery_findings
from suite.records.battery import CheckFinding, CheckVerdict
from tests.support.batteries import NOTHING, surroundings
from tests.support.batteries import micro as made_up_micro
from tests.support.nvml import fake_library, health_of

HEALTHY = 0b01_01_0001_10_10_10_10  # of the fabric: every field is offered, and good


@pytest.fixture
def health(monkeypatch):
    """A function: what a watch reads of two GPUs, of which the second has faults."""
    return lambda **second: health_of(monkeypatch, **second)


def test_healthy_gpus_pass(health):
    found = gpu_findings(health(), loaded=(0, 1))
    assert [finding.verdict for finding in found] == ["PASS"] * 7
    assert found[2].evidence == "18 links active; fabric completed"


@pytest.mark.parametrize(
    ("fault", "check", "verdict", "words"),
    [
        ({"throttle": 0x40}, 12, "FAIL", "hardware thermal slowdown in"),
        ({"throttle": 0x8}, 12, "FAIL", "hardware slowdown in"),
        ({"throttle": 0x80}, 12, "FAIL", "power brake in"),
        ({"throttle": 0x4}, 12, "PASS", r"(\d+) samples; software power cap in \1;"),
        ({"throttle": 0x2}, 12, "WARN", r"^SM clock at most 1200 of 1980 MHz: application clocks, in \d+ samples"),
        ({"mhz": 1500}, 12, "WARN", "SM clock at most 1500 of 1980 MHz: no reason reported, perhaps locked clocks"),
        ({"throttle": 0x1}, 12, "PASS", "at least 1200 MHz"),  # idle
        ({"celsius": 77}, 12, "WARN", "hotter than its siblings: 77 C, median 61 C"),
        ({"celsius": 76}, 12, "PASS", "at most 76 C"),
        ({"memory_celsius": 91}, 12, "WARN", "memory temperature: 91 C, its limit is 95 C"),
        ({"memory_celsius": 96}, 12, "FAIL", "memory temperature: 96 C, its limit is 95 C"),
        ({"memory_celsius": 96, "old_driver": 1}, 12, "PASS", "at most 61 C; at least"),
        ({"pcie_replays": 3}, 13, "WARN", "3 PCIe replays under load"),
        ({"recovery": 1}, 13, "FAIL", "the driver asks to reset the GPU"),
        ({"recovery": 2}, 13, "FAIL", "the driver asks to reboot the node"),
        ({"recovery": 3}, 13, "FAIL", "the driver asks to end all traffic between GPUs"),
        ({"recovery": 9}, 13, "FAIL", "recovery 9, which this suite does not know"),
        ({"old_driver": 1}, 13, "PASS", "no counter changed; not read: recovery action, PCIe replays"),
        ({"remap_pending": 1}, 13, "FAIL", "waits to be remapped"),
        *(({"xids": [xid]}, 13, "WARN", rf"XID {xid} \(of a program\)") for xid in (13, 31, 43, 45, 68, 69)),
        *(({"xids": [xid]}, 13, "FAIL", rf"^XID {xid} \(.+\)$") for xid in (12, 14, 32, 44, 46, 63, 79)),
        ({"lifetime": 5}, 13, "WARN", "5 uncorrectable ECC errors in its life"),
        ({"remapped_before": 3}, 13, "WARN", "3 rows remapped earlier for uncorrectable errors"),
        ({"no_spare_rows": 1}, 13, "WARN", "1 of 640 banks have no spare row left"),
        ({"few_spare_rows": 2}, 13, "WARN", "2 of 640 banks have few spare rows left"),
        ({"remap_failed": 1}, 13, "FAIL", "remapping a row failed: replace the GPU"),
        ({"sram_threshold": 1}, 13, "FAIL", "its threshold is exceeded.: replace the GPU"),
    ],
)
def test_a_fault_of_one_gpu_is_found_on_that_gpu_alone(fault, check, verdict, words, health):
    found = gpu_findings(health(**fault), loaded=(0, 1))
    found = [finding for finding in found if finding.check == check and finding.subject in ("GPU 0", "GPU 1")]
    assert [(finding.subject, finding.verdict) for finding in found] == [("GPU 0", "PASS"), ("GPU 1", verdict)]
    assert re.search(words, found[1].evidence)
    assert ("GPU 1" in found[1].part) == (verdict != "PASS")


@pytest.mark.parametrize(
    ("fault", "verdict", "words"),
    [
        ({"no_rows": True}, "NOT RUN", "not reported: rows remapped for uncorrectable errors, rows remapped for corr"),
        ({"no_rows": True}, "NOT RUN", "nvmlDeviceGetRemappedRows"),
        ({"no_events": True}, "NOT RUN", r"not reported: XIDs \(nvmlDeviceRegisterEvents\)"),
        ({"no_events": True, "uncorrected": 1}, "FAIL", "1 uncorrectable ECC errors under load; not reported: XIDs"),
        ({"no_rows": True, "corrected": 1}, "WARN", "not reported: rows"),
    ],
)
def test_a_counter_without_an_answer_never_passes(fault, verdict, words, health):
    found = [finding for finding in gpu_findings(health(**fault), loaded=(0, 1)) if finding.check == 13]
    found = [finding for finding in found if finding.subject in ("GPU 0", "GPU 1")]
    assert [finding.verdict for finding in found] == ["PASS", verdict]
    assert re.search(words, found[1].evidence)


@pytest.mark.parametrize(
    ("fault", "verdict", "words"),
    [
        ({"links_down": [3]}, "FAIL", "17 links active, 18 on other GPUs of the node"),
        ({"links_down": list(range(18))}, "FAIL", "0 links active, 18 on other GPUs"),
        ({"link_goes_down": 1}, "FAIL", "link 3 went down under load"),
        ({"replays": 7}, "WARN", "7 replays under load"),
        ({"failed_recoveries": 1}, "WARN", "1 failed recoveries since the driver was loaded"),
        ({"fabric_health": 0b01}, "FAIL", "degraded bandwidth"),
        ({"fabric_health": 0b01_00_00}, "FAIL", "unhealthy route"),
        ({"fabric_health": 0b01_00}, "WARN", "route recovery"),
        ({"fabric_health": 0b10_10_10}, "PASS", "not read of the fabric: access timeouts, configuration, partition"),
        ({"fabric_health": 0b01_00_00_00}, "WARN", "access timeout recovery: "),
        *(
            ({"fabric_health": HEALTHY & ~(0xF << 8) | value << 8}, "FAIL", f"{words}: ")
            for value, words in FIELDS["INCORRECT_CONFIGURATION"].bad.items()
        ),
        ({"fabric_health": HEALTHY ^ 0b11 << 12}, "FAIL", "no partition assigned: the GPU reaches no other one"),
        ({"fabric_health": HEALTHY ^ 0b11 << 14}, "FAIL", "fabric manager disconnected: nobody recovers links"),
        ({"fabric_summary": 2}, "FAIL", "fabric unhealthy: the driver's summary"),
        ({"fabric_summary": 3}, "WARN", "fabric with limited capacity: "),
        ({"fabric_summary": 0}, "PASS", "not read of the fabric: summary"),
        ({"old_driver": 1}, "PASS", "18 links active; fabric completed; not read of the fabric: summary"),
        ({"old_driver": 1, "fabric_health": HEALTHY ^ 0b11 << 14}, "FAIL", "fabric manager disconnected"),
    ],
)
def test_a_fault_of_its_links_is_found_on_that_gpu_alone(fault, verdict, words, health):
    found = {
        finding.subject: finding for finding in gpu_findings(health(**fault), loaded=(0, 1)) if finding.check == 13
    }
    assert {found[name].verdict for name in ("GPU 0", "GPU 1", "GPU 0, NVLink")} == {"PASS"}
    assert found["GPU 1, NVLink"].verdict == verdict
    assert words in found["GPU 1, NVLink"].evidence
    assert found["GPU 1, NVLink"].part.endswith(" of GPU 1") == (verdict != "PASS")


def test_a_gpu_without_ranks_passes_nothing_and_still_fails(health):
    good, bad = (
        {finding.check: finding for finding in gpu_findings(health(**fault), loaded=(0,)) if finding.subject == "GPU 1"}
        for fault in ({}, {"throttle": 0x40})
    )
    assert {finding.verdict for finding in good.values()} == {"NOT RUN"}
    assert good[13].evidence == "no rank ran on it; no counter changed"
    assert bad[12].verdict == "FAIL"
    (around,) = environment_findings(None, health(pcie_generation=1), [], others=0.05, loaded=(0,))
    assert around.verdict == "PASS"  # its link may sleep


def gpu(index=0, *, before=None, after=None, **changes):
    usual = {"model": "m", "driver": "d", "firmware": "f", "samples": [], "xids": []}
    states = {"before": GpuState(**(before or {})), "after": GpuState(**(before or {}) | (after or {}))}
    return GpuHealth(index=index, **states, **(usual | changes))


def sample(*reasons, **changes):
    usual = {"second": 0.0, "mhz": 1900.0, "watts": 600.0, "celsius": 60.0, "pcie_generation": 5, "pcie_width": 16}
    return GpuSample(reasons=[*reasons], **(usual | changes))


def of_check(number, *gpus, **changes):
    health = Health(gpus=[*gpus], **changes)
    return [one for one in gpu_findings(health, loaded=range(8)) if one.check == number]


def test_throttling_is_three_samples_in_a_row_and_the_extremes_are_told():
    reason = "hardware slowdown"
    clean = sample("software power cap", mhz=1500.0, celsius=71.0)
    for run, verdict in ((2, "PASS"), (3, "FAIL")):
        samples = [sample(reason)] * 2 + [clean] + [sample(reason, celsius=None, mhz=None)] * run
        (found,) = of_check(12, gpu(samples=samples))
        assert found.verdict == verdict
        assert found.part == (f"clocks of GPU 0: {reason}" if run == 3 else "")
        usual = f"{3 + run} samples; software power cap in 1; at most 71 C; at least 1500 MHz"
        assert found.evidence == (f"{reason} in 3 consecutive samples; {usual}" if run == 3 else usual)
    unread = [sample(reason, celsius=None, mhz=None)] * 3
    assert of_check(12, gpu(samples=unread))[0].evidence.endswith("3 samples; software power cap in 0")


def test_two_samples_with_an_answer_are_too_few():
    samples = [sample(), sample(), msgspec.structs.replace(sample(), reasons=None)]
    (found,) = of_check(12, gpu(samples=samples, unanswered=["a", "b"]))
    assert (found.verdict, found.evidence) == ("NOT RUN", "2 samples under load; no answer to a, b")


NVLINKS = {"nvlinks": [True, True, True], "fabric": "completed"}


def test_links_that_went_down_are_numbered_and_counters_are_of_the_load():
    errors = {"nvlink_errors": {"replays": 5, "recoveries": 3}}
    down = gpu(
        before=NVLINKS | errors, after={"nvlinks": [False, True, False], "nvlink_errors": {"replays": 7, "crc": 1}}
    )
    found = next(one for one in of_check(13, down) if "NVLink" in one.subject)
    assert (found.verdict, found.part) == ("FAIL", "NVLink of GPU 0")
    assert found.evidence == "link 0 2 went down under load; 2 replays under load; 1 crc under load"
    calm = next(one for one in of_check(13, gpu(before=NVLINKS | errors)) if "NVLink" in one.subject)
    assert (calm.verdict, calm.evidence) == ("PASS", "3 links active; in all 5 replays, 3 recoveries; fabric completed")
    bare = next(one for one in of_check(13, gpu(before={"nvlinks": [True]})) if "NVLink" in one.subject)
    assert bare.evidence == "1 links active"


def test_a_gpu_with_fewer_links_than_another_fails_and_links_that_came_up_are_no_fault():
    few, many = gpu(0, before={"nvlinks": [True, False, False]}), gpu(1, before={"nvlinks": [True, True, False]})
    found = {one.subject: one for one in of_check(13, few, many)}
    assert found["GPU 0, NVLink"].evidence == "1 links active, 2 on other GPUs of the node"
    assert found["GPU 1, NVLink"].verdict == "PASS"
    up = gpu(before={"nvlinks": [False, True]}, after={"nvlinks": [True, True]})
    assert next(one for one in of_check(13, up) if "NVLink" in one.subject).verdict == "PASS"


@pytest.mark.parametrize(
    ("model", "active", "verdict"),
    [
        ("NVIDIA A100 80GB PCIe", 0, "WARN"),  # the third card of three has no partner
        ("NVIDIA A100 80GB PCIe", 1, "FAIL"),  # a bridge that is loose
        ("NVIDIA A100-SXM4-80GB", 0, "FAIL"),
        ("a model that nobody knows", 0, "FAIL"),
    ],
)
def test_a_card_without_a_bridge_that_others_have_only_warns(model, active, verdict):
    links = [True] * active + [False] * (3 - active)
    cards = [gpu(0, before={"nvlinks": links}), *(gpu(number, before={"nvlinks": [True] * 3}) for number in (1, 2))]
    found = {one.subject: one for one in of_check(13, *(msgspec.structs.replace(card, model=model) for card in cards))}
    assert found["GPU 0, NVLink"].verdict == verdict
    assert found["GPU 1, NVLink"].verdict == "PASS"


def test_links_that_no_gpu_has_active_warn_where_switches_join_them():
    for fabric, warned in (("completed", 2), ("", 0)):  # the latter: cards with a bridge
        links = {"nvlinks": [*[True] * 17, False], "fabric": fabric}
        found = of_check(13, gpu(0, before=links), gpu(1, before=links))
        words = [one.evidence for one in found if one.verdict == "WARN"]
        assert words == ["17 of 18 links active on every GPU"] * warned
    assert [one.subject for one in of_check(13, gpu(), gpu(1))] == ["GPU 0", "GPU 1", "earlier XIDs"]  # without links


COUNTERS = ("uncorrected", "corrected", "remapped_uncorrected", "remapped_corrected")
KNOWN = dict.fromkeys(COUNTERS, 0)


@pytest.mark.parametrize("counter", COUNTERS)
def test_a_counter_counts_by_what_it_grew_and_what_was_there_only_warns(counter):
    grown = of_check(13, gpu(before=KNOWN | {counter: 2}, after={counter: 5}))[0]
    bad = counter in ("uncorrected", "remapped_uncorrected")
    assert grown.verdict == ("FAIL" if bad else "WARN")
    assert grown.evidence.startswith("3 ")
    assert "under load" in grown.evidence
    assert grown.part == "memory or board of GPU 0"
    same = of_check(13, gpu(before=KNOWN | {counter: 2}))[0]
    assert same.verdict == ("WARN" if bad else "PASS")
    fewer = of_check(13, gpu(before=KNOWN | {counter: 2}, after={counter: 1}))[0]
    assert "under load" not in fewer.evidence
    unknown = of_check(13, gpu(before=KNOWN, after={counter: None}))[0]
    assert unknown.verdict == "NOT RUN"
    assert "(no answer)" in unknown.evidence


@pytest.mark.parametrize(
    ("uncorrected", "lifetime", "lines"),
    [(0, 0, 0), (0, 3, 1), (3, 3, 1), (3, 4, 2), (None, 2, 1), (None, None, 0), (3, None, 1)],
)
def test_errors_in_its_life_are_told_beside_those_since_the_driver_only_where_there_are_more(
    uncorrected, lifetime, lines
):
    before = KNOWN | {"uncorrected": uncorrected, "lifetime_uncorrected": lifetime}
    (found, *_) = of_check(13, gpu(before=before))
    assert found.evidence.count("uncorrectable ECC errors") - (uncorrected is None) == lines


def test_without_gpus_or_answers_nothing_passes(monkeypatch):
    module = fake_library(monkeypatch)

    def no_driver():
        raise module.NVMLError(9)

    module.nvmlInit = no_driver
    assert HealthWatch().finished().why_none == "no NVIDIA driver answers"
    assert {one.evidence for one in gpu_findings(None, loaded=())} == {"not read"}
    assert {one.evidence for one in gpu_findings(Health(gpus=[], why_none="no driver"), loaded=())} == {"no driver"}
    assert [one.check for one in gpu_findings(None, loaded=())] == [12, 13]


THREE = Health(gpus=[gpu(n, model="NVIDIA H100 80GB HBM3", pci=f"0000:{0x18 + n:02x}:00.0") for n in range(3)])


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ("matrix rate of rank 1", "matrix rate of rank 1 (GPU 0 at 0000:18:00.0)"),
        ("link 0-1", "link 0-1 (GPU 2 at 0000:1a:00.0, GPU 0 at 0000:18:00.0)"),
        ("rank 0, rank 1", "rank 0 (GPU 2 at 0000:1a:00.0), rank 1 (GPU 0 at 0000:18:00.0)"),
        ("rank 7: compute", "rank 7: compute"),  # not known
        ("host", "host"),
    ],
)
def test_each_rank_of_a_part_has_the_name_of_its_gpu(part, named):
    finding = CheckFinding(check=1, subject="s", verdict=CheckVerdict.FAIL, part=part)
    assert with_gpus(finding, [2, 0], THREE).part == named
    assert with_gpus(finding, [], THREE) == finding
    assert with_gpus(finding, [2, 0], None).part.startswith(named.split(" at ")[0])


def test_a_slow_gpu_is_named_by_the_drivers_number_also_where_cuda_counts_otherwise():
    """Rank 0 runs on GPU 2, the fastest; rank 1, the slow one, on GPU 0."""
    gpus = "NVIDIA H100 80GB HBM3"
    around = surroundings(device="cuda", gpus=gpus, gpus_with_ranks=[2, 0])
    micro = made_up_micro(matrix=[780e12, 400e12], copy=[3e12] * 2, triad=[3e12] * 2, peak=989.4e12, others_share=0.0)
    found = battery_findings([around, micro, THREE], NOTHING, others=0.05, selected={1})
    failed = [finding for finding in found if finding.verdict is CheckVerdict.FAIL]
    assert [finding.part for finding in failed] == ["matrix rate of rank 1 (GPU 0 at 0000:18:00.0)"]
    unknown = msgspec.structs.replace(around, gpus_with_ranks=[])
    found = battery_findings([unknown, micro, THREE], NOTHING, others=0.05, selected={1})
    assert "matrix rate of rank 1" in [finding.part for finding in found]
