"""What is unusual of a GPU is found on that GPU alone, and what no rank loaded passes nothing."""

from __future__ import annotations

import re

import pytest

from suite.acceptance.findings import CheckVerdict
from suite.acceptance.gpu_watch import HealthWatch
from suite.acceptance.judge.environment import environment_findings
from suite.acceptance.judge.gpu_health import gpu_findings, longest_run
from tests.support.nvml import fake_library, health_of


@pytest.fixture
def health(monkeypatch):
    """A function: what a watch reads of two GPUs, of which the second has faults."""
    return lambda **second: health_of(monkeypatch, **second)


def test_healthy_gpus_pass(health):
    found = gpu_findings(health(), loaded=(0, 1))
    assert [finding.verdict for finding in found] == [CheckVerdict.PASS] * 4


@pytest.mark.parametrize(
    ("fault", "check", "verdict", "words"),
    [
        ({"throttle": 0x40}, 12, CheckVerdict.FAIL, "hardware thermal slowdown in"),
        ({"throttle": 0x8}, 12, CheckVerdict.FAIL, "hardware slowdown in"),
        ({"throttle": 0x80}, 12, CheckVerdict.FAIL, "power brake in"),
        ({"throttle": 0x4}, 12, CheckVerdict.PASS, r"(\d+) samples; software power cap in \1;"),
        ({"uncorrected": 1}, 13, CheckVerdict.FAIL, "1 uncorrectable ECC errors"),
        ({"corrected": 5}, 13, CheckVerdict.WARN, "5 corrected ECC errors"),
        ({"remapped": 1}, 13, CheckVerdict.FAIL, "1 rows remapped for uncorrectable errors"),
        ({"remap_pending": 1}, 13, CheckVerdict.FAIL, "waits to be remapped"),
        ({"xids": [79]}, 13, CheckVerdict.FAIL, "XID 79"),
        ({"xids": [31]}, 13, CheckVerdict.WARN, r"XID 31 \(of a program\)"),
    ],
)
def test_a_fault_of_one_gpu_is_found_on_that_gpu_alone(fault, check, verdict, words, health):
    found = [finding for finding in gpu_findings(health(**fault), loaded=(0, 1)) if finding.check == check]
    assert [(finding.subject, finding.verdict) for finding in found] == [
        ("GPU 0", CheckVerdict.PASS),
        ("GPU 1", verdict),
    ]
    assert re.search(words, found[1].evidence)
    assert ("GPU 1" in found[1].part) == (verdict is not CheckVerdict.PASS)


@pytest.mark.parametrize(
    ("fault", "verdict", "words"),
    [
        (
            {"no_rows": True},
            CheckVerdict.NOT_RUN,
            "not reported: rows remapped for uncorrectable errors, rows remapped for corr",
        ),
        ({"no_rows": True}, CheckVerdict.NOT_RUN, "nvmlDeviceGetRemappedRows"),
        ({"no_events": True}, CheckVerdict.NOT_RUN, r"not reported: XIDs \(nvmlDeviceRegisterEvents\)"),
        (
            {"no_events": True, "uncorrected": 1},
            CheckVerdict.FAIL,
            "1 uncorrectable ECC errors under load; not reported: XIDs",
        ),
        ({"no_rows": True, "corrected": 1}, CheckVerdict.WARN, "not reported: rows"),
    ],
)
def test_a_counter_without_an_answer_never_passes(fault, verdict, words, health):
    found = [finding for finding in gpu_findings(health(**fault), loaded=(0, 1)) if finding.check == 13]
    assert [finding.verdict for finding in found] == [CheckVerdict.PASS, verdict]
    assert re.search(words, found[1].evidence)


def test_a_gpu_without_ranks_passes_nothing_and_still_fails(health):
    good, bad = (
        {finding.check: finding for finding in gpu_findings(health(**fault), loaded=(0,)) if finding.subject == "GPU 1"}
        for fault in ({}, {"throttle": 0x40})
    )
    assert {finding.verdict for finding in good.values()} == {CheckVerdict.NOT_RUN}
    assert good[13].evidence == "no rank ran on it; no counter changed"
    assert bad[12].verdict is CheckVerdict.FAIL
    (around,) = environment_findings(None, health(pcie_generation=1), [], others=0.05, loaded=(0,))
    assert around.verdict is CheckVerdict.PASS  # its link may sleep


def test_without_a_driver_health_is_not_run_and_says_why(monkeypatch):
    module = fake_library(monkeypatch)

    def no_driver():
        raise module.NVMLError(9)

    module.nvmlInit = no_driver
    found = HealthWatch().finished()
    assert [f.verdict for f in gpu_findings(found, loaded=())] == [CheckVerdict.NOT_RUN, CheckVerdict.NOT_RUN]
    assert found.why_none == "no NVIDIA driver answers"


def test_two_consecutive_samples_are_no_throttling():
    assert longest_run([True, True, False, True]) == 2
