"""Some states of the machine make a battery invalid, others only warn."""

from __future__ import annotations

import msgspec
import pytest

from suite.acceptance.evidence import LaunchPurpose
from suite.acceptance.judge.environment import environment_findings
from suite.acceptance.node_state import HostReading
from suite.machine.cpu_contention import Competitor
from tests.support.batteries import launched, micro, surroundings
from tests.support.nvml import health_of


@pytest.fixture
def health(monkeypatch):
    """A function: what a watch reads of two GPUs, of which the second has faults."""
    return lambda **second: health_of(monkeypatch, **second)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"ecc_on": 0}, "GPU 1: ECC off"),
        ({"mig": 1}, "GPU 1: MIG on"),
        ({"watts": 400}, "power limit 400 W, default 700 W"),
        ({"processes": [4711]}, "4711"),
        ({"model": "NVIDIA A100"}, "model differs"),
        ({"fabric": 2}, "GPU 1: not registered with the NVLink switches: in progress"),
        ({"fabric_error": 15}, "completed with error 15"),
        ({"pcie_generation": 3}, "PCIe generation 3 of 5"),
        ({"pcie_width": 8}, "PCIe width x8 of x16"),
        ({"memory_mhz": 2500}, "memory clock 2500 of 2619 MHz under load"),
    ],
)
def test_an_unusual_gpu_makes_the_environment_invalid(fault, words, health):
    (finding,) = environment_findings(None, health(**fault), [], others=0.05, loaded=(0, 1))
    assert finding.verdict == "INVALID"
    assert words in finding.evidence


def test_firmware_that_differs_only_warns_and_says_where(health):
    """After an exchange of one GPU it often does."""
    (finding,) = environment_findings(None, health(firmware="1.0"), [], others=0.05, loaded=(0, 1))
    assert (finding.verdict, finding.part) == ("WARN", "firmware of the GPUs")
    assert finding.evidence == "firmware differs: 96.00.74.00.01 on GPU 0, 1.0 on GPU 1"
    (finding,) = environment_findings(None, health(firmware="1.0", mig=1), [], others=0.05, loaded=(0, 1))
    assert (finding.verdict, finding.part) == ("INVALID", "GPU 1")


def found_of(subject, around, during=(), others=0.05):
    findings = environment_findings(around, None, during, others=others, loaded=())
    return next(finding for finding in findings if finding.subject == subject)


def test_the_largest_share_before_and_during_what_is_timed_is_judged_and_named():
    quiet = surroundings(others_share=0.01)
    cases = [
        ([micro(others_share=0.03, steal_share=0.02)], 0.03, "in the micro-measurements"),
        ([launched(others_share=0.02, steal_share=0.04)], 0.04, "in bloom-mini, other guests"),
        ([launched(others_share=0.9, purpose=LaunchPurpose.EXACT)], 0.01, "before"),
        ([micro(), launched(others_share=0.009)], 0.01, "before"),
    ]
    for during, share, when in cases:
        found = found_of("other processes", quiet, during)
        assert (found.verdict, found.measured, found.part) == ("PASS", share, "")
        assert found.evidence == f"at most {share:.0%} of the processors, {when}"
    found = found_of("other processes", quiet, [launched(steal_share=0.2, set_aside=False)])
    assert (found.verdict, found.part) == ("INVALID", "other guests of the host")


def test_a_share_at_the_limit_passes_and_what_was_repeated_is_only_told_of():
    found = found_of("other processes", surroundings(others_share=0.05), [micro(set_aside=True, others_share=0.5)])
    assert (found.verdict, found.fail, found.expected) == ("PASS", 0.05, 0.0)
    assert found.evidence.endswith("; 1 measurements at up to 50% were not judged, but repeated")
    unknown = found_of("other processes", surroundings(others_share=None), [micro()])
    assert (unknown.verdict, unknown.evidence) == ("NOT RUN", "the system does not report who uses its processors")


def test_competitors_are_named_three_in_the_part_and_twelve_in_the_evidence():
    competitors = [Competitor(pid=100 + n, name=f"p{n}", cores=(20 - n) / 10) for n in range(14)]
    found = found_of("other processes", surroundings(others_share=0.06, competitors=competitors))
    assert found.part == "other processes: " + ", ".join(
        f"p{n} (pid {100 + n}) {share}% of a core" for n, share in enumerate((200, 190, 180))
    )
    assert [found.evidence.count(word) for word in (";", "p11 ", "p12 ")] == [12, 1, 0]
    gone = found_of("other processes", surroundings(others_share=0.06))
    assert gone.part == "other processes: ended since, or not visible"


def test_devices_are_those_that_were_asked_for():
    same = found_of("devices", surroundings(devices_expected=2))
    assert (same.verdict, same.measured, same.expected, same.source) == ("PASS", 2.0, 2.0, "--devices")
    assert (same.part, same.evidence) == ("", "2 cores, 2 ranks")
    for devices, kind, device in ((1, "cores", "cpu"), (3, "GPUs", "cuda")):
        wrong = found_of("devices", surroundings(devices=devices, devices_expected=2, device=device))
        assert (wrong.verdict, wrong.part) == ("INVALID", f"{kind}: {devices} in place of 2")
    unasked = found_of("devices", surroundings())
    assert (unasked.verdict, unasked.expected, unasked.source) == ("PASS", None, "")
    lost = found_of("devices", surroundings(gpus_before="2 x H100"))
    assert (lost.verdict, lost.measured, lost.part) == ("INVALID", 0.0, "GPUs: none in place of 2 x H100")


def test_records_that_were_left_out_warn_with_the_first_three():
    around = surroundings(fleet_problems=["a", "b", "c", "d"], past_problems=["e"])
    fleet, past = (found_of(name, around) for name in ("fleet records", "records of this node"))
    assert [(one.verdict, one.evidence) for one in (fleet, past)] == [("WARN", "a; b; c"), ("WARN", "e")]


def test_settings_and_services_that_are_known_to_be_off_warn_with_their_names(monkeypatch):
    host = HostReading(services=["persistence daemon"], switches=4)
    cases = {
        "persistence": ({"persistence": 0}, HostReading(), "off on GPU 1 (nvidia-smi -pm 1"),
        "manager": ({}, host, "4 NVSwitches, and nvidia-fabricmanager does not run"),
        "IMEX": ({}, HostReading(services=[], imex_channels=1), "1 IMEX channels, and nvidia-imex does not run"),
        "manager runs": ({}, msgspec.structs.replace(host, services=["fabric manager"]), ""),
        "in a container": ({}, msgspec.structs.replace(host, services=None), ""),
        "no switches": ({}, msgspec.structs.replace(host, switches=0), ""),
    }
    wrong = {}
    for name, (fault, reading, words) in cases.items():
        health = msgspec.structs.replace(health_of(monkeypatch, **fault), host_after=reading)
        found = environment_findings(None, health, [], others=0.05, loaded=(0, 1))
        warned = [(one.verdict, one.action) for one in found if one.verdict != "PASS"]
        expected = [("WARN", "fix the setting")] if words else []
        if warned != expected or not any(words in one.evidence for one in found):
            wrong[name] = found
    assert wrong == {}
