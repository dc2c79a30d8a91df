"""GPUs are read through the library's real interface, and a GPU that does not answer holds nothing up."""

from __future__ import annotations

import inspect
import re
import threading
import time
from types import SimpleNamespace

import msgspec
import pynvml
import pytest

from suite.acceptance import nvml
from suite.acceptance.context import BatteryPhase, RunningBattery
from suite.acceptance.evidence import Health, Surroundings
from suite.acceptance.findings import CheckVerdict
from suite.acceptance.judge.gpu_health import environment_findings, gpu_findings, longest_run
from suite.acceptance.nvml import REASONS, Gpus, HealthWatch, joined
from suite.acceptance.past_batteries import History
from tests.support.nvml import fake_library


@pytest.fixture
def health(monkeypatch):
    """A function: what a watch reads in four samples."""

    def read(**second):
        fake_library(monkeypatch, **second)
        monkeypatch.setattr(nvml, "SAMPLE_SECONDS", 0.01)
        watch = HealthWatch()
        deadline = time.monotonic() + 10
        while min(len(own) for own in watch._samples) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        return watch.finished()

    return read


def test_the_stand_in_has_the_signatures_and_constants_of_the_real_library(monkeypatch):
    fake = fake_library(monkeypatch)
    names = [name for name in dir(fake) if name.startswith(("nvml", "NVML_"))]
    assert len(names) > 25
    for name in names:
        ours, theirs = getattr(fake, name), getattr(pynvml, name)
        if callable(ours):
            assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), name
        else:
            assert ours == theirs, name


def test_every_name_that_is_asked_for_exists_in_the_real_library():
    source = inspect.getsource(nvml)
    names = set(re.findall(r"\b(?:nvml[A-Z]\w+|NVML_\w+)\b", source))
    assert names > set(REASONS)
    assert len(names) > 25
    assert [name for name in sorted(names) if not hasattr(pynvml, name)] == []


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
    ("fault", "words"),
    [
        ({"ecc_on": 0}, "GPU 1: ECC off"),
        ({"mig": 1}, "GPU 1: MIG on"),
        ({"watts": 400}, "power limit 400 W, default 700 W"),
        ({"processes": [4711]}, "4711"),
        ({"model": "NVIDIA A100"}, "model differs"),
        ({"firmware": "1.0"}, "firmware differs"),
        ({"pcie_generation": 3}, "PCIe generation 3 of 5"),
        ({"pcie_width": 8}, "PCIe width x8 of x16"),
    ],
)
def test_an_unusual_gpu_makes_the_environment_invalid(fault, words, health):
    (finding,) = environment_findings(None, health(**fault), [], others=0.05, loaded=(0, 1))
    assert finding.verdict is CheckVerdict.INVALID
    assert words in finding.evidence


def test_the_link_of_an_idle_gpu_is_not_judged(health):
    (finding,) = environment_findings(None, health(pcie_generation=1), [], others=0.05, loaded=())
    assert finding.verdict is CheckVerdict.PASS


def test_a_lost_gpu_is_given_up_and_is_not_run_in_place_of_passed(monkeypatch):
    monkeypatch.setattr(nvml, "CALL_SECONDS", 0.05)
    fake_library(monkeypatch, lost=True)
    gpus = Gpus()
    start = time.monotonic()
    sample = gpus.sample(1, start)
    assert time.monotonic() - start < 5
    assert sample.reasons is None
    assert gpus.unanswered(1) == ["nvmlDeviceGetCurrentClocksThrottleReasons"]
    assert sample.mhz is not None


def test_a_call_that_was_given_up_is_not_made_again_while_it_blocks(monkeypatch):
    monkeypatch.setattr(nvml, "CALL_SECONDS", 0.05)
    fake = fake_library(monkeypatch)
    free, asked = threading.Event(), []

    def blocked(handle):
        asked.append(handle)
        free.wait(10)
        return 0

    monkeypatch.setattr(fake, "nvmlDeviceGetCurrentClocksThrottleReasons", blocked)
    gpus = Gpus()
    before = threading.active_count()
    assert [gpus.sample(1, 0.0).reasons for _ in range(5)] == [None] * 5
    assert (asked, threading.active_count()) == ([1], before + 1)
    free.set()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gpus.sample(1, 0.0).reasons == []  # it answers again


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


@pytest.mark.parametrize(
    ("device", "visible", "numbers"),
    [
        ("cpu", None, []),
        ("cuda", None, [0, 1]),
        ("cuda", "4,2, 7", [4, 2]),
        ("cuda", "GPU-2b,GPU-1a", [2, 0]),
        ("cuda", "2,GPU-1b", [2, 1]),
        ("cuda", "GPU-1,GPU-2", []),  # two begin so
        ("cuda", "GPU-3,GPU-2", []),
        ("cuda", "MIG-GPU-2b/1/0,1", []),
    ],
)
def test_ranks_run_on_the_gpus_that_are_visible(device, visible, numbers, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    uuids = ["GPU-1a5c", "GPU-1b00", "GPU-2b77"]
    assert nvml.gpus_with_ranks(device, 2, uuids) == numbers


def test_the_watch_tells_the_uuids_in_the_librarys_order(monkeypatch):
    fake_library(monkeypatch)
    watch = HealthWatch()
    assert watch.gpus.uuids() == ["GPU-0", "GPU-1"]
    watch.finished()


def test_parts_of_a_watch_together_are_the_whole(monkeypatch):
    fake_library(monkeypatch, uncorrected=3, xids=[79])
    monkeypatch.setattr(nvml, "SAMPLE_SECONDS", 0.01)
    watch = HealthWatch()
    parts = []
    for _ in range(3):
        deadline = time.monotonic() + 10
        count = len(watch._samples[1])
        while len(watch._samples[1]) < count + 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        parts.append(watch.since_last())
    whole = joined(parts).gpus[1]
    now = watch.finished().gpus[1]
    assert whole.before == now.before
    assert [part.gpus[1].after.uncorrected for part in parts] == [3, 3, 3]
    assert [part.gpus[1].before.uncorrected for part in parts] == [0, 3, 3]
    assert whole.samples == now.samples[: len(whole.samples)]
    assert len(whole.samples) >= 6
    assert whole.xids == [79]


def test_a_resumed_battery_compares_its_counters_with_those_before_the_interruption(health, tmp_path):
    then, now = health(), health()
    then = Health(gpus=[msgspec.structs.replace(gpu, xids=[79]) for gpu in then.gpus])
    lower = msgspec.structs.replace(then.gpus[1].before, uncorrected=-2)
    then.gpus[1] = msgspec.structs.replace(then.gpus[1], before=lower)
    opened = SimpleNamespace(kept=lambda _name: [then])
    battery = RunningBattery(None, opened, History(), lambda _line: None)
    assert battery.run(BatteryPhase(name="p", predicted_seconds=1.0, serves=frozenset(), run=lambda _event: [])) == []
    found = [finding for finding in gpu_findings(battery.health(now), loaded=(0, 1)) if finding.check == 13]
    assert "2 uncorrectable ECC errors under load; XID 79" in found[1].evidence
    assert found[0].evidence == "XID 79"


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


def test_other_processes_beyond_the_limit_make_the_environment_invalid():
    def around(share):
        return Surroundings(device="cpu", ranks=2, devices=2, devices_expected=None, others_share=share, competitors=[])

    verdicts = []
    for share in (0.04, 0.06):
        findings = environment_findings(around(share), None, [], others=0.05, loaded=())
        verdicts += [finding.verdict for finding in findings if finding.subject == "other processes"]
    assert verdicts == [CheckVerdict.PASS, CheckVerdict.INVALID]
