"""What makes a battery invalid, and what only warns."""

from __future__ import annotations

import pytest

from suite.acceptance.evidence import Surroundings
from suite.acceptance.findings import CheckVerdict
from suite.acceptance.judge.environment import environment_findings
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
    assert finding.verdict is CheckVerdict.INVALID
    assert words in finding.evidence


def test_firmware_that_differs_only_warns_and_says_where(health):
    """After an exchange of one GPU it often does."""
    (finding,) = environment_findings(None, health(firmware="1.0"), [], others=0.05, loaded=(0, 1))
    assert (finding.verdict, finding.part) == (CheckVerdict.WARN, "firmware of the GPUs")
    assert finding.evidence == "firmware differs: 96.00.74.00.01 on GPU 0, 1.0 on GPU 1"
    (finding,) = environment_findings(None, health(firmware="1.0", mig=1), [], others=0.05, loaded=(0, 1))
    assert (finding.verdict, finding.part) == (CheckVerdict.INVALID, "GPU 1")


def test_the_link_of_an_idle_gpu_is_not_judged(health):
    (finding,) = environment_findings(None, health(pcie_generation=1), [], others=0.05, loaded=())
    assert finding.verdict is CheckVerdict.PASS


def test_other_processes_beyond_the_limit_make_the_environment_invalid():
    def around(share):
        return Surroundings(device="cpu", ranks=2, devices=2, devices_expected=None, others_share=share, competitors=[])

    verdicts = []
    for share in (0.04, 0.06):
        findings = environment_findings(around(share), None, [], others=0.05, loaded=())
        verdicts += [finding.verdict for finding in findings if finding.subject == "other processes"]
    assert verdicts == [CheckVerdict.PASS, CheckVerdict.INVALID]
